package chaos

import (
	"net"
	"sync"
)

// A Door says what becomes of connections to a [Gate].
type Door string

// The states of a Gate.
const (
	Open    Door = "open"
	Refuse  Door = "refuse"  // connections are refused, and those there are broken
	Swallow Door = "swallow" // connections are taken, and nothing is answered on any
)

// A Gate is a listener that can be shut. It counts who tried.
type Gate struct {
	addr   net.Addr
	listen func(addr string) (net.Listener, error)
	taken  chan net.Conn // by accept, for Accept
	done   chan struct{} // closed by Close
	wg     sync.WaitGroup

	mu       sync.Mutex
	door     Door               // guarded by mu
	opened   chan struct{}      // guarded by mu; closed when connections are not swallowed
	ln       net.Listener       // guarded by mu; nil while connections are refused
	conns    map[*gateConn]bool // guarded by mu; those that are there
	attempts int64              // guarded by mu
	closed   bool               // guarded by mu
}

// NewGate listens at addr by listen, which is called again, with the address that
// the first call came to, when the gate is opened after connections were refused.
// The gate is open, and has to be closed.
func NewGate(addr string, listen func(addr string) (net.Listener, error)) (*Gate, error) {
	ln, err := listen(addr)
	if err != nil {
		return nil, err
	}
	g := &Gate{
		addr: ln.Addr(), listen: listen, taken: make(chan net.Conn), done: make(chan struct{}),
		door: Open, opened: make(chan struct{}), ln: ln, conns: make(map[*gateConn]bool),
	}
	close(g.opened)
	g.wg.Go(func() { g.accept(ln) })
	return g, nil
}

// Set opens or shuts the gate.
func (g *Gate) Set(door Door) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || door == g.door {
		return nil
	}
	if g.door == Swallow {
		close(g.opened)
	}
	g.door = door
	switch door {
	case Swallow:
		g.opened = make(chan struct{})
	case Refuse:
		err := g.ln.Close()
		g.ln = nil
		for c := range g.conns {
			c.abort()
		}
		return err
	}
	if g.ln != nil {
		return nil
	}
	ln, err := g.listen(g.addr.String())
	if err != nil {
		g.door = Refuse
		return err
	}
	g.ln = ln
	g.wg.Go(func() { g.accept(ln) })
	return nil
}

// accept takes the connections of a listener until that is closed.
func (g *Gate) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		c := &gateConn{Conn: conn, gate: g, gone: make(chan struct{})}
		g.mu.Lock()
		g.attempts++
		g.conns[c] = true
		g.mu.Unlock()
		select {
		case g.taken <- c:
		case <-g.done:
			c.Close()
		}
	}
}

// Attempts returns how many connections were taken. Those that the kernel
// refused nobody can count here: clients do.
func (g *Gate) Attempts() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.attempts
}

// Accept implements net.Listener.
func (g *Gate) Accept() (net.Conn, error) {
	select {
	case c := <-g.taken:
		return c, nil
	case <-g.done:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (g *Gate) Addr() net.Addr { return g.addr }

// Close implements net.Listener. Connections stay as they are.
func (g *Gate) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	if g.door == Swallow {
		close(g.opened)
	}
	var err error
	if g.ln != nil {
		err = g.ln.Close()
	}
	close(g.done)
	g.mu.Unlock()
	g.wg.Wait()
	return err
}

// passable waits while connections are swallowed, or until gone is closed.
func (g *Gate) passable(gone <-chan struct{}) {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	select {
	case <-opened:
	case <-gone:
	}
}

// A gateConn is a connection through a Gate.
type gateConn struct {
	net.Conn
	gate  *Gate
	gone  chan struct{} // closed by Close
	close sync.Once
}

// Read implements net.Conn. What comes while connections are swallowed is read
// later.
func (c *gateConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.passable(c.gone)
	return n, err
}

// Write implements net.Conn.
func (c *gateConn) Write(p []byte) (int, error) {
	c.gate.passable(c.gone)
	return c.Conn.Write(p)
}

// abort breaks the connection.
func (c *gateConn) abort() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset, as by a machine that is up without the server
	}
	_ = c.Conn.Close()
}

// Close implements net.Conn.
func (c *gateConn) Close() error {
	c.close.Do(func() {
		close(c.gone)
		c.gate.mu.Lock()
		delete(c.gate.conns, c)
		c.gate.mu.Unlock()
	})
	return c.Conn.Close()
}
