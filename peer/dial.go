package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	p2ppeer "github.com/libp2p/go-libp2p/core/peer"

	"graze/chunk"
)

// A Target is a node to ask.
type Target struct {
	ID   chunk.PeerID
	Addr string // host:port of its bulk listener; empty: reach it by libp2p
}

// connect makes a link to a node, by libp2p if its bulk listener can't be
// reached. One for lower classes receives by a short buffer.
func (h *Host) connect(ctx context.Context, to Target, lower bool) (*link, error) {
	id, err := p2ppeer.Decode(string(to.ID))
	if err != nil {
		return nil, fmt.Errorf("%w: %.80q is no peer id", ErrUnreachable, string(to.ID))
	}
	var direct error
	if to.Addr != "" && !h.detours.active(to, time.Now()) {
		l, err := h.connectDirect(ctx, to.Addr, id, lower)
		if err == nil {
			return h.opened(l, to.Addr, lower)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrBroken) && !errors.Is(err, ErrStalled) {
			return nil, err
		}
		direct = fmt.Errorf("by %s: %w", to.Addr, err)
	}
	stop, cancel := context.WithTimeout(ctx, h.cfg.Dial)
	defer cancel()
	s, err := h.p2p.NewStream(stop, id, protoChunks)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, errors.Join(direct, fmt.Errorf("by libp2p: %w", err)))
	}
	if direct != nil {
		h.detours.note(to, time.Now().Add(h.cfg.Fallback))
		h.tally.add(to.ID, func(t *Traffic) { t.Fallbacks++ })
		if f := h.cfg.Trace.Fallback; f != nil {
			f(to.ID, direct)
		}
	}
	return h.opened(newLink(streamTransport{s}, Stream, to.ID), to.Addr, lower)
}

// opened enters a link that this node made.
func (h *Host) opened(l *link, addr string, lower bool) (*link, error) {
	l.addr, l.lower = addr, lower
	if !h.enter(l) {
		l.Close()
		return nil, ErrClosed
	}
	return l, nil
}

func (h *Host) connectDirect(ctx context.Context, addr string, id p2ppeer.ID, lower bool) (*link, error) {
	dial, cancel := context.WithTimeout(ctx, h.cfg.Dial)
	defer cancel()
	var d net.Dialer
	d.KeepAliveConfig = keepAlive
	if lower {
		d.Control = shortBuffer
	}
	conn, err := d.DialContext(dial, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	tcp := conn.(*net.TCPConn)
	ctx, cancel = context.WithTimeout(ctx, h.cfg.Handshake)
	defer cancel()
	// A cancelled context has no deadline that would end what waits for tcp.
	defer context.AfterFunc(ctx, func() { tcp.Close() })()
	var l *link
	if h.cfg.Plain {
		var k ticket
		if k, err = h.askTicket(ctx, id); err == nil {
			l, err = dialPlain(ctx, tcp, k, h.cfg.Identity.id, id)
		}
	} else {
		l, err = h.dialSecure(ctx, tcp, id)
	}
	if err != nil {
		tcp.Close()
		return nil, err
	}
	return l, nil
}

// keepAlive notices a machine that is gone within about ten seconds.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// detours remembers the bulk listeners that could not be reached although the
// node answers by libp2p.
type detours struct {
	mu    sync.Mutex
	until map[Target]time.Time // guarded by mu
}

// maxDetours bounds what is remembered; more than that is forgotten at once.
const maxDetours = 4096

func (d *detours) active(to Target, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	until, ok := d.until[to]
	if ok && now.After(until) {
		delete(d.until, to)
		return false
	}
	return ok
}

func (d *detours) note(to Target, until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.until) >= maxDetours {
		clear(d.until)
	}
	d.until[to] = until
}
