package registry

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// openBlob opens a blob of a repository.
func (s *store) openBlob(repo string, d digest) (*os.File, error) {
	return s.root.Open(blobPath(repo, d))
}

// hasBlob reports whether a blob is visible in a repository.
func (s *store) hasBlob(repo string, d digest) (bool, error) {
	return s.exists(blobPath(repo, d))
}

// mountBlob makes the blob of one repository visible in another.
func (s *store) mountBlob(from, to string, d digest) error {
	if _, err := s.root.Stat(blobPath(from, d)); err != nil {
		return err // before a repository is made for nothing
	}
	if err := s.makeBlobDir(to, d); err != nil {
		return err
	}
	mu := s.blobs.of(d.hex)
	mu.Lock()
	defer mu.Unlock()
	return s.linkUnlessThere(blobPath(from, d), blobPath(to, d))
}

// addBlob moves the file at name, whose content was checked and synced, to be
// the blob d of a repository. Where the content is on the disk already, the
// repository gets a link to that and the file is removed.
//
// The file goes to the repository's link first and is shared after that: if the
// process dies between, a later push of the blob to another repository takes
// space of its own, and nothing else is wrong.
func (s *store) addBlob(name, repo string, d digest) error {
	if err := s.makeBlobDir(repo, d); err != nil {
		return err
	}
	if err := s.root.MkdirAll(path.Dir(contentPath(d)), 0o755); err != nil {
		return err
	}
	mu := s.blobs.of(d.hex)
	mu.Lock()
	defer mu.Unlock()
	err := s.linkUnlessThere(contentPath(d), blobPath(repo, d))
	switch {
	case err == nil:
		return s.root.Remove(name)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := s.root.Rename(name, blobPath(repo, d)); err != nil {
		return err
	}
	return s.linkUnlessThere(blobPath(repo, d), contentPath(d))
}

// deleteBlob takes a blob from a repository, and from the disk if no other has
// it.
func (s *store) deleteBlob(repo string, d digest) error {
	mu := s.blobs.of(d.hex)
	mu.Lock()
	defer mu.Unlock()
	if err := s.root.Remove(blobPath(repo, d)); err != nil {
		return err
	}
	info, err := s.root.Stat(contentPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the content was never shared
	}
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Nlink > 1 {
		return nil
	}
	return s.root.Remove(contentPath(d))
}

// makeBlobDir makes the directory of a repository's link to a blob.
func (s *store) makeBlobDir(repo string, d digest) error {
	if err := s.makeRepo(repo); err != nil {
		return err
	}
	return s.root.MkdirAll(path.Dir(blobPath(repo, d)), 0o755)
}

// linkUnlessThere links the file at from to the name to, unless that exists.
// Both have the same content then.
func (s *store) linkUnlessThere(from, to string) error {
	err := s.root.Link(from, to)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
