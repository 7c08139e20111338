package imagetest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Tree is what can be seen of a directory and all below it, by path relative
// to the directory, which itself is ".".
type Tree map[string]*Node

// A Node is what can be seen of one name in a Tree.
type Node struct {
	Mode   uint32 // with the bits of the type
	UID    uint32
	GID    uint32
	Size   int64
	Blocks int64 // of 512 bytes
	NLink  uint64
	Rdev   uint64
	MTime  time.Time
	Ino    uint64

	Link   string            // target of a symbolic link
	Xattrs map[string]string // as listxattr(2) lists them
	Sum    [sha256.Size]byte // of a regular file's bytes
	Data   []Range           // of a regular file: what is not a hole

	// Group is the first, in the order of paths, of the names in the tree that
	// are hard links to the same file; empty if there is one name only.
	Group string
}

// A Range is a stretch of a file.
type Range struct{ Off, Len int64 }

// Snapshot records the tree at dir. It reads each file once, however many names
// it has, and doesn't follow symbolic links. It doesn't look at what is mounted
// below dir in a special way.
func Snapshot(dir string) (Tree, error) {
	t := make(Tree)
	type file struct{ dev, ino uint64 }
	first := make(map[file]string)
	buf := make([]byte, 1<<20)
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: name, Err: err}
		}
		key := file{st.Dev, st.Ino}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
			if path, ok := first[key]; ok {
				n := *t[path] // one file, but what it reports is looked at by each name
				n.setStat(&st)
				n.Group = path
				t[path].Group = path
				t[rel] = &n
				return nil
			}
			first[key] = rel
		}
		n := &Node{}
		n.setStat(&st)
		t[rel] = n
		return n.read(name, buf)
	})
	return t, err
}

func (n *Node) setStat(st *unix.Stat_t) {
	n.Mode, n.UID, n.GID = st.Mode, st.Uid, st.Gid
	n.Size, n.Blocks = st.Size, st.Blocks
	n.NLink, n.Rdev, n.Ino = uint64(st.Nlink), st.Rdev, st.Ino
	n.MTime = time.Unix(st.Mtim.Unix()).UTC()
}

// read sets what stat(2) doesn't report.
func (n *Node) read(name string, buf []byte) (err error) {
	if n.Xattrs, err = xattrs(name, buf); err != nil {
		return err
	}
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		n.Link, err = os.Readlink(name)
	case unix.S_IFREG:
		err = n.readFile(name, buf)
	}
	return err
}

// readFile sets the digest and the map of data of a regular file.
func (n *Node) readFile(name string, buf []byte) error {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOATIME|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.EPERM) { // O_NOATIME is for the owner and root
		f, err = os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if n.Data, err = dataRanges(f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	sum := sha256.New()
	// The struct hides io.Copy's shortcuts, which would make a buffer of its own.
	got, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{f}, buf)
	if err != nil {
		return err
	}
	if got != n.Size {
		return fmt.Errorf("%s: read %d bytes of %d", name, got, n.Size)
	}
	sum.Sum(n.Sum[:0])
	return nil
}

// dataRanges asks for the data and the holes of f by turns.
func dataRanges(f *os.File) ([]Range, error) {
	var list []Range
	for at := int64(0); ; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return list, nil // no data from there on
		}
		if err != nil {
			return nil, err
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if start < at || end <= start {
			return nil, fmt.Errorf("data from %d to %d, asked for data from %d on", start, end, at)
		}
		list = append(list, Range{start, end - start})
		at = end
	}
}

// xattrs returns the extended attributes of name itself. buf is scratch space.
func xattrs(name string, buf []byte) (map[string]string, error) {
	n, err := unix.Llistxattr(name, buf)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "llistxattr", Path: name, Err: err}
	}
	m := make(map[string]string)
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		n, err := unix.Lgetxattr(name, attr, buf)
		if err != nil {
			return nil, &fs.PathError{Op: "lgetxattr " + attr, Path: name, Err: err}
		}
		m[attr] = string(buf[:n])
	}
	return m, nil
}
