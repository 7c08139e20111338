package fusefs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// endTimeout is how long a server waits for its reads to end when the mount is
// gone. Their contexts have ended then.
const endTimeout = 5 * time.Second

// A Server serves one mount.
//
// Its process must not use the mount itself, not even for an lstat. A request
// that a process makes of itself hangs if the process is killed before it has
// answered, and the process with it; and the Go runtime stands still while it
// waits for a page, an exec or a poll.
type Server struct {
	*server
	session Session
	fs      *filesystem
	trace   Trace
	ready   chan struct{}
}

// Dir returns the directory of the mount, without symbolic links.
func (s *Server) Dir() string { return s.session.Dir }

// Ready is closed when the mount is being served. Who uses it before waits until
// then.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Stats returns counts of what was served. It can be called at any time.
func (s *Server) Stats() Stats { return s.fs.ops.stats() }

// Run serves the mount until ctx is done, takes it away and returns when
// nothing of it is left. It also returns, without an error, when someone else
// has unmounted it. It must be called once; with a context that is done already
// it only takes the mount away.
//
// If the mount is in use when ctx is done, it disappears all the same: its
// users get ENOTCONN from then on, also for reads that wait. With the cause
// [ErrLeave] it stays, and they wait for the next server. Then the process should
// end: until it has, it may take a request that it does not answer.
func (s *Server) Run(ctx context.Context) error {
	defer s.device.Close()
	if err := s.serve(s.session.agreed().maxWrite); err != nil {
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		return errors.Join(err, s.finish(cancelled))
	}
	close(s.ready)
	return s.finish(ctx)
}

// finish waits for the end and brings it about.
func (s *Server) finish(ctx context.Context) error {
	select {
	case <-ctx.Done():
		if leaves(ctx) {
			return s.leave()
		}
		s.takeAway()
	case <-s.gone:
	}
	close(s.fs.closing)
	if !s.Dead() { // else its number may be that of another by now
		if err := abort(s.session.Minor); err != nil {
			s.trace.warn("%s: users of the mount may hang: %v", s.Dir(), err)
		}
	}
	// What the kernel has aborted it leaves in the mount table.
	if s.Mounted() {
		s.trace.warn("%s: the connection was aborted; took the mount away", s.Dir())
		unix.Unmount(s.Dir(), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	served := make(chan struct{})
	go func() {
		s.loops.Wait()
		s.free()
		close(served)
	}()
	select {
	case <-served:
		return nil
	case <-time.After(endTimeout):
		return fmt.Errorf("mount on %s: %d reads go on after their contexts have ended", s.Dir(), s.Stats().InFlight)
	}
}

// takeAway removes the mount from its directory.
func (s *Server) takeAway() {
	if !s.Mounted() {
		return
	}
	err := unix.Unmount(s.Dir(), unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		s.trace.warn("%s: took the mount away from those who use it", s.Dir())
		err = unix.Unmount(s.Dir(), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err != nil {
		s.trace.warn("%s: could not take the mount away: %v", s.Dir(), err)
	}
}

// Mounted reports whether the mount is what its directory shows. One that was taken
// away may have users, for whom it is served on. Of one that is [Server.Dead] it can't
// tell: the kernel gives its number to the next mount.
func (s *Server) Mounted() bool {
	there, _ := s.session.Mounted()
	return there
}

// Dead reports whether the kernel has ended the connection. Then the mount is gone
// for all, or about to be, and Run returns soon.
func (s *Server) Dead() bool {
	conn, err := s.device.SyscallConn()
	if err != nil {
		return true
	}
	dead := false
	err = conn.Control(func(fd uintptr) { dead = ended(int(fd)) })
	return err != nil || dead
}
