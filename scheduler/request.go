package scheduler

import (
	"bytes"
	"sync"
	"time"

	"graze/chunk"
)

// A miss is a stretch of a chunk that has to be fetched for someone.
type miss struct {
	span   chunk.Span
	number uint32 // of the span in the layout, for a reader
	part   int    // index of the chunk in span.Parts
	dst    []byte // where the bytes go
	at     int32  // offset of the first byte in the chunk
	got    bool   // dst is filled; guarded by the request's mu until it is done
}

func (m *miss) ref() chunk.Ref { return m.span.Parts[m.part].Ref }

// A request is one party that waits for some chunks: a reader, a prefetch, a run
// that needs its window, or another node.
type request struct {
	class chunk.Class
	// level is that of the request: it waits on work of higher levels only.
	level    int
	via      []chunk.PeerID // of another node's request
	deadline time.Time      // until when its owner waits; zero if that is not known

	// notify, for another node's request, is called as each chunk is settled: with
	// its bytes, which are the receiver's to keep, or nil if the store has it, or
	// with the error. It does not block. Nothing else happens then.
	notify func(m *miss, p []byte, err error)
	// tolerant: the request goes on when one of its chunks has failed.
	tolerant bool
	// loose: nobody waits for it.
	loose bool
	// once: a failed try ends the request. Runs use it for their windows: they
	// must not keep their slots while the window waits to be tried again.
	once bool
	// wants are the chunks that the request has joined; guarded by Scheduler.mu.
	wants []*want
	// done is closed when all chunks were settled or one has failed.
	done chan struct{}

	mu      sync.Mutex
	left    bool  // guarded by mu; the buffers belong to their owner again
	pending int   // guarded by mu; chunks not settled
	err     error // guarded by mu until done is closed
}

func newRequest(class chunk.Class, n int) *request {
	return &request{class: class, level: ownLevel, wants: make([]*want, 0, n), done: make(chan struct{}), pending: n}
}

// deliver gives the whole chunk p to who asked; kept says that the store has it
// too.
func (a ask) deliver(p []byte, kept bool) {
	q := a.req
	switch {
	case q.loose:
	case q.notify != nil && kept:
		q.notify(a.miss, nil, nil)
	case q.notify != nil:
		q.notify(a.miss, bytes.Clone(p), nil)
	case a.miss.dst == nil:
		q.stored()
	default:
		q.copy(a.miss, p)
	}
}

// stored tells who asked that the store has the chunk.
func (a ask) stored() {
	switch {
	case a.req.loose:
	case a.req.notify != nil:
		a.req.notify(a.miss, nil, nil)
	default:
		a.req.stored()
	}
}

// fail tells who asked that the chunk will not come.
func (a ask) fail(err error) {
	switch {
	case a.req.loose:
	case a.req.notify != nil:
		a.req.notify(a.miss, nil, err)
	default:
		a.req.fail(err)
	}
}

// copy copies m's stretch out of the whole chunk p, unless the request's owner
// has left. The owner can't leave during the copy.
func (q *request) copy(m *miss, p []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.left {
		return
	}
	copy(m.dst, p[m.at:])
	m.got = true
	q.settleLocked()
}

// stored settles one chunk that the store has; the owner reads it there.
func (q *request) stored() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settleLocked()
}

func (q *request) settleLocked() {
	if q.pending--; q.pending == 0 && (q.err == nil || q.tolerant) {
		close(q.done)
	}
}

// fail ends the request with err, if it has not ended yet. One that is tolerant
// keeps its first failure and goes on.
func (q *request) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tolerant {
		if q.err == nil {
			q.err = err
		}
		q.settleLocked()
		return
	}
	if q.err == nil && q.pending > 0 {
		q.err = err
		close(q.done)
	}
}

// leave takes the buffers back: nothing is written to them after it returned.
func (q *request) leave() {
	q.mu.Lock()
	q.left = true
	q.mu.Unlock()
}
