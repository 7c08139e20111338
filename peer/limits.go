package peer

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"graze/chunk"
)

// A gate counts the requests being served, and refuses those over a limit.
type gate struct {
	most, mostOfPeer int

	mu    sync.Mutex
	total [numLanes]int                   // guarded by mu
	peers map[chunk.PeerID]*[numLanes]int // guarded by mu; those with any
}

func (g *gate) enter(id chunk.PeerID, lane int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.peers[id]
	if g.total[lane] >= g.most || n != nil && n[lane] >= g.mostOfPeer {
		return false
	}
	if n == nil {
		n = new([numLanes]int)
		g.peers[id] = n
	}
	n[lane]++
	g.total[lane]++
	return true
}

func (g *gate) leave(id chunk.PeerID, lane int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.peers[id]
	n[lane]--
	g.total[lane]--
	if *n == [numLanes]int{} {
		delete(g.peers, id)
	}
}

// serving returns the number of requests that are in.
func (g *gate) serving() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, lane := range g.total {
		n += lane
	}
	return n
}

// A window bounds the bytes of bodies being sent.
type window struct {
	all, lower *semaphore.Weighted
}

func newWindow(n int64) *window {
	return &window{semaphore.NewWeighted(n), semaphore.NewWeighted(n / 4 * 3)}
}

// enter waits for room for n bytes. Each enter needs a leave.
func (w *window) enter(ctx context.Context, class chunk.Class, n int64) error {
	if class >= chunk.Prefetch {
		if err := w.lower.Acquire(ctx, n); err != nil {
			return err
		}
	}
	if err := w.all.Acquire(ctx, n); err != nil {
		if class >= chunk.Prefetch {
			w.lower.Release(n)
		}
		return err
	}
	return nil
}

func (w *window) leave(class chunk.Class, n int64) {
	w.all.Release(n)
	if class >= chunk.Prefetch {
		w.lower.Release(n)
	}
}

// A pacer keeps bodies to a rate. Whoever waits does so in the order of classes:
// one caller at a time draws from the bucket, a quantum at a time, and then
// hands over to the most urgent one.
type pacer struct {
	bucket *rate.Limiter // nil: no limit

	mu      sync.Mutex
	drawing bool                              // guarded by mu
	waiting [chunk.NumClasses][]chan struct{} // guarded by mu
}

// quantum is what a more urgent body waits for at most.
const quantum = 256 << 10

func newPacer(bytesPerSecond int64) *pacer {
	if bytesPerSecond == 0 {
		return &pacer{}
	}
	return &pacer{bucket: rate.NewLimiter(rate.Limit(bytesPerSecond), quantum)}
}

// wait returns when n bytes may be sent.
func (p *pacer) wait(ctx context.Context, class chunk.Class, n int64) error {
	if p.bucket == nil {
		return nil
	}
	for n > 0 {
		if err := p.turn(ctx, class); err != nil {
			return err
		}
		k := min(n, quantum)
		err := p.bucket.WaitN(ctx, int(k))
		p.next()
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// turn waits until the caller is the one that draws.
func (p *pacer) turn(ctx context.Context, class chunk.Class) error {
	p.mu.Lock()
	if !p.drawing {
		p.drawing = true
		p.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	p.waiting[class] = append(p.waiting[class], turn)
	p.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	w := &p.waiting[class]
	for i, t := range *w {
		if t == turn {
			*w = append((*w)[:i:i], (*w)[i+1:]...)
			p.mu.Unlock()
			return context.Cause(ctx)
		}
	}
	p.mu.Unlock()
	p.next() // the turn came at the same moment
	return context.Cause(ctx)
}

// next ends a turn.
func (p *pacer) next() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for class := range p.waiting {
		if w := &p.waiting[class]; len(*w) > 0 {
			close((*w)[0])
			*w = (*w)[1:]
			return
		}
	}
	p.drawing = false
}
