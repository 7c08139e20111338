package disk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A Fault is what is wrong with a disk.
type Fault string

// The faults of a disk.
const (
	Well       Fault = "well"
	ReadErrors Fault = "read-errors" // every second stretch of 64 KiB can't be read: EIO
	ReadOnly   Fault = "read-only"   // nothing can be written: EROFS
)

// stretch is how many bytes lie together, readable or not.
const stretch = 64 << 10

// A Disk passes what is asked of it on to a folder.
type Disk struct {
	fuse.RawFileSystem
	suffix string
	fault  atomic.Pointer[Fault]

	mu   sync.Mutex
	weak map[uint64]bool // guarded by mu; nodes of files that can be unreadable
}

// New returns a disk whose content is in a folder. Files with that suffix can be
// unreadable.
func New(folder, suffix string) (*Disk, error) {
	root, err := fs.NewLoopbackRoot(folder)
	if err != nil {
		return nil, err
	}
	d := &Disk{RawFileSystem: fs.NewNodeFS(root, &fs.Options{}), suffix: suffix, weak: make(map[uint64]bool)}
	return d, d.Set(Well)
}

// Set says what is wrong with the disk from now on.
func (d *Disk) Set(f Fault) error {
	if f != Well && f != ReadErrors && f != ReadOnly {
		return fmt.Errorf("disks have no fault %q", f)
	}
	d.fault.Store(&f)
	return nil
}

// Serve mounts a disk and serves it until in ends. Each line of in names a fault,
// and is answered by a line of out once that is so; the first line of out says
// that the disk is there.
func Serve(d *Disk, dir string, in io.Reader, out io.Writer) error {
	server, err := fuse.NewServer(d, dir, &fuse.MountOptions{
		DirectMountStrict: true, FsName: dir, Name: "graze-disk", MaxWrite: 1 << 20, AllowOther: true,
		DisableReadDirPlus: true, // every file is looked up by its name, which tells what it is
	})
	if err != nil {
		return fmt.Errorf("mount a disk: %w", err)
	}
	go server.Serve()
	err = server.WaitMount()
	for lines := bufio.NewScanner(in); err == nil; {
		if _, err = fmt.Fprintln(out, "ok"); err != nil || !lines.Scan() {
			err = errors.Join(err, lines.Err())
			break
		}
		err = d.Set(Fault(strings.TrimSpace(lines.Text())))
	}
	// Who still has files open there doesn't keep it: they fail once the process ends.
	return errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
}

// is reports whether that is wrong.
func (d *Disk) is(f Fault) bool { return *d.fault.Load() == f }

// refuse returns what a call gets that would change something.
func (d *Disk) refuse() fuse.Status {
	if d.is(ReadOnly) {
		return fuse.EROFS
	}
	return fuse.OK
}

// see notes which file can be unreadable.
func (d *Disk) see(node uint64, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if strings.HasSuffix(name, d.suffix) {
		d.weak[node] = true
	} else {
		delete(d.weak, node) // numbers are used again
	}
}

// isWeak reports whether a file can be unreadable.
func (d *Disk) isWeak(node uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.weak[node]
}

// unreadable reports whether what is asked for touches a bad stretch.
func unreadable(off uint64, size uint32) bool {
	first, last := off/stretch, (off+uint64(max(size, 1))-1)/stretch
	return first != last || first%2 == 1
}
