package scheduler

import (
	"context"
	"sync"
	"testing"
	"time"

	"graze/chunk"
)

// TestHomeAndOriginGone has a node stand in for a home that can't be reached, while
// the origin does not answer either, and readers come and go. What looks for its
// chunks at the homes again, and finds nobody to ask, comes back to the same fetch.
func TestHomeAndOriginGone(t *testing.T) {
	c := &fakeCluster{
		route: Route{Cluster: []chunk.PeerID{"a", "self"}},
		peers: map[chunk.PeerID]fakePeer{"a": breaks()},
	}
	const spans = 8
	clusterBubble(t, c, imageSpec{files: []int64{spans * span}}, Config{ReadDeadline: 5 * time.Minute, Runs: 1}, func(t *testing.T, g *rig) {
		g.origin.latency = 300 * time.Millisecond // so that fetches wait in the queue
		begin := time.Now()
		g.origin.fault = func(_ int, _ originRequest, p []byte) ([]byte, error) {
			if time.Since(begin) < time.Minute {
				return nil, chunk.ErrUnavailable
			}
			return p, nil
		}
		var wg sync.WaitGroup
		for i := range 3 * spans {
			wg.Go(func() {
				at := int64(i%spans) * span
				if i < spans {
					g.mustRead(1, at, span)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Second)
				defer cancel()
				_ = g.read(ctx, 1, at, span) // which may leave before it has anything
			})
		}
		over := make(chan struct{})
		go func() {
			wg.Wait()
			close(over)
		}()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for done := false; !done; {
			select {
			case <-tick.C:
				g.wantQueuedOnce()
			case <-over:
				done = true
			}
		}
		g.wantIdle()
	})
}

// wantQueuedOnce checks that what waits for a slot waits for one.
func (g *rig) wantQueuedOnce() {
	g.t.Helper()
	g.Scheduler.mu.Lock()
	defer g.Scheduler.mu.Unlock()
	for i := range g.state.lanes {
		q := &g.state.lanes[i].queue
		seen := make(map[*fetch]bool)
		for _, list := range q.blobs {
			for _, f := range list {
				if seen[f] || f.class == none || f.stage != queued {
					g.t.Fatalf("a fetch is in the queue as class %d at stage %d; twice: %v", f.class, f.stage, seen[f])
				}
				seen[f] = true
			}
		}
	}
}
