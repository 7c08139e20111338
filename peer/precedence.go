package peer

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"graze/chunk"
)

const (
	// lowerPiece is how many bytes of a body are given to the system at a time
	// that no reader waits for: one that a reader waits for can come before the
	// next piece.
	lowerPiece = 64 << 10
	// maxYield bounds how long such a piece lets others pass, so that a reader
	// that is slow, or pretends to wait, does not stop everything else.
	maxYield = 100 * time.Millisecond
	// maxUnsent is how many bytes of a connection the system holds that it has
	// not sent yet. They come before whatever is sent later, of other
	// connections too.
	maxUnsent = 128 << 10
	// lowerWindow is how many bytes that no reader waits for may be on their way
	// to this node on one connection. They have connections of their own.
	lowerWindow = 256 << 10
)

// A precedence lets bodies that a reader waits for pass the others.
type precedence struct {
	mu     sync.Mutex
	urgent int           // such bodies that are being sent; guarded by mu
	calm   chan struct{} // closed when there are none any more; nil: nobody waits for that; guarded by mu
}

// begin notes a body that is to be sent. Each begin needs an end.
func (p *precedence) begin(class chunk.Class) {
	if class != chunk.Demand {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.urgent++
}

func (p *precedence) end(class chunk.Class) {
	if class != chunk.Demand {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.urgent--; p.urgent == 0 && p.calm != nil {
		close(p.calm)
		p.calm = nil
	}
}

// yield waits before a piece of a body of the given class while others go first.
func (p *precedence) yield(ctx context.Context, class chunk.Class) {
	if class == chunk.Demand {
		return
	}
	p.mu.Lock()
	if p.urgent == 0 {
		p.mu.Unlock()
		return
	}
	if p.calm == nil {
		p.calm = make(chan struct{})
	}
	calm := p.calm
	p.mu.Unlock()
	timer := time.NewTimer(maxYield)
	defer timer.Stop()
	select {
	case <-calm:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// limitUnsent keeps the system from taking more of what is sent on l than it
// needs to keep the link busy. A system that can't do so does without.
func (l *link) limitUnsent() {
	tcp := l.tcp
	if l.out != nil {
		tcp = l.out.TCPConn
	}
	if tcp == nil {
		return // a libp2p stream
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
		})
	}
}

// shortBuffer is a net.Dialer's Control that has a connection receive no more than
// lowerWindow bytes at a time.
func shortBuffer(_, _ string, raw syscall.RawConn) error {
	var err error
	cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, lowerWindow)
	})
	return errors.Join(cerr, err)
}
