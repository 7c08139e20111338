package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxReserve is what a node keeps of its disk for what a mount needs besides
	// chunks: manifests, indexes, the view, the record. A small disk has a smaller
	// one, by reservePart.
	maxReserve  = 8 << 20
	reservePart = 16
	// reserveTries is the mean time between two tries to have it again.
	reserveTries = time.Second
)

// A reserve is a file that keeps some room of the disk free. When the disk is full it
// is given up, so that an image can be mounted all the same; until it is whole again
// no chunk is stored, which would take that room. Its zero value has none and is never
// tight.
type reserve struct {
	name string

	mu    sync.Mutex // guards what follows
	given bool       // the file is gone
	tried time.Time  // when it was last tried to have it again
}

// newReserve returns the reserve in a state folder.
func newReserve(dir string) *reserve {
	r := &reserve{name: filepath.Join(dir, "reserve"), given: true}
	r.tight()
	return r
}

// give gives the room up, and reports whether there was any.
func (r *reserve) give() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.name == "" || r.given {
		return false
	}
	r.given, r.tried = true, time.Now()
	return os.Remove(r.name) == nil
}

// tight reports whether the room has been given up. Now and then it tries to have it
// again.
func (r *reserve) tight() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.name == "" || !r.given {
		return false
	}
	if time.Since(r.tried) >= reserveTries {
		r.tried = time.Now()
		r.given = r.take() != nil
	}
	return r.given
}

// take makes the file, all of it or none.
func (r *reserve) take() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(r.name), &fs); err != nil {
		return err
	}
	size := min(maxReserve, max(1, int64(fs.Blocks)*fs.Bsize/reservePart))
	f, err := os.OpenFile(r.name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.Write(make([]byte, size))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(r.name)
	}
	return err
}

// diskFull reports whether err says that there is no room on the disk.
func diskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// withRoom calls f, which writes to the state folder, and once more with the reserve
// given up if the disk is full.
func (n *Node) withRoom(f func() error) error {
	err := f()
	if !diskFull(err) {
		return err
	}
	if n.reserve.give() {
		n.log.Warn("disk is full; the reserve is used", "dir", n.dir, "err", err)
		err = f()
	}
	if diskFull(err) {
		err = fmt.Errorf("%w: the disk of %s is full, and so is what was kept in reserve; make room there", err, n.dir)
	}
	return err
}
