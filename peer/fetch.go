package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"graze/chunk"
	"graze/wire"
)

// Fetch asks a node for chunks and calls got for each answer as it comes. With
// status Bytes, body yields exactly a.Size bytes, which are unverified; what got
// leaves of them is skipped. Each wanted part is answered once, perhaps by an
// answer for All; the statuses Alive and End are not shown.
//
// It returns nil once all parts are answered, got's error as it is, the cause of
// ctx, or a [*FetchError]. The connection is used again only in the first case.
func (h *Host) Fetch(ctx context.Context, to Target, req *wire.Request, got func(a *wire.Answer, body io.Reader) error) error {
	if err := req.Check(); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	h.tally.add(to.ID, func(t *Traffic) { t.RequestsOut++ })
	x := exchange{host: h, req: req, got: got}
	err := x.fetch(ctx, to)
	h.tally.add(to.ID, func(t *Traffic) {
		t.ChunksIn += uint64(x.chunks)
		t.BytesIn += uint64(x.bytes)
		if err != nil && x.gotErr == nil {
			kind := kindOf(err)
			if ctx.Err() != nil {
				kind = KindCanceled // and that is what broke the connection
			}
			t.Errors[kind]++
		}
	})
	switch {
	case err == nil:
		return nil
	case x.gotErr != nil:
		return x.gotErr
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return &FetchError{Peer: to.ID, Chunks: x.chunks, Bytes: x.bytes, Err: err}
}

// An exchange is one request and its answers.
type exchange struct {
	host *Host
	req  *wire.Request
	got  func(*wire.Answer, io.Reader) error

	answered bool // a frame has come
	chunks   int
	bytes    int64
	gotErr   error
}

func (x *exchange) fetch(ctx context.Context, to Target) error {
	h := x.host
	for {
		l, err := h.pool.enter(ctx, to.ID, to.Addr, laneOf(x.req), x.req.Class)
		if err != nil {
			return err
		}
		used := l != nil
		if !used {
			if l, err = h.connect(ctx, to, x.req.Class != chunk.Demand); err != nil {
				h.pool.leave(to.ID, laneOf(x.req), nil, time.Time{})
				return err
			}
		}
		err = x.run(ctx, l)
		if err == nil {
			h.pool.leave(to.ID, laneOf(x.req), l, time.Now())
			return nil
		}
		l.Close()
		h.pool.leave(to.ID, laneOf(x.req), nil, time.Time{})
		if !used || x.answered || !errors.Is(err, ErrBroken) || ctx.Err() != nil {
			return err
		}
		// The node closed the connection while it was idle, or was restarted.
		h.pool.drop(to.ID)
	}
}

// run does the exchange on l.
func (x *exchange) run(ctx context.Context, l *link) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	q := *x.req
	if t, ok := ctx.Deadline(); ok {
		left := min(max(time.Until(t), time.Microsecond), wire.MaxDeadline)
		if q.Deadline == 0 || left < q.Deadline {
			q.Deadline = left
		}
	}
	frame, err := wire.AppendRequest(nil, &q)
	if err != nil {
		return err
	}
	cfg := &x.host.cfg
	l.SetWriteDeadline(time.Now().Add(cfg.patience(int64(len(frame)))))
	if err := l.writeFrame(frame); err != nil {
		return ioError(err)
	}
	if err := l.flush(); err != nil {
		return ioError(err)
	}
	started := time.Now()
	book := newLedger(q.Items)
	for alive := 0; ; {
		if time.Since(started) > cfg.Request {
			return fmt.Errorf("%w: not done after %v", ErrStalled, cfg.Request)
		}
		l.SetReadDeadline(time.Now().Add(cfg.Stall))
		a, err := x.readAnswer(l)
		if err != nil {
			return err
		}
		switch a.Status {
		case wire.Alive:
			if alive++; alive > 16+int(4*time.Since(started)/cfg.alive) {
				return fmt.Errorf("%w: nothing but signs of life", ErrProtocol)
			}
			continue
		case wire.End:
			if book.left > 0 {
				return fmt.Errorf("%w: the end came before %d answers", ErrProtocol, book.left)
			}
			return nil
		}
		if err := book.settle(a); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if err := x.deliver(l, a); err != nil {
			return err
		}
	}
}

func (x *exchange) readAnswer(l *link) (*wire.Answer, error) {
	header, err := l.readFrame(wire.MaxAnswerHeader)
	if err == nil {
		x.answered = true
		var a *wire.Answer
		if a, err = wire.DecodeAnswer(header); err == nil {
			return a, nil
		}
	}
	if errors.Is(err, wire.ErrFrame) || errors.Is(err, ErrProtocol) {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil, ioError(err)
}

// deliver hands an answer to the caller, with its body.
func (x *exchange) deliver(l *link, a *wire.Answer) error {
	b := &body{link: l, left: int64(a.Size), patience: x.host.cfg.patience(int64(a.Size)), stall: x.host.cfg.Stall}
	x.gotErr = x.got(a, b)
	if x.gotErr == nil {
		io.Copy(io.Discard, b) // b keeps its error
	}
	x.bytes += int64(a.Size) - b.left
	if b.err != nil && b.err != io.EOF {
		// Whatever the caller made of it, the cause is that the body ended.
		x.gotErr = nil
		return b.err
	}
	if x.gotErr != nil {
		b.err = io.ErrClosedPipe
		return x.gotErr
	}
	b.err = io.ErrClosedPipe
	if a.Status == wire.Bytes {
		x.chunks++
	}
	return nil
}

// A body reads what follows the header of an answer. Only the time that is spent
// waiting for bytes counts against the sender.
type body struct {
	link     *link
	left     int64
	patience time.Duration // for the rest
	stall    time.Duration // for the next byte
	err      error         // what ended it
}

func (b *body) Read(p []byte) (int, error) {
	if b.err == nil && b.left == 0 {
		b.err = io.EOF
	}
	if b.err != nil {
		return 0, b.err
	}
	p = p[:min(int64(len(p)), b.left)]
	start := time.Now()
	b.link.SetReadDeadline(start.Add(min(b.stall, b.patience)))
	n, err := b.link.r.Read(p)
	b.patience -= time.Since(start)
	b.left -= int64(n)
	if err != nil && b.left > 0 {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		b.err = fmt.Errorf("%w: %d bytes of the body are missing", ioError(err), b.left)
		return n, b.err
	}
	return n, nil
}
