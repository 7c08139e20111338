package registry

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"path"
	"sync"
	"syscall"
	"time"
)

// Directories of the root, as the package comment has them.
const (
	lockFile   = "lock"
	tmpDir     = "tmp"
	uploadsDir = "uploads"
	blobsDir   = "blobs"
	reposDir   = "repos"
)

// Directories of a repository. The tags are made first: a repository is known
// once they are there.
const (
	tagsDir      = "_tags"
	blobLinksDir = "_blobs"
	manifestsDir = "_manifests"
	referrersDir = "_referrers"
)

// A store is the registry's directory. Its errors wrap fs.ErrNotExist where
// something is not there. Names and digests that it is given are checked ones.
type store struct {
	root *os.Root
	lock *os.File

	blobs stripes // by digest: order the changes of a blob's links
	repos stripes // by repository: order the changes of manifests, tags and referrers

	mu        sync.Mutex
	writing   map[string]bool // guarded by mu; uploads that a request works on
	nextSweep time.Time       // guarded by mu; when to look for abandoned uploads
}

// openStore opens the store in dir, which is made if it is not there, and
// removes what an earlier process left unfinished.
func openStore(dir string) (_ *store, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &store{root: root, blobs: newStripes(), repos: newStripes(), writing: make(map[string]bool)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.lock, err = lockRoot(root, dir); err != nil {
		return nil, err
	}
	if err := root.RemoveAll(tmpDir); err != nil {
		return nil, err
	}
	for _, name := range []string{tmpDir, uploadsDir, blobsDir, reposDir} {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return nil, err
		}
	}
	return s, s.sweepUploads(time.Now())
}

// lockRoot takes the lock of the root for this process. The kernel lets go of
// it when the process ends, however it ends.
func lockRoot(root *os.Root, dir string) (*os.File, error) {
	f, err := root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		pid := make([]byte, 20)
		n, _ := f.ReadAt(pid, 0) // only for the message
		err = fmt.Errorf("directory %s is in use by process %q: stop it or choose another directory", dir, pid[:n])
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d", os.Getpid()), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock registry: %w", err)
	}
	return f, nil
}

// close gives up the directory. It can be called twice.
func (s *store) close() error {
	var err error
	if s.lock != nil {
		err = s.lock.Close()
	}
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	return errors.Join(err, s.root.Close())
}

// Paths within the root.

func repoPath(repo string, elem ...string) string {
	return path.Join(append([]string{reposDir, repo}, elem...)...)
}

func contentPath(d digest) string {
	return path.Join(blobsDir, string(d.algorithm), d.hex[:2], d.hex)
}

func blobPath(repo string, d digest) string {
	return repoPath(repo, blobLinksDir, string(d.algorithm), d.hex)
}

func manifestPath(repo string, d digest) string {
	return repoPath(repo, manifestsDir, string(d.algorithm), d.hex)
}

func tagPath(repo, tag string) string { return repoPath(repo, tagsDir, tag) }

func referrersPath(repo string, subject digest) string {
	return repoPath(repo, referrersDir, string(subject.algorithm), subject.hex)
}

// makeRepo makes a repository known.
func (s *store) makeRepo(repo string) error {
	return s.root.MkdirAll(repoPath(repo, tagsDir), 0o755)
}

// exists reports whether there is something at name.
func (s *store) exists(name string) (bool, error) {
	_, err := s.root.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// writeFile makes name hold the given parts: all of them or, when the process
// or the machine dies, what it held before.
func (s *store) writeFile(name string, parts ...[]byte) (err error) {
	tmp := path.Join(tmpDir, rand.Text())
	f, err := s.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.root.Remove(tmp)
		}
	}()
	for _, p := range parts {
		if _, err := f.Write(p); err != nil {
			f.Close()
			return err
		}
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := s.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	return s.root.Rename(tmp, name)
}

// stripes are locks for many keys, few enough to be kept for ever. Two keys may
// share one, so nobody holds two.
type stripes struct {
	seed maphash.Seed
	mu   *[64]sync.Mutex
}

func newStripes() stripes { return stripes{maphash.MakeSeed(), new([64]sync.Mutex)} }

// of returns the lock of key.
func (s stripes) of(key string) *sync.Mutex {
	return &s.mu[maphash.String(s.seed, key)%uint64(len(s.mu))]
}
