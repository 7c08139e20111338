package registry

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"
)

const (
	// uploadTTL is how long an upload is kept that nobody writes to.
	uploadTTL = time.Hour
	// sweepInterval is how often, at most, abandoned uploads are looked for.
	sweepInterval = 10 * time.Minute
	// idLen is the length of an upload's id, a UUID.
	idLen = 36
)

// An upload is a blob that is being received: a file in the uploads directory.
// All its state is the file, so it outlives the process. One request at a time
// has it open.
type upload struct {
	s    *store
	name string
	f    *os.File
	size int64
}

// newUploadID returns a random UUID (version 4).
func newUploadID() string {
	var u [16]byte
	rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// validUploadID reports whether id has the form that newUploadID makes.
func validUploadID(id string) bool {
	if len(id) != idLen {
		return false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && c != '-' {
			return false
		}
	}
	return true
}

// uploadPath returns where the upload's file is. The name depends on the
// repository, so an id is of no use in another one.
func uploadPath(repo, id string) string {
	sum := sha256.Sum256([]byte(repo))
	return path.Join(uploadsDir, fmt.Sprintf("%x-%s", sum[:8], id))
}

// createUpload starts an upload, and returns it opened with its id.
func (s *store) createUpload(repo string) (*upload, string, error) {
	if err := s.sweepUploads(time.Now()); err != nil {
		return nil, "", err
	}
	id := newUploadID()
	u, err := s.acquireUpload(uploadPath(repo, id), os.O_CREATE|os.O_EXCL)
	return u, id, err
}

// openUpload opens an upload to write to it. It fails with errUploadBusy while
// another request has it open, and with errUploadUnknown if there is none.
func (s *store) openUpload(repo, id string) (*upload, error) {
	if !validUploadID(id) {
		return nil, errUploadUnknown
	}
	return s.acquireUpload(uploadPath(repo, id), 0)
}

func (s *store) acquireUpload(name string, flags int) (_ *upload, err error) {
	s.mu.Lock()
	if s.writing[name] {
		s.mu.Unlock()
		return nil, errUploadBusy
	}
	s.writing[name] = true
	s.mu.Unlock()
	defer func() {
		if err != nil {
			s.releaseUpload(name)
		}
	}()
	// The file is opened after it was claimed: it can't have become a blob between.
	f, err := s.root.OpenFile(name, os.O_RDWR|os.O_APPEND|flags, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errUploadUnknown
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &upload{s, name, f, info.Size()}, nil
}

func (s *store) releaseUpload(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.writing, name)
}

// uploadSize returns the bytes that an upload has by now.
func (s *store) uploadSize(repo, id string) (int64, error) {
	if !validUploadID(id) {
		return 0, errUploadUnknown
	}
	info, err := s.root.Stat(uploadPath(repo, id))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errUploadUnknown
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// removeUpload ends an upload. A request that is writing to it finds out at its
// end.
func (s *store) removeUpload(repo, id string) error {
	if !validUploadID(id) {
		return errUploadUnknown
	}
	err := s.root.Remove(uploadPath(repo, id))
	if errors.Is(err, fs.ErrNotExist) {
		return errUploadUnknown
	}
	return err
}

// close lets other requests have the upload.
func (u *upload) close() error {
	defer u.s.releaseUpload(u.name)
	return u.f.Close()
}

// append adds all that src yields.
func (u *upload) append(src io.Reader) (int64, error) {
	n, err := io.Copy(u.f, src)
	u.size += n
	return n, err
}

// truncate takes back what was added after the first size bytes.
func (u *upload) truncate(size int64) error {
	u.size = size
	return u.f.Truncate(size)
}

// discard ends the upload without a blob. What can't be removed now is swept
// later.
func (u *upload) discard() { u.s.root.Remove(u.name) }

// digest reads back what was received and returns its digest.
func (u *upload) digest(a algorithm) (digest, error) {
	return digestReader(a, io.NewSectionReader(u.f, 0, u.size))
}

// commit makes the upload the blob d of a repository. The caller has compared
// the digest.
func (u *upload) commit(repo string, d digest) error {
	if err := u.f.Sync(); err != nil {
		return err
	}
	err := u.s.addBlob(u.name, repo, d)
	if errors.Is(err, fs.ErrNotExist) {
		return errUploadUnknown // it was cancelled meanwhile
	}
	return err
}

// sweepUploads removes the uploads that nobody has written to for uploadTTL,
// unless it did so a short time ago.
func (s *store) sweepUploads(now time.Time) error {
	s.mu.Lock()
	due := !now.Before(s.nextSweep)
	if due {
		s.nextSweep = now.Add(sweepInterval)
	}
	s.mu.Unlock()
	if !due {
		return nil
	}
	entries, err := fs.ReadDir(s.root.FS(), uploadsDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || now.Sub(info.ModTime()) < uploadTTL {
			continue // gone meanwhile, or young
		}
		if err := s.removeAbandoned(path.Join(uploadsDir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// removeAbandoned removes an upload unless a request works on it.
func (s *store) removeAbandoned(name string) error {
	u, err := s.acquireUpload(name, 0)
	if errors.Is(err, errUploadBusy) || errors.Is(err, errUploadUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	u.discard()
	return u.close()
}
