package main

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestClusterChaos has all nodes read an image that none has, while something is
// wrong. All get the right bytes. In a whole run, the registry sends no more than
// is allowed for the fault: what a fault costs depends on the moment at which it
// strikes, which on a busy machine can be any.
func TestClusterChaos(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 12, racks: 3, rate: "60mbit", origin: "60mbit", encrypt: true})
	c.startAll(t, waiting(t))
	all := float64(len(c.nodes))
	for _, row := range []struct {
		name string
		// run does something to the cluster, whose nodes read until reading is
		// done. It returns how often the registry may send the image.
		run func(t *testing.T, ctx context.Context, img *testImage, reading <-chan struct{}) float64
	}{
		{"nothing", func(_ *testing.T, _ context.Context, _ *testImage, reading <-chan struct{}) float64 {
			<-reading
			return 1.05
		}},
		{"slow uplink", func(t *testing.T, _ context.Context, _ *testImage, reading <-chan struct{}) float64 {
			c.slow(t, c.nodes[5], "6mbit")
			<-reading
			c.slow(t, c.nodes[5], c.shape.rate)
			return 1.05
		}},
		{"rack cut off", func(t *testing.T, ctx context.Context, _ *testImage, _ <-chan struct{}) float64 {
			pass(ctx, nil, 500*time.Millisecond)
			must(t, c.net.CutRack(1, true))
			pass(ctx, nil, 6*time.Second)
			must(t, c.net.CutRack(1, false))
			// The others ask again for what the rack took with it.
			return 2
		}},
		{"racks apart", func(t *testing.T, ctx context.Context, _ *testImage, reading <-chan struct{}) float64 {
			pass(ctx, nil, 500*time.Millisecond)
			must(t, c.net.Split(true))
			before := c.net.traffic(t)
			<-reading
			tr := c.net.traffic(t).since(before)
			must(t, c.net.Split(false))
			if tr.crossed > tr.received/100 {
				t.Errorf("%d bytes went across racks that were apart", tr.crossed)
			}
			return float64(c.shape.racks)
		}},
		{"killed", func(t *testing.T, ctx context.Context, img *testImage, reading <-chan struct{}) float64 {
			kills := c.killSome(t, ctx, img, reading)
			t.Logf("%d nodes were killed", kills)
			// One that dies takes with it what it was the first to get.
			return 1.05 + float64(kills)/all
		}},
		{"all restarted", func(t *testing.T, ctx context.Context, img *testImage, reading <-chan struct{}) float64 {
			pass(ctx, reading, time.Second)
			var wg sync.WaitGroup
			for _, n := range c.nodes {
				wg.Go(func() {
					n.kill()
					if err := n.revive(ctx, img); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			return 1.5
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			ctx := waiting(t)
			c.settle(t, ctx)
			c.chaos(t, ctx, row.name, row.run)
		})
	}
	t.Run("liar", func(t *testing.T) {
		ctx := waiting(t)
		c.settle(t, ctx)
		stop := c.startLiar(t, 2, "bytes")
		c.knows(t, ctx, liarName("bytes"))
		c.chaos(t, ctx, "liar", func(t *testing.T, _ context.Context, _ *testImage, reading <-chan struct{}) float64 {
			<-reading
			return 1.05
		})
		deceived := 0
		for _, n := range c.nodes {
			p, err := n.peer(ctx, liarName("bytes"))
			if err != nil {
				t.Fatal(err)
			}
			if p.Corrupt == 0 {
				continue
			}
			deceived++
			if p.State != "quarantined" {
				t.Errorf("%s got %d wrong chunks from the liar and calls it %s", n.name, p.Corrupt, p.State)
			}
		}
		t.Logf("%d nodes got wrong chunks from the liar", deceived)
		if deceived == 0 {
			t.Error("nobody has asked the liar")
		}
		stop()
	})
}

// chaos has all nodes read a new image while run runs.
func (c *testCluster) chaos(t *testing.T, ctx context.Context, name string, run func(*testing.T, context.Context, *testImage, <-chan struct{}) float64) {
	t.Helper()
	// Names of their own: what a tag means is remembered for some seconds.
	img := c.reg.publish(t, strings.ReplaceAll(name, " ", "-"), clusterLayers(name, sized(12<<20)))
	c.reg.forget(t)
	before, begin := c.net.traffic(t), time.Now()
	mountAll(t, ctx, c.nodes, img)
	reading := make(chan struct{})
	var most float64
	var wg sync.WaitGroup
	wg.Go(func() { most = run(t, ctx, img, reading) })
	errs := make([]error, len(c.nodes))
	var readers sync.WaitGroup
	for i, n := range c.nodes {
		readers.Go(func() { errs[i] = n.read(ctx, img.files) })
	}
	readers.Wait()
	close(reading)
	took := time.Since(begin)
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("%s: %v", c.nodes[i].name, err)
		}
	}
	tr := c.net.traffic(t).since(before)
	t.Logf("all read after %.2f s; links: %d bytes received, %.1f %% of them across racks", took.Seconds(), tr.received, 100*tr.share())
	if os.Getenv(wholeClusterEnv) == "" {
		most = math.Inf(1)
	}
	c.checkEgress(t, img, most)
	c.unmountAll(t, ctx)
}

// pass returns after d, or when done or ctx is.
func pass(ctx context.Context, done <-chan struct{}, d time.Duration) {
	select {
	case <-time.After(d):
	case <-done:
	case <-ctx.Done():
	}
}

// killSome kills one node after the other, and brings each back, until reading is
// done. It returns how many.
func (c *testCluster) killSome(t *testing.T, ctx context.Context, img *testImage, reading <-chan struct{}) (kills int) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for {
		pass(ctx, reading, 1500*time.Millisecond)
		select {
		case <-reading:
			return kills
		case <-ctx.Done():
			return kills
		default:
		}
		n := c.nodes[rng.IntN(len(c.nodes))]
		n.kill()
		kills++
		if err := n.revive(ctx, img); err != nil {
			t.Error(err)
			return kills
		}
	}
}

// revive starts a node that was killed, and mounts the image on it again.
func (n *clusterNode) revive(ctx context.Context, img *testImage) error {
	if err := n.start(ctx); err != nil {
		return err
	}
	return n.mount(ctx, img.ref)
}
