package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// endTimeout is how long a server waits for its reads to end when the mount is
// gone. Their contexts have ended then.
const endTimeout = 5 * time.Second

// A Server serves one mount.
type Server struct {
	dir          string
	major, minor int // of the mount's device number
	fs           *filesystem
	fuse         *fuse.Server
	probe        *os.File // shares the connection to the kernel
	devices      [2]int   // the numbers of probe and of go-fuse's own descriptor
	trace        Trace
	ready        chan struct{}
}

// Dir returns the directory of the mount, without symbolic links.
func (s *Server) Dir() string { return s.dir }

// Ready is closed when the mount is being served. Other processes can use the
// mount as soon as it is there. The process of the server must wait, because the
// Go runtime polls a file that it opens, and stands still if the server doesn't
// answer. For the same reason it must never map a file of the mount into memory,
// nor start a program that lies on it or has it as working directory. And it
// should not keep files of the mount open: see endPolls.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Stats returns counts of what was served. It can be called at any time.
func (s *Server) Stats() Stats { return s.fs.ops.stats() }

// Run serves the mount until ctx is done, takes it away and returns when
// nothing of it is left. It also returns, without an error, when someone else
// has unmounted it. It must be called once; with a context that is done already
// it only takes the mount away.
//
// If the mount is in use when ctx is done, it disappears all the same: its
// users get ENOTCONN from then on, also for reads that wait.
func (s *Server) Run(ctx context.Context) error {
	defer s.probe.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.fuse.Serve()
	}()
	s.endPolls()
	close(s.ready)
	select {
	case <-ctx.Done():
		s.takeAway()
	case <-served:
	}
	close(s.fs.closing)
	if err := s.abort(); err != nil {
		s.trace.warn("%s: users of the mount may hang: %v", s.dir, err)
	}
	// What the kernel has aborted it leaves in the mount table.
	if s.mounted() {
		s.trace.warn("%s: the connection was aborted; took the mount away", s.dir)
		unix.Unmount(s.dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	select {
	case <-served:
		return nil
	case <-time.After(endTimeout):
		return fmt.Errorf("mount on %s: %d reads go on after their contexts have ended", s.dir, s.Stats().InFlight)
	}
}

// takeAway removes the mount from its directory.
func (s *Server) takeAway() {
	if !s.mounted() {
		return
	}
	err := unix.Unmount(s.dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		s.trace.warn("%s: took the mount away from those who use it", s.dir)
		err = unix.Unmount(s.dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err != nil {
		s.trace.warn("%s: could not take the mount away: %v", s.dir, err)
	}
}

// mounted reports whether the mount is the uppermost on its directory.
func (s *Server) mounted() bool {
	at, err := topMount(s.dir)
	return err == nil && at != nil && at.Major == s.major && at.Minor == s.minor
}

// dead reports whether the kernel has ended the connection, as it does when the
// last user of the last mount has gone, or on an abort.
func (s *Server) dead() bool {
	dead := false
	conn, err := s.probe.SyscallConn()
	if err != nil {
		return true
	}
	err = conn.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(poll, 0)
		dead = err == nil && n > 0 && poll[0].Revents&unix.POLLERR != 0
	})
	return err != nil || dead
}

// abort ends the connection if the mount is still used through an open file, a
// bind mount, an overlay or another mount namespace. The kernel's control file
// system is mounted for this, but in no place, since not all hosts have it.
func (s *Server) abort() error {
	if s.dead() {
		return nil // and its number may be that of another by now
	}
	fsfd, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open fusectl: %w", err)
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return fmt.Errorf("open fusectl: %w", err)
	}
	root, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount fusectl: %w", err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, filepath.Join(strconv.Itoa(s.minor), "abort"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("1")); err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	return nil
}

// endPolls makes the kernel learn that files can't be polled, by polling one
// that go-fuse keeps in the root for this. From then on it never asks.
//
// A process that is killed waits until the server has been told that its files
// are closed. If the server itself is killed, with a file of its own mount open,
// that is for ever. So the file is opened by a thread that has descriptors of
// its own, and none of them leads to this server. It keeps copies of all others:
// the Go runtime does its own work on any thread, and fails if it can't poll.
func (s *Server) endPolls() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The first thread can't end. While it is held here, another one
			// gets the next goroutine.
			s.endPolls()
			runtime.UnlockOSThread()
			return
		}
		if unix.Unshare(unix.CLONE_FILES) != nil {
			return
		}
		for _, fd := range s.devices {
			unix.Close(fd)
		}
		fd, err := unix.Open(filepath.Join(s.dir, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return // the mount is gone already
		}
		defer unix.Close(fd)
		unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	}()
	<-done
}
