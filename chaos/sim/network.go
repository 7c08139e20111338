package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"graze/chunk"
	"graze/scheduler"
)

var (
	errReset  = errors.New("connection reset")
	errSilent = errors.New("the peer is silent")
)

// silence is how long a peer may say nothing before its connection is given up.
const silence = 3 * time.Second

// A frame is an answer, or a piece of the body of the last one.
type frame struct {
	answer *scheduler.PeerAnswer
	p      []byte
	end    bool
}

// Fetch implements scheduler.Peers.
func (n *Node) Fetch(ctx context.Context, to chunk.PeerID, req *scheduler.PeerRequest, got func(*scheduler.PeerAnswer, io.Reader) error) error {
	n.c.step()
	m := n.c.byID[to]
	if n.c.cut(n, m) {
		if err := sleep(ctx, silence); err != nil {
			return err
		}
		return errSilent
	}
	if err := sleep(ctx, 2*n.c.latency(n, m)); err != nil {
		return err
	}
	s, dead := m.scheduler()
	_, gone := n.scheduler()
	if s == nil {
		return errReset
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn := &conn{c: n.c, client: n, server: m, ctx: ctx, class: req.Class, frames: make(chan frame, 4)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn.serve(s, req)
	}()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-dead:
			cancel(errReset)
		case <-gone:
			cancel(errReset)
		case <-ctx.Done():
		}
	}()
	err := conn.receive(got)
	cancel(nil)
	<-served
	<-watched
	return err
}

// A conn is one request and its answers. It implements scheduler.Responder.
type conn struct {
	c              *Cluster
	client, server *Node
	ctx            context.Context
	class          chunk.Class
	frames         chan frame
}

func (c *conn) serve(s *scheduler.Scheduler, req *scheduler.PeerRequest) {
	c.c.step()
	if s.Serve(c.ctx, c.client.id, req, c) == nil {
		c.send(frame{end: true})
	}
	close(c.frames)
}

func (c *conn) send(f frame) error {
	c.c.step()
	if c.c.cut(c.client, c.server) {
		<-c.ctx.Done()
		return errSilent
	}
	select {
	case c.frames <- f:
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// Answer implements scheduler.Responder.
func (c *conn) Answer(a *scheduler.PeerAnswer) error { return c.send(frame{answer: a}) }

// Section implements scheduler.Responder. The stores have no files.
func (c *conn) Section(int, int, scheduler.Section) error { return errors.ErrUnsupported }

// Bytes implements scheduler.Responder.
func (c *conn) Bytes(item, part int, p []byte) error {
	if c.server.lies.Load() {
		p = append([]byte(nil), p...)
		p[len(p)/2] ^= 4
	}
	a := &scheduler.PeerAnswer{Item: item, Part: part, Status: scheduler.StatusBytes, Size: int32(len(p))}
	if err := c.send(frame{answer: a}); err != nil {
		return err
	}
	for len(p) > 0 {
		k := min(piece, len(p))
		if err := c.server.up.carry(c.ctx, c.class, k); err != nil {
			return err
		}
		if err := c.send(frame{p: p[:k]}); err != nil {
			return err
		}
		p = p[k:]
	}
	return nil
}

// receive gives answers to got as they come.
func (c *conn) receive(got func(*scheduler.PeerAnswer, io.Reader) error) error {
	for {
		f, err := c.next()
		switch {
		case err != nil:
			return err
		case f.end:
			return nil
		case f.answer == nil:
			return fmt.Errorf("%d bytes that belong to no answer", len(f.p))
		}
		var body io.Reader
		if f.answer.Status == scheduler.StatusBytes {
			body = &answerBody{c: c, left: int(f.answer.Size)}
		}
		if err := got(f.answer, body); err != nil {
			return err
		}
	}
}

func (c *conn) next() (frame, error) {
	tick := time.NewTimer(silence)
	defer tick.Stop()
	for {
		select {
		case f, ok := <-c.frames:
			if !ok {
				if err := context.Cause(c.ctx); err != nil {
					return frame{}, err
				}
				return frame{}, errReset
			}
			return f, nil
		case <-tick.C:
			// A node that works on a request says so, unless nothing passes.
			if c.c.cut(c.client, c.server) {
				return frame{}, errSilent
			}
			tick.Reset(silence)
		case <-c.ctx.Done():
			return frame{}, context.Cause(c.ctx)
		}
	}
}

// answerBody is the body of an answer. It arrives as the client's link allows.
type answerBody struct {
	c    *conn
	left int
	p    []byte
}

func (b *answerBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	if len(b.p) == 0 {
		f, err := b.c.next()
		if err != nil {
			return 0, err
		}
		if err := b.c.client.down.carry(b.c.ctx, noClass, len(f.p)); err != nil {
			return 0, err
		}
		b.c.c.count(b.c.server, b.c.client, len(f.p))
		b.p = f.p
	}
	n := copy(p, b.p)
	b.p, b.left = b.p[n:], b.left-n
	return n, nil
}
