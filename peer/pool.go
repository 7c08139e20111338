package peer

import (
	"context"
	"slices"
	"sync"
	"time"

	"graze/chunk"
	"graze/wire"
)

// Lanes keep requests apart that may wait for each other; see the package
// comment.
const (
	laneHeld  = 0
	laneHome0 = 1
	laneHome1 = 2
	numLanes  = 3
)

func laneOf(q *wire.Request) int {
	switch {
	case q.Mode != wire.Home:
		return laneHeld
	case q.Level == 0:
		return laneHome0
	}
	return laneHome1
}

// A pool keeps the connections to other nodes and hands out as many at a time as
// each lane may use.
type pool struct {
	conns int // most per peer and lane

	mu     sync.Mutex
	closed bool                      // guarded by mu
	peers  map[chunk.PeerID]*portion // guarded by mu; those with anything in them
}

// A portion is what the pool has of one peer.
type portion struct {
	idle  []*link // the latest last
	lanes [numLanes]lane
}

type lane struct {
	busy    int
	waiting [chunk.NumClasses][]chan struct{}
}

// limit returns how many connections of a lane a class may fill. The last one is
// kept for those that a reader waits for.
func (p *pool) limit(c chunk.Class) int {
	if c >= chunk.Prefetch {
		return max(1, p.conns-1)
	}
	return p.conns
}

// enter waits for a turn in a lane. It returns an idle connection to addr, or
// nil if one has to be made. Each enter needs a leave.
func (p *pool) enter(ctx context.Context, id chunk.PeerID, addr string, n int, class chunk.Class) (*link, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	q := p.peers[id]
	if q == nil {
		q = &portion{}
		p.peers[id] = q
	}
	if ln := &q.lanes[n]; ln.busy >= p.limit(class) || ln.mustYield(class) {
		turn := make(chan struct{})
		ln.waiting[class] = append(ln.waiting[class], turn)
		p.mu.Unlock()
		if err := p.wait(ctx, id, q, n, class, turn); err != nil {
			return nil, err
		}
		p.mu.Lock()
	} else {
		ln.busy++
	}
	defer p.mu.Unlock()
	if p.closed {
		p.leaveLocked(id, q, n)
		return nil, ErrClosed
	}
	return q.popIdleLocked(addr, class != chunk.Demand), nil
}

// mustYield reports whether somebody as urgent as class, or more so, waits.
func (ln *lane) mustYield(class chunk.Class) bool {
	for _, w := range ln.waiting[:class+1] {
		if len(w) > 0 {
			return true
		}
	}
	return false
}

// wait waits for turn, which is closed by whoever has counted it as busy.
func (p *pool) wait(ctx context.Context, id chunk.PeerID, q *portion, n int, class chunk.Class, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &q.lanes[n].waiting[class]
	if i := slices.Index(*w, turn); i >= 0 {
		*w = slices.Delete(*w, i, i+1)
		q.lanes[n].grantLocked(p) // others may have stood behind this one
		p.forgetLocked(id, q)
	} else { // the turn came at the same moment
		p.leaveLocked(id, q, n)
	}
	return context.Cause(ctx)
}

// popIdleLocked returns the connection to addr that was used last. One for lower
// classes does for a reader too, which need not wait for a new one then. Those to
// an address that the peer had before are closed.
func (q *portion) popIdleLocked(addr string, lower bool) *link {
	q.idle = slices.DeleteFunc(q.idle, func(l *link) bool {
		if l.addr != addr {
			l.Close()
		}
		return l.addr != addr
	})
	best := -1
	for i, l := range q.idle {
		if l.lower == lower || !lower && (best < 0 || q.idle[best].lower) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	l := q.idle[best]
	q.idle = slices.Delete(q.idle, best, best+1)
	return l
}

// leave ends a turn; l, if it is not nil, is kept for later.
func (p *pool) leave(id chunk.PeerID, n int, l *link, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.peers[id]
	if l != nil {
		if p.closed {
			l.Close()
		} else {
			l.idleSince = now
			q.idle = append(q.idle, l)
		}
	}
	p.leaveLocked(id, q, n)
}

func (p *pool) leaveLocked(id chunk.PeerID, q *portion, n int) {
	q.lanes[n].busy--
	q.lanes[n].grantLocked(p)
	p.forgetLocked(id, q)
}

// grantLocked gives turns to those who wait, the most urgent first.
func (ln *lane) grantLocked(p *pool) {
	for class := range chunk.Class(chunk.NumClasses) {
		w := &ln.waiting[class]
		for len(*w) > 0 && ln.busy < p.limit(class) {
			ln.busy++
			close((*w)[0])
			*w = (*w)[1:]
		}
		if len(*w) > 0 {
			return
		}
	}
}

// forgetLocked drops a portion that has nothing in it.
func (p *pool) forgetLocked(id chunk.PeerID, q *portion) {
	if len(q.idle) > 0 {
		return
	}
	for i := range q.lanes {
		if q.lanes[i].busy > 0 {
			return
		}
		for _, w := range q.lanes[i].waiting {
			if len(w) > 0 {
				return
			}
		}
	}
	delete(p.peers, id)
}

// drop closes the idle connections of one peer.
func (p *pool) drop(id chunk.PeerID) {
	p.mu.Lock()
	var idle []*link
	if q := p.peers[id]; q != nil {
		idle, q.idle = q.idle, nil
		p.forgetLocked(id, q)
	}
	p.mu.Unlock()
	for _, l := range idle {
		l.Close()
	}
}

// reap closes the connections that have been idle since before then, and all
// idle ones once the pool is closed.
func (p *pool) reap(then time.Time) {
	var old []*link
	p.mu.Lock()
	for id, q := range p.peers {
		q.idle = slices.DeleteFunc(q.idle, func(l *link) bool {
			if !p.closed && !l.idleSince.Before(then) {
				return false
			}
			old = append(old, l)
			return true
		})
		p.forgetLocked(id, q)
	}
	p.mu.Unlock()
	for _, l := range old {
		l.Close()
	}
}

// close fails all who come later, wakes those who wait and closes what is idle.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for _, q := range p.peers {
		for i := range q.lanes {
			for class := range q.lanes[i].waiting {
				for _, turn := range q.lanes[i].waiting[class] {
					q.lanes[i].busy++
					close(turn)
				}
				q.lanes[i].waiting[class] = nil
			}
		}
	}
	p.mu.Unlock()
	p.reap(time.Time{})
}
