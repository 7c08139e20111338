package sim

import (
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
	"graze/scheduler"
)

// numbers yields the numbers below n.
func numbers(n int) iter.Seq[uint32] {
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

// prefetch has all nodes fetch spans with a class, each those that spans yields for
// it. It returns what waits until that is done.
func prefetch(t *testing.T, c *Cluster, spans func(*Node) iter.Seq[uint32], class chunk.Class) (wait func()) {
	var wg sync.WaitGroup
	for _, n := range c.Nodes {
		wg.Go(func() {
			s, _ := n.scheduler()
			if err := s.Reader(c.image).Prefetch(t.Context(), spans(n), class); err != nil {
				t.Error(err)
			}
		})
	}
	return wg.Wait
}

// all yields the numbers of all spans.
func all(n *Node) iter.Seq[uint32] { return numbers(n.c.image.NumSpans()) }

// share yields the numbers of the spans whose home in the cluster the node is.
func share(n *Node) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i := range numbers(n.c.image.NumSpans()) {
			span := n.c.image.Span(i)
			var r scheduler.Route
			if n.Route(&span, &r); r.Cluster[0] == n.id && !yield(i) {
				return
			}
		}
	}
}

// compare fails if reads took more than three times as long at the 99th
// percentile beside other traffic as in an idle cluster.
func compare(t *testing.T, idle, busy []time.Duration) {
	p := func(d []time.Duration, q float64) time.Duration {
		return d[int(q*float64(len(d)-1))].Round(time.Millisecond)
	}
	ratio := p(busy, .99).Seconds() / p(idle, .99).Seconds()
	t.Logf("idle: p50 %v, p99 %v of %d; beside the prefetch: p50 %v, p99 %v of %d, %.2f times",
		p(idle, .5), p(idle, .99), len(idle), p(busy, .5), p(busy, .99), len(busy), ratio)
	if ratio > 3 {
		t.Errorf("the 99th percentile rose from %v to %v", p(idle, .99), p(busy, .99))
	}
}

// Readers share links with the prefetch that all nodes do at full speed, but
// don't wait behind it. It goes on at about the speed that it has alone.
func TestDemandDuringPrefetch(t *testing.T) {
	var idle, busy []time.Duration
	simulateWith(t, 4*nodeRate, func(t *testing.T, c *Cluster) { idle = demandTimes(t, c, 40) })
	simulateWith(t, 4*nodeRate, func(t *testing.T, c *Cluster) {
		begin := time.Now()
		wait := prefetch(t, c, all, chunk.Prefetch)
		time.Sleep(c.FluidLimit() / 25)
		busy = demandTimes(t, c, 40)
		wait()
		if _, slowdown, _ := report(t, c, time.Since(begin)); slowdown > 2 {
			t.Errorf("the prefetch took %.2f times the fluid limit", slowdown)
		}
	})
	compare(t, idle, busy)
}

// What nodes fetch of their own share in advance competes with readers for the
// registry's link alone.
func TestDemandDuringPreheat(t *testing.T) {
	const rate = 2.5e6
	im := NewImage(*seed, Shape{Bytes: *scale * 64 << 20, Chunk: 256 << 10, Chunks: 2})
	times := func(preheat bool) (d []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			c := New(Config{
				Seed: *seed, Nodes: 8, Racks: 2, Image: im, Up: rate, Down: rate, Origin: rate, OriginLatency: 2 * time.Millisecond,
				Scheduler: scheduler.Config{Readahead: -1},
			})
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			demandTimes(t, c, 5) // what a node knows of an idle registry
			wait := func() {}
			if preheat {
				wait = prefetch(t, c, share, chunk.Backfill)
				time.Sleep(time.Second)
			}
			d = demandTimes(t, c, 20)
			wait()
		})
		return d
	}
	compare(t, times(false), times(true))
}

// Alone, a prefetch fills the links.
func TestPrefetchAlone(t *testing.T) {
	for _, origin := range []int64{nodeRate, 4 * nodeRate} {
		simulateWith(t, origin, func(t *testing.T, c *Cluster) {
			begin := time.Now()
			prefetch(t, c, all, chunk.Prefetch)()
			// The first and the last chunks weigh more in a small image.
			limit := 1.5
			if *scale < 4 {
				limit = 2
			}
			if _, slowdown, _ := report(t, c, time.Since(begin)); slowdown > limit {
				t.Errorf("it took %.2f times the fluid limit", slowdown)
			}
		})
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
