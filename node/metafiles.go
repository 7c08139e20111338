package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What is known of images is kept in files of the state folder: manifests, configs and
// indexes, views, and records of which is which. All of them can be had again, each by
// itself: whoever misses one fetches it, or makes it anew. So any of them may be
// removed at any time, and they are, by keepMetadata, when there are too many.

// metaDirs are the folders of those files.
var metaDirs = []string{"blobs/sha256", "views", "layers", "refs"}

const (
	// useGrain is how exactly it is known when a file was used last.
	useGrain = time.Minute
	// leftoverAfter is the age of a file that was not completed at which nobody writes
	// to it any more.
	leftoverAfter = 24 * time.Hour
)

// A metaFile is one of those files.
type metaFile struct {
	path string
	size int64
	used time.Time // last
}

// touch notes that a file is used now. Its time of change says so to the next node,
// too: the files are never changed.
func touch(path string) {
	st, err := os.Stat(path)
	if now := time.Now(); err == nil && now.Sub(st.ModTime()) >= useGrain {
		// It need not succeed: then the file seems to be older than it is.
		_ = os.Chtimes(path, now, now)
	}
}

// metaFiles returns all files of the library, those that were not used for longest
// first. What a process that was killed has not completed it removes.
func (l *Library) metaFiles(now time.Time) ([]metaFile, error) {
	var list []metaFile
	for _, dir := range metaDirs {
		dir = filepath.Join(l.dir, dir)
		names, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, n := range names {
			st, err := n.Info()
			if errors.Is(err, fs.ErrNotExist) || err == nil && !st.Mode().IsRegular() {
				continue
			}
			if err != nil {
				return nil, err
			}
			f := metaFile{filepath.Join(dir, n.Name()), st.Size(), st.ModTime()}
			if !isIncomplete(n.Name()) {
				list = append(list, f)
			} else if now.Sub(f.used) > leftoverAfter {
				os.Remove(f.path)
			}
		}
	}
	slices.SortFunc(list, func(a, b metaFile) int { return a.used.Compare(b.used) })
	return list, nil
}

// isIncomplete reports whether a file has the name of one that is being written.
func isIncomplete(name string) bool {
	return strings.HasPrefix(name, ".new-") || strings.Contains(name, ".tmp-")
}

// remove removes a file unless it was used since it was listed.
func (f *metaFile) remove() (bool, error) {
	st, err := os.Stat(f.path)
	if err == nil && !st.ModTime().Equal(f.used) {
		return false, nil
	}
	if err == nil {
		err = os.Remove(f.path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
