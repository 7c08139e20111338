package fusefs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// fsName names the file system; the mount table shows fsType.
	fsName = "graze"
	fsType = "fuse." + fsName
)

// answerTimeout is how long a mount that is found at the target may take to
// show that it is alive.
const answerTimeout = 2 * time.Second

// Mount mounts a tree on a directory. What the directory holds is hidden for as
// long. A dead mount of this package that is there is taken away first; over
// any other the new one is mounted, as mount(8) would.
//
// Nothing is served, and whoever uses the mount waits, until [Server.Run] is
// called. It must be, also to take the mount away again.
func Mount(dir string, tree Tree, files Files, cfg Config) (*Server, error) {
	s, err := mount(dir, newFilesystem(tree, files, cfg.Trace), cfg)
	if err != nil {
		return nil, fmt.Errorf("mount on %s: %w", dir, err)
	}
	return s, nil
}

func mount(dir string, fsys *filesystem, cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if dir, err = resolve(dir); err != nil {
		return nil, err
	}
	if err := clearTarget(dir, &cfg.Trace); err != nil {
		return nil, err
	}
	// The descriptor and the mount are made here and not by go-fuse, which
	// would let every child process inherit the descriptor. Then a mount whose
	// server died would not be dead but hang.
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w; has the kernel's module fuse been loaded?", err)
	}
	defer unix.Close(device)
	if err := mountDevice(device, dir, cfg.Source); err != nil {
		return nil, err
	}
	s, err := attach(device, dir, fsys, cfg)
	if err != nil {
		return nil, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH))
	}
	return s, nil
}

// mountDevice mounts the file system that is served through device on dir.
func mountDevice(device int, dir, source string) error {
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d,max_read=%d,default_permissions,allow_other",
		device, unix.S_IFDIR, os.Geteuid(), os.Getegid(), maxRequest)
	err := unix.Mount(source, dir, fsType, unix.MS_RDONLY, options)
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: only root (CAP_SYS_ADMIN) can mount", err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: the kernel has no FUSE", err)
	}
	return err
}

// attach makes the server of a mount, and answers the kernel's INIT.
func attach(device int, dir string, fsys *filesystem, cfg Config) (*Server, error) {
	at, err := topMount(dir)
	if err != nil {
		return nil, err
	}
	if at == nil || at.FSType != fsType {
		return nil, errors.New("the mount is not in the mount table")
	}
	// One descriptor for go-fuse, which closes it, and one to see with whether
	// the connection to the kernel is alive.
	fd, err := unix.FcntlInt(uintptr(device), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	probe, err := unix.FcntlInt(uintptr(device), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s := &Server{
		dir:     dir,
		major:   at.Major,
		minor:   at.Minor,
		fs:      fsys,
		trace:   cfg.Trace,
		probe:   os.NewFile(uintptr(probe), "/dev/fuse"),
		devices: [2]int{probe, fd},
		ready:   make(chan struct{}),
	}
	fsys.dead = s.dead
	if s.fuse, err = fuse.NewServer(fsys, fmt.Sprintf("/dev/fd/%d", fd), mountOptions(fsys, cfg)); err != nil {
		s.probe.Close()
		return nil, err
	}
	s.raiseReadAhead(cfg.ReadAhead)
	return s, nil
}

// mountOptions is what is agreed with the kernel in INIT.
func mountOptions(fsys *filesystem, cfg Config) *fuse.MountOptions {
	return &fuse.MountOptions{
		Name:                     fsName,
		MaxWrite:                 maxRequest, // also of reads
		MaxBackground:            cfg.MaxBackground,
		EnableAcl:                true,
		EnableSymlinkCaching:     true,
		ExplicitDataCacheControl: true,
		IDMappedMount:            true, // containers in user namespaces
		DisableSplice:            true, // slower than a copy for what is in memory
		ExtraCapabilities:        fuse.CAP_NO_OPENDIR_SUPPORT | fuse.CAP_EXPORT_SUPPORT,
		// Passthrough counts as one file system on another, of which the
		// kernel allows two: an overlay on this one would be the last.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
		PanicHandler:         fsys.panicked,
		// What go-fuse logs are replies that came too late for a process that
		// was killed.
		Logger: log.New(io.Discard, "", 0),
	}
}

// raiseReadAhead sets how far the kernel reads ahead on this mount. The
// protocol can only lower it.
func (s *Server) raiseReadAhead(size int64) {
	name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", s.major, s.minor)
	err := os.WriteFile(name, []byte(strconv.FormatInt(size>>10, 10)), 0)
	if err != nil {
		s.trace.warn("%s: sequential reads are slower, the kernel reads only 128 KiB ahead: %v", s.dir, err)
	}
}

// resolve returns dir as it stands in the mount table, without symbolic links.
// The directory itself may be unreadable, as one with a dead mount is.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real, nil
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w; make it with mkdir -p", err)
	} else if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(dir)), nil
}

// clearTarget takes dead mounts of ours away from dir and fails if nothing can
// be mounted there.
func clearTarget(dir string, trace *Trace) error {
	for {
		at, err := topMount(dir)
		if err != nil {
			return err
		}
		if at == nil || at.FSType != fsType {
			break
		}
		switch err := answers(dir); {
		case err == nil:
			return errors.New("it is the mount of a running graze; unmount that first")
		case !errors.Is(err, unix.ENOTCONN):
			return fmt.Errorf("a graze mount is there that does not answer (umount -l takes it away): %w", err)
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("take a dead mount away: %w", err)
		}
		trace.warn("%s: took a mount away whose server had died", dir)
	}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("no such directory; make it with mkdir -p")
	case errors.Is(err, unix.ENOTCONN):
		return fmt.Errorf("a dead mount of another program is there: %w", err)
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("it is not a directory")
	}
	return nil
}

// answers asks the server of the mount on dir for something that the kernel
// never keeps. A server that is stopped lets the question wait, so the goroutine
// that asks can outlive the call by as long.
func answers(dir string) error {
	result := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		result <- unix.Statfs(dir, &st)
	}()
	select {
	case err := <-result:
		return err
	case <-time.After(answerTimeout):
		return fmt.Errorf("no answer in %v", answerTimeout)
	}
}

// topMount returns the mount that a path which leads to dir ends at, or nil if
// nothing is mounted on dir.
func topMount(dir string) (*mountinfo.Info, error) {
	// The package's own filter ends at the first, but later mounts lie over it.
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint != dir, false
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[len(all)-1], nil
}

// Unmount takes the mount of this package on dir away. If something uses it, it
// fails with an error that is ErrBusy; unless lazy is set: then the mount
// disappears from dir at once, and is served until the last user has left it.
func Unmount(dir string, lazy bool) error {
	if err := unmount(dir, lazy); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// ErrBusy is why a mount that is in use can't be taken away.
var ErrBusy = errors.New("it is in use (fuser -vm shows by whom)")

func unmount(dir string, lazy bool) error {
	dir, err := resolve(dir)
	if err != nil {
		return err
	}
	switch at, err := topMount(dir); {
	case err != nil:
		return err
	case at == nil:
		return errors.New("nothing is mounted there")
	case at.FSType != fsType:
		return fmt.Errorf("it is a mount of type %s, not of graze", at.FSType)
	}
	err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		if !lazy {
			return ErrBusy
		}
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	return err
}
