package sim

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"graze/chunk"
)

// numbers yields the numbers below n.
func numbers(n int) func(func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for i := range uint32(n) {
			if !yield(i) {
				return
			}
		}
	}
}

// demandTimes has one reader on each node read random chunks one after the
// other for a while, and returns how long each read took, sorted. Chunks that
// the node has by then are left out.
func demandTimes(t *testing.T, c *Cluster, reads int) []time.Duration {
	var mu sync.Mutex
	var times []time.Duration
	var wg sync.WaitGroup
	for i, n := range c.Nodes {
		rng := rand.New(rand.NewPCG(*seed, uint64(i)))
		wg.Go(func() {
			s, _ := n.scheduler()
			r := s.Reader(c.image)
			for range reads {
				k := rng.IntN(c.image.Chunks())
				if n.store.Has(c.image.refs[k].ID) {
					continue
				}
				begin := time.Now()
				if err := n.readChunk(t.Context(), r, k); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				times = append(times, time.Since(begin))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(times)
	return times
}

// Readers share links with the prefetch that all nodes do at full speed, but
// don't wait behind all of it.
func TestDemandDuringPrefetch(t *testing.T) {
	var idle, busy []time.Duration
	simulateWith(t, 4*nodeRate, func(t *testing.T, c *Cluster) { idle = demandTimes(t, c, 40) })
	simulateWith(t, 4*nodeRate, func(t *testing.T, c *Cluster) {
		var wg sync.WaitGroup
		for _, n := range c.Nodes {
			wg.Go(func() {
				s, _ := n.scheduler()
				if err := s.Reader(c.image).Prefetch(t.Context(), numbers(c.image.NumSpans()), chunk.Prefetch); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		busy = demandTimes(t, c, 40)
		begin := time.Now()
		wg.Wait()
		report(t, c, time.Since(begin))
	})
	p := func(d []time.Duration, q float64) time.Duration { return d[int(q*float64(len(d)-1))] }
	t.Logf("idle: p50 %v, p99 %v of %d; during the prefetch: p50 %v, p99 %v of %d",
		p(idle, .5), p(idle, .99), len(idle), p(busy, .5), p(busy, .99), len(busy))
	if p(busy, .99) > 12*p(idle, .99) {
		t.Errorf("the 99th percentile rose from %v to %v", p(idle, .99), p(busy, .99))
	}
}

// Readers outlast a registry that is away, and don't hammer it.
func TestOutage(t *testing.T) {
	simulate(t, func(t *testing.T, c *Cluster) {
		c.CutRegistry(true)
		begin := time.Now()
		time.AfterFunc(20*time.Second, func() { c.CutRegistry(false) })
		d := readAll(t, c, c.Nodes, false)
		report(t, c, d)
		if d := time.Since(begin); d > 45*time.Second {
			t.Errorf("the reads took %v", d)
		}
		if tr := c.Traffic(); tr.Origin > c.image.Size()*105/100 || tr.Requests > 20*c.image.NumSpans() {
			t.Errorf("%d bytes in %d requests", tr.Origin, tr.Requests)
		}
	})
}
