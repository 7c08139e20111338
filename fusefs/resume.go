package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// ErrLeave, as the cause for which the context of [Server.Run] ends, has it leave
// the mount as it is, for another process to go on with. The mount lives if the
// other one has got the mount's descriptor, and the session.
var ErrLeave = errors.New("the mount is left to another process")

// ErrEnded: nobody uses the mount any more, or it was aborted.
var ErrEnded = errors.New("the kernel has ended the connection")

// Device returns the mount's descriptor, which is open until Run returns. It may
// be passed to others, who must not read from it.
func (s *Server) Device() *os.File { return s.device }

// Session returns what was agreed with the kernel, or ErrNoResume.
func (s *Server) Session() (Session, error) {
	return s.session, s.session.check()
}

// Resume goes on serving a mount whose server has ended. The tree must be the
// same, to the last inode number. What the former server was asked and did not
// answer, the kernel asks again; so it must have ended: not only its Run, but its
// process. Until Run is called the users of the mount wait.
//
// The device is used, not taken over: the caller closes it.
func Resume(device *os.File, session Session, tree Tree, files Files, cfg Config) (*Server, error) {
	s, err := resume(int(device.Fd()), session, newFilesystem(tree, files, cfg.Trace), cfg)
	if err != nil {
		return nil, fmt.Errorf("go on with the mount on %s: %w", session.Dir, err)
	}
	return s, nil
}

func resume(device int, session Session, fsys *filesystem, cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := session.check(); err != nil {
		return nil, err
	}
	if ended(device) {
		return nil, ErrEnded
	}
	have := session.agreed()
	srv, reply, err := newServer(fsys, resumeOptions(fsys, cfg, have), session.again())
	if err != nil {
		return nil, err
	}
	if got := agreedIn(reply); got != have {
		return nil, fmt.Errorf("this version of graze speaks otherwise with the kernel: %+v, not %+v", got, have)
	}
	s, err := start(device, srv, session, fsys, cfg)
	if err != nil {
		return nil, err
	}
	if err := resend(device); err != nil {
		return nil, errors.Join(err, s.device.Close())
	}
	return s, nil
}

// resumeOptions are those of a server that agrees to what was agreed before.
func resumeOptions(fsys *filesystem, cfg Config, have agreement) *fuse.MountOptions {
	o := mountOptions(fsys, cfg)
	o.MaxWrite = int(have.maxWrite)
	o.ExtraCapabilities, o.DisabledCapabilities = have.flags, ^have.flags
	return o
}

// resend has the kernel send again all requests that were read from the
// descriptor and not answered.
func resend(device int) error {
	msg := make([]byte, replyHeader)
	order.PutUint32(msg, uint32(len(msg)))
	order.PutUint32(msg[4:], uint32(-fuse.NOTIFY_RESEND)) // in the place of an error; and no request's number
	_, err := retry(func() (int, error) { return unix.Write(device, msg) })
	if errors.Is(err, unix.EINVAL) {
		return ErrNoResume
	} else if err != nil {
		return fmt.Errorf("ask for lost requests: %w", err)
	}
	return nil
}

// ended reports whether the kernel has ended the connection of a descriptor, as
// it does when the last user of the last mount has gone, or on an abort.
func ended(device int) bool {
	poll := []unix.PollFd{{Fd: int32(device)}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&unix.POLLERR != 0
}

// leave stops serving without a word to the kernel. What is being read now, and
// the requests that readers of the descriptor which can't be woken will take with
// them, remain unanswered: they are sent to the next server again.
func (s *Server) leave() error {
	// From now on nothing can be read or written that has not begun.
	if err := s.device.Close(); err != nil {
		return err
	}
	close(s.fs.closing)
	over := make(chan struct{})
	go func() {
		s.fs.gate.Lock() // for good: no read may begin
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-time.After(endTimeout):
		return fmt.Errorf("mount on %s: %d reads go on after their contexts have ended", s.Dir(), s.Stats().InFlight)
	}
}

// leaves reports whether a server whose context has ended leaves its mount.
func leaves(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrLeave) }
