package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sweepInterval is how often the keeper looks for descriptors that have been
	// ended, while no client is there.
	sweepInterval = time.Second
	// lockPatience is how long a keeper waits for the end of another one.
	lockPatience = 5 * time.Second
	defaultIdle  = 2 * time.Second
)

// A Config is how a keeper behaves. The zero value is good.
type Config struct {
	// Idle is how long a keeper that holds nothing waits for a client before it
	// ends. Default: 2 seconds.
	Idle time.Duration
}

// ErrRunning: another keeper listens on the socket.
var ErrRunning = errors.New("another keeper runs")

// Run holds descriptors for who connects to the unix socket path, until ctx is
// done or nobody needs it any more. What it holds then is closed.
func Run(ctx context.Context, path string, cfg Config) error {
	lock, err := lockFile(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer lock.Close()
	// What is there now has been left by a keeper that was killed.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make room for the keeper's socket: %w", err)
	}
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		return fmt.Errorf("listen on the keeper's socket: %w", err)
	}
	defer ln.Close() // which removes the socket
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	k := &server{held: make(map[string]descriptor)}
	defer func() {
		for name := range k.held {
			k.drop(name)
		}
	}()
	return k.run(ctx, ln, cmp.Or(cfg.Idle, defaultIdle))
}

// lockFile takes the lock that one keeper has for as long as it runs.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the keeper's socket: %w", err)
	}
	deadline := time.After(lockPatience)
	for {
		err := unix.Flock(fdOf(f), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			return nil, errors.Join(ErrRunning, f.Close())
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}

// A server is the state of Run, which one goroutine has.
type server struct {
	held map[string]descriptor // by name
}

// A descriptor is one that is held.
type descriptor struct {
	fd   int
	file bool // a plain file or memory, which nobody ends
}

// run serves one client after the other.
func (k *server) run(ctx context.Context, ln *net.UnixListener, idle time.Duration) error {
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	needed := time.Now() // last
	for {
		if err := ln.SetDeadline(time.Now().Add(min(sweepInterval, idle))); err != nil && ctx.Err() == nil {
			return err
		}
		conn, err := ln.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			k.serve(ctx, conn)
			needed = time.Now()
			continue
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("wait for clients: %w", err)
		}
		k.sweep()
		if k.needed() {
			needed = time.Now()
		} else if time.Since(needed) >= idle {
			return nil
		}
	}
}

// serve answers a client until it has gone.
func (k *server) serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	for {
		m, fd, err := receive(conn)
		if err != nil {
			return
		}
		if err := k.answer(conn, m, fd); err != nil {
			return
		}
	}
}

// answer does what a client asks for. It takes fd over.
func (k *server) answer(conn *net.UnixConn, m message, fd int) error {
	reply := message{Op: m.Op}
	var err error
	switch m.Op {
	case opHello:
		reply.Version = protocolVersion
		k.sweep()
	case opList:
		for name, held := range k.held {
			if err := send(conn, message{Op: m.Op, Name: name}, held.fd); err != nil {
				return err
			}
		}
	case opPut:
		if err = k.put(m.Name, fd); err == nil {
			fd = -1
		}
	case opDrop:
		k.drop(m.Name)
	default:
		err = fmt.Errorf("unknown request %.20q", m.Op)
	}
	if fd >= 0 {
		unix.Close(fd)
	}
	if err != nil {
		reply.Error = err.Error()
	}
	return send(conn, reply, -1)
}

// put holds a descriptor, in place of one that was put under the same name.
func (k *server) put(name string, fd int) error {
	if fd < 0 {
		return errors.New("no descriptor came with it")
	}
	if err := checkName(name); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	k.drop(name)
	k.held[name] = descriptor{fd, st.Mode&unix.S_IFMT == unix.S_IFREG}
	return nil
}

// needed reports whether anything is held for which it is worth to stay. Files are
// held for as long as something else is.
func (k *server) needed() bool {
	for _, d := range k.held {
		if !d.file {
			return true
		}
	}
	return false
}

// drop closes a descriptor, if it is held.
func (k *server) drop(name string) {
	if d, ok := k.held[name]; ok {
		unix.Close(d.fd)
		delete(k.held, name)
	}
}

// sweep closes the descriptors whose other side has ended them. It does so only
// now and then: who waits for that to happen is woken by every request that goes
// through the descriptor.
func (k *server) sweep() {
	for name, d := range k.held {
		poll := []unix.PollFd{{Fd: int32(d.fd)}}
		n, err := unix.Poll(poll, 0)
		if err == nil && n > 0 && poll[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 {
			k.drop(name)
		}
	}
}
