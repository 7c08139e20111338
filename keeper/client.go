package keeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startPatience is how long a keeper may take from its start until it listens.
const startPatience = 10 * time.Second

// A Client is a connection to a keeper. It is safe for concurrent use. It is
// meant to last until the process ends.
type Client struct {
	conn *net.UnixConn
	held map[string]*os.File
	lost chan struct{} // closed when receive has returned
	end  chan struct{} // closed by Close

	mu      sync.Mutex // guards the conversation
	replies chan reply
}

// A reply is a message from the keeper.
type reply struct {
	message
	file *os.File // may be nil
}

// Open connects to the keeper on the unix socket path, and waits until it has no
// other client. If there is no keeper it runs command, which must call [Run] on
// path, and leaves that process to itself; without a command it fails.
func Open(ctx context.Context, path string, command []string) (*Client, error) {
	c, err := dial(ctx, path)
	if err == nil || !absent(err) || len(command) == 0 {
		return c, err
	}
	if err := spawn(command); err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	patience, cancel := context.WithTimeoutCause(ctx, startPatience, errors.New("it does not listen"))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-patience.Done():
			return nil, fmt.Errorf("start a keeper: %w", context.Cause(patience))
		}
		if c, err = dial(ctx, path); err == nil || !absent(err) {
			return c, err
		}
	}
}

// absent reports whether err means that there is no keeper, or no longer.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, errLost)
}

// errLost: the keeper has closed the connection.
var errLost = errors.New("the keeper has gone")

// spawn starts a process that does not end with this one, nor with its terminal.
func spawn(command []string) error {
	// What our own parent left open would stay open for as long as the keeper runs.
	// Where the kernel can't do this (before Linux 5.11) it does.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Args[0] = os.Args[0] // what people see; the program may be /proc/self/exe
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // no zombie, should it end before us; it has no other owner than itself
	return nil
}

// dial connects to a keeper and gets what it holds.
func dial(ctx context.Context, path string) (*Client, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, held: make(map[string]*os.File), lost: make(chan struct{}), end: make(chan struct{}), replies: make(chan reply)}
	go c.receive()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	err = c.begin()
	if err == nil && stop() {
		return c, nil
	}
	c.Close()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("keeper at %s: it serves another client: %w", path, context.Cause(ctx))
	}
	return nil, fmt.Errorf("keeper at %s: %w", path, err)
}

// receive passes on what the keeper says until it has gone.
func (c *Client) receive() {
	defer close(c.lost)
	for {
		m, fd, err := receive(c.conn)
		if err != nil {
			return
		}
		r := reply{message: m}
		if fd >= 0 {
			r.file = os.NewFile(uintptr(fd), m.Name)
		}
		select {
		case c.replies <- r:
		case <-c.end:
			return
		}
	}
}

// begin says hello and lists what is held.
func (c *Client) begin() error {
	hello, err := c.ask(message{Op: opHello, Version: protocolVersion}, -1)
	if err != nil {
		return err
	}
	if hello.Version != protocolVersion {
		return fmt.Errorf("it speaks version %d, not %d: it ends when the mounts that it holds are unmounted", hello.Version, protocolVersion)
	}
	r, err := c.ask(message{Op: opList}, -1)
	for ; err == nil && r.Name != ""; r, err = c.next() {
		if r.file != nil {
			c.held[r.Name] = r.file
		}
	}
	return err
}

// ask sends a request and returns the first reply.
func (c *Client) ask(m message, fd int) (reply, error) {
	if err := send(c.conn, m, fd); err != nil {
		return reply{}, fmt.Errorf("%w: %w", errLost, err)
	}
	return c.next()
}

func (c *Client) next() (reply, error) {
	select {
	case r := <-c.replies:
		if r.Error != "" {
			return r, fmt.Errorf("the keeper refuses: %.200q", r.Error)
		}
		return r, nil
	case <-c.lost:
		return reply{}, errLost
	}
}

// Held returns the descriptors that the keeper held when the connection was made,
// by name. They are the caller's to close.
func (c *Client) Held() map[string]*os.File { return c.held }

// Put has the keeper hold what f leads to, under a name: up to 64 small letters,
// digits and hyphens.
func (c *Client) Put(name string, f *os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.ask(message{Op: opPut, Name: name}, fdOf(f))
	return err
}

// Drop has the keeper close what it holds under a name, if anything.
func (c *Client) Drop(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.ask(message{Op: opDrop, Name: name}, -1)
	return err
}

// Lost is closed when the keeper has gone, and with it what it held.
func (c *Client) Lost() <-chan struct{} { return c.lost }

// Close ends the connection: another client is served. Who works with what the
// keeper holds must not call it, and let the connection end with the process. It
// must be called once at most.
func (c *Client) Close() error {
	close(c.end)
	err := c.conn.Close()
	<-c.lost
	return err
}
