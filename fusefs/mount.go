package fusefs

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// fsName names the file system; the mount table shows fsType.
	fsName = "graze"
	fsType = "fuse." + fsName
)

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
	session := Session{Version: sessionVersion, Dir: dir, Major: at.Major, Minor: at.Minor}
	if session.Request, err = readInit(device); err != nil {
		return nil, err
	}
	srv, reply, err := newServer(fsys, mountOptions(fsys, cfg), session.Request)
	if err != nil {
		return nil, err
	}
	// go-fuse knows one limit for reads and writes.
	order.PutUint16(reply[outMaxPages:], uint16(maxRequest/os.Getpagesize()))
	session.Reply = reply
	s, err := start(device, srv, session, fsys, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := retry(func() (int, error) { return unix.Write(device, reply) }); err != nil {
		return nil, errors.Join(fmt.Errorf("answer the kernel's INIT: %w", err), s.device.Close())
	}
	s.raiseReadAhead(cfg.ReadAhead)
	return s, nil
}

// start joins a server to the mount's descriptor.
func start(device int, srv *server, session Session, fsys *filesystem, cfg Config) (*Server, error) {
	fd, err := unix.FcntlInt(uintptr(device), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	srv.device = os.NewFile(uintptr(fd), "/dev/fuse")
	s := &Server{
		session: session,
		fs:      fsys,
		server:  srv,
		trace:   cfg.Trace,
		ready:   make(chan struct{}),
	}
	fsys.dead = s.Dead
	return s, nil
}

// mountOptions is what is agreed with the kernel in INIT.
func mountOptions(fsys *filesystem, cfg Config) *fuse.MountOptions {
	return &fuse.MountOptions{
		Name:                     fsName,
		MaxWrite:                 maxWrite,
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
	name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", s.session.Major, s.session.Minor)
	err := os.WriteFile(name, []byte(strconv.FormatInt(size>>10, 10)), 0)
	if err != nil {
		s.trace.warn("%s: sequential reads are slower, the kernel reads only 128 KiB ahead: %v", s.Dir(), err)
	}
}
