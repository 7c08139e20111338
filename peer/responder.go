package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"graze/chunk"
	"graze/wire"
)

// A Section is a chunk in a file. The file is only read, at offsets.
type Section interface {
	File() *os.File
	Offset() int64
	Len() int64
}

// A Handler serves the requests of other nodes. It answers by w, from any number
// of goroutines, which must have ended when it returns. ctx ends when the client
// is gone or its deadline has passed. Parts without an answer are answered
// Failed, with the error that is returned, which the client can read.
type Handler interface {
	ServeChunks(ctx context.Context, from chunk.PeerID, req *wire.Request, w *Responder) error
}

// aliveEvery is how long a server says nothing at most.
const aliveEvery = time.Second

// A Responder sends the answers to one request. Its methods may be called at the
// same time; each returns once its answer has been handed to the system. After
// an error of the connection all of them fail.
type Responder struct {
	host  *Host
	link  *link
	ctx   context.Context // of the request: ends what a method waits for
	class chunk.Class

	mu    sync.Mutex
	book  *ledger     // guarded by mu
	err   error       // guarded by mu; of the connection
	done  bool        // guarded by mu; End was sent
	last  time.Time   // guarded by mu; when an answer was sent
	timer *time.Timer // guarded by mu; calls alive
	sent  int         // guarded by mu; whole bodies
	bytes int64       // guarded by mu; of bodies, whole or not
}

func newResponder(ctx context.Context, h *Host, l *link, q *wire.Request) *Responder {
	w := &Responder{host: h, link: l, ctx: ctx, class: q.Class, book: newLedger(q.Items), last: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(h.cfg.alive, w.alive)
	return w
}

// Bytes answers with a chunk that is in a file.
func (w *Responder) Bytes(item, part int, s Section) error {
	return w.body(item, part, s.Len(), func(l *link) error { return sendSection(l, s, w) })
}

// Data answers with a chunk that is in memory. It does not keep p.
func (w *Responder) Data(item, part int, p []byte) error {
	return w.body(item, part, int64(len(p)), func(l *link) error {
		for len(p) > 0 {
			n, err := l.Write(p[:w.next(l, int64(len(p)))])
			w.wrote(n)
			if err != nil {
				return err
			}
			p = p[n:]
		}
		return nil
	})
}

// Status answers without a body. item and part stand for those in a, and may be
// wire.All; the status must be Redirect, Busy, Absent or Failed.
func (w *Responder) Status(item, part int, a wire.Answer) error {
	a.Item, a.Part = item, part
	if a.Status == wire.Bytes || a.Status == wire.End || a.Status == wire.Alive {
		return fmt.Errorf("peer: %s is no status for Responder.Status", a.Status)
	}
	return w.send(&a, nil)
}

// body waits until n bytes may be sent, and sends them.
func (w *Responder) body(item, part int, n int64, send func(*link) error) error {
	if n <= 0 || n > chunk.MaxSize {
		return fmt.Errorf("peer: a chunk of %d bytes", n)
	}
	if err := w.host.pacer.wait(w.ctx, w.class, n); err != nil {
		return err
	}
	if err := w.host.window.enter(w.ctx, w.class, n); err != nil {
		return err
	}
	defer w.host.window.leave(w.class, n)
	w.host.precedence.begin(w.class)
	defer w.host.precedence.end(w.class)
	return w.send(&wire.Answer{Item: item, Part: part, Status: wire.Bytes, Size: int32(n)}, send)
}

// send writes an answer and its body.
func (w *Responder) send(a *wire.Answer, body func(*link) error) error {
	frame, err := wire.AppendAnswer(nil, a)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return w.err
	case w.done:
		return errors.New("peer: answer after the end of the request")
	}
	if a.Status != wire.End {
		if err := w.book.settle(a); err != nil {
			return fmt.Errorf("peer: %w", err)
		}
	}
	if err := w.writeLocked(frame, body); err != nil {
		w.failLocked(err)
		return w.err
	}
	if a.Status == wire.Bytes {
		w.sent++
	}
	return nil
}

func (w *Responder) writeLocked(frame []byte, body func(*link) error) error {
	w.patient(w.link, int64(len(frame)))
	if err := w.link.writeFrame(frame); err != nil {
		return err
	}
	if body != nil {
		if err := body(w.link); err != nil {
			return err
		}
	}
	if err := w.link.flush(); err != nil {
		return err
	}
	w.last = time.Now()
	return nil
}

// patient gives the client the time to take n more bytes.
func (w *Responder) patient(l *link, n int64) {
	l.SetWriteDeadline(time.Now().Add(w.host.cfg.patience(n)))
}

// next implements meter.
func (w *Responder) next(l *link, left int64) int64 {
	n := min(sendPiece, left)
	if w.class != chunk.Demand {
		n = min(lowerPiece, left)
		w.host.precedence.yield(w.ctx, w.class)
	}
	w.patient(l, n)
	return n
}

// wrote notes that n bytes of a body were handed to the system. The caller holds
// mu.
func (w *Responder) wrote(n int) { w.bytes += int64(n) }

// failLocked ends the connection, on which half an answer may be.
func (w *Responder) failLocked(err error) {
	w.err = ioError(err)
	w.link.Close()
	if !timedOut(err) {
		return
	}
	id := w.link.peer
	w.host.tally.add(id, func(t *Traffic) { t.Cut++ })
	if f := w.host.cfg.Trace.Cut; f != nil {
		f(id, w.err)
	}
}

// alive says that the request is being worked on.
func (w *Responder) alive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done || w.err != nil {
		return
	}
	if silent := time.Since(w.last); silent < w.host.cfg.alive {
		w.timer.Reset(w.host.cfg.alive - silent)
		return
	}
	frame, err := wire.AppendAnswer(nil, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.Alive})
	if err == nil {
		err = w.writeLocked(frame, nil)
	}
	if err != nil {
		w.failLocked(err)
		return
	}
	w.timer.Reset(w.host.cfg.alive)
}

// finish answers what is left and ends the request. It returns the error of the
// connection, which is then closed.
func (w *Responder) finish(err error) error {
	w.mu.Lock()
	left := w.book.left
	w.mu.Unlock()
	if left > 0 {
		reason := "no answer"
		if err != nil {
			reason = wire.CutReason(err.Error())
		}
		w.send(&wire.Answer{Item: wire.All, Part: wire.All, Status: wire.Failed, Reason: reason}, nil)
	}
	err = w.send(&wire.Answer{Item: wire.All, Part: wire.All, Status: wire.End}, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	w.timer.Stop()
	return err
}
