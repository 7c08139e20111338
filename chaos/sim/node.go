package sim

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"graze/chunk"
	"graze/directory"
	"graze/scheduler"
)

// A Node is one member of a simulated cluster. Its exported methods may be
// called from any goroutine.
type Node struct {
	c     *Cluster
	id    chunk.PeerID
	place scheduler.Place
	store *store
	up    link
	down  link
	lies  atomic.Bool
	salt  uint64 // if not 0, the node has its own idea of who is home of what

	mu    sync.Mutex
	sched *scheduler.Scheduler // nil while the node is down

	directory *directory.Directory // nil for a node without
	dead      chan struct{}        // closed when the node is killed
	kill      context.CancelFunc
	end       chan struct{} // closed when Run has returned
	view      []*Node
	former    []*Node
	past      time.Time // until when former counts
	epoch     uint64
}

// Start starts the node with what its store holds.
func (n *Node) Start() error {
	n.mu.Lock()
	err := n.newDirectory()
	n.mu.Unlock()
	if err != nil {
		return err
	}
	s, err := scheduler.New(n.store, originOf{n.c.registry, n}, n.c.image, n.c.config(n))
	if err != nil {
		return err
	}
	ctx, kill := context.WithCancel(context.Background())
	end := make(chan struct{})
	n.mu.Lock()
	n.sched, n.kill, n.end, n.dead = s, kill, end, make(chan struct{})
	n.mu.Unlock()
	go func() {
		defer close(end)
		var wg sync.WaitGroup
		if d := n.directory; d != nil {
			wg.Go(func() { d.Run(ctx) })
		}
		s.Run(ctx) // it fails only if it is called twice
		wg.Wait()
	}()
	return nil
}

// Kill ends the node. Its connections break; its store stays.
func (n *Node) Kill() {
	n.mu.Lock()
	kill, end := n.kill, n.end
	if n.sched != nil {
		n.sched = nil
		close(n.dead)
	}
	n.mu.Unlock()
	kill()
	<-end
}

// scheduler returns the node's scheduler, and what is closed when it dies.
func (n *Node) scheduler() (*scheduler.Scheduler, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sched, n.dead
}

// See makes members all that the node believes in.
func (n *Node) See(members []*Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.view != nil {
		n.former, n.past = n.view, time.Now().Add(10*time.Minute)
	}
	n.view = slices.Clone(members)
	n.epoch = n.c.nextView()
}

// Stats returns the statistics of the node's scheduler, which must be running.
func (n *Node) Stats() scheduler.Stats {
	s, _ := n.scheduler()
	return s.Stats()
}

// Self implements scheduler.Cluster.
func (n *Node) Self() chunk.PeerID { return n.id }

// Place implements scheduler.Cluster.
func (n *Node) Place(id chunk.PeerID) (scheduler.Place, bool) {
	m := n.c.byID[id]
	if m == nil {
		return scheduler.Place{}, false
	}
	return m.place, true
}

// Share implements scheduler.Cluster.
func (n *Node) Share() float64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return 1 / float64(len(n.view))
}

// ranks is how many homes of each kind are named.
const ranks = 4

// Route implements scheduler.Cluster.
func (n *Node) Route(span *chunk.Span, r *scheduler.Route) {
	n.mu.Lock()
	view, former, past := n.view, n.former, n.past
	r.Epoch = n.epoch
	n.mu.Unlock()
	key := mix(homeKey(span) ^ n.salt)
	var rack []*Node
	for _, m := range view {
		if m.place == n.place {
			rack = append(rack, m)
		}
	}
	if len(rack) >= n.c.cfg.MinRack {
		r.Rack = appendHomes(r.Rack, rack, key, ranks)
	}
	r.Cluster = appendHomes(r.Cluster, view, key, ranks)
	if time.Now().Before(past) {
		for _, id := range appendHomes(nil, former, key, 2) {
			if !slices.Contains(r.Cluster[:1], id) {
				r.Former = append(r.Former, id)
			}
		}
	}
}

func homeKey(s *chunk.Span) uint64 {
	off := s.Off
	if s.Len < 256<<10 {
		off &^= 4<<20 - 1
	}
	h := uint64(14695981039346656037)
	for _, b := range []byte(s.Blob) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return mix(h ^ uint64(off))
}

// mix spreads the bits of x over all bits of the result.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// appendHomes appends the names of the k nodes that score highest for key.
func appendHomes(dst []chunk.PeerID, nodes []*Node, key uint64, k int) []chunk.PeerID {
	type scored struct {
		score uint64
		id    chunk.PeerID
	}
	best := make([]scored, 0, k+1)
	for _, m := range nodes {
		h := key
		for _, b := range []byte(m.id) {
			h = mix(h ^ uint64(b))
		}
		i := len(best)
		for i > 0 && best[i-1].score < h {
			i--
		}
		if i < k {
			best = slices.Insert(best, i, scored{h, m.id})
			best = best[:min(len(best), k)]
		}
	}
	for _, b := range best {
		dst = append(dst, b.id)
	}
	return dst
}

// Read reads chunks of the image in the given order, width at a time, and checks
// their bytes. It returns the first failure.
func (n *Node) Read(ctx context.Context, order []int, width int) error {
	s, _ := n.scheduler()
	if s == nil {
		return fmt.Errorf("%s is down", n.id)
	}
	r := s.Reader(n.c.image)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(order) {
					return
				}
				if err := n.readChunk(ctx, r, order[i]); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return context.Cause(ctx)
}

func (n *Node) readChunk(ctx context.Context, r *scheduler.Reader, i int) error {
	want := n.c.image.Bytes(i)
	p := make([]byte, len(want))
	if _, err := r.ReadAt(ctx, 1, p, int64(i)*int64(n.c.image.size)); err != nil {
		return fmt.Errorf("%s reads chunk %d: %w", n.id, i, err)
	}
	if !bytes.Equal(p, want) {
		return fmt.Errorf("%s reads wrong bytes of chunk %d", n.id, i)
	}
	return nil
}

// A store keeps chunks in memory, and never more than once in a cluster: it
// points into the image.
type store struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
	intern func(v chunk.Verified) []byte
}

func (s *store) ReadAt(id chunk.ID, p []byte, off int64) error {
	s.mu.Lock()
	c, ok := s.chunks[id]
	s.mu.Unlock()
	if !ok {
		return chunk.ErrNotFound
	}
	copy(p, c[off:])
	return nil
}

func (s *store) Has(id chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.chunks[id]
	return ok
}

func (s *store) Put(v chunk.Verified) error {
	p := s.intern(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chunks[v.Ref().ID] = p
	return nil
}

// Wipe empties the node's store.
func (n *Node) Wipe() {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	clear(n.store.chunks)
}
