package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"graze/image/imagetest"
)

// demandRate is what links carry when readers are compared with and without other
// traffic. In a whole run it is so little that the processors have time to spare.
func demandRate() string {
	if os.Getenv(wholeClusterEnv) != "" {
		return "20mbit"
	}
	return "60mbit"
}

// TestClusterDemand reads a little of many files, on all nodes at the same time,
// first while nothing else goes on and then while every node fetches its share of
// a large image in advance, as fast as it can.
func TestClusterDemand(t *testing.T) {
	ctx := waiting(t)
	c := newCluster(t, clusterShape{nodes: 8, racks: 2, rate: demandRate(), origin: demandRate(), encrypt: true})
	const files = 80
	wanted := func(yield func(imagetest.Member) bool) {
		for i := range files {
			if !yield(randomFile(fmt.Sprintf("wanted/%03d", i), 1<<20)) {
				return
			}
		}
	}
	// The order is not that of the layer, which would be read ahead of.
	order := rand.New(rand.NewPCG(1, 2)).Perm(files)
	small := c.reg.publish(t, "wanted", []imagetest.Layer{{Name: "wanted", Members: wanted}})
	large := c.reg.publish(t, "ahead", []imagetest.Layer{{Name: "ahead", Members: imagetest.Members(randomFile("ahead", 48<<20))}})
	c.startAll(t, ctx)
	mountAll(t, ctx, c.nodes, small)
	list := make([]wantedFile, files)
	for i, at := range order {
		list[i] = small.files[at]
	}
	idle := c.demand(t, ctx, list[:files/2])

	before := c.net.traffic(t)
	preheated := make(chan struct{})
	began := time.Now()
	var took time.Duration
	go func() {
		defer close(preheated)
		graze(t, "preheat", "--state", c.nodes[0].state, large.ref)
		took = time.Since(began)
	}()
	busy := c.demand(t, ctx, list[files/2:])
	during := "still"
	select {
	case <-preheated:
		during = "no longer"
	default:
	}
	tr := c.net.traffic(t).since(before)
	<-preheated
	t.Logf("the large image was %s being fetched at the end of the reads; that took %.1f s, %.2f times as long as the registry's link needs",
		during, took.Seconds(), took.Seconds()*mbit(c.shape.origin)/float64(large.size))
	t.Logf("idle: %v; busy, while the links carried %d bytes: %v; p99 %.2f times", idle, tr.received, busy, busy.p99.Seconds()/idle.p99.Seconds())
	if os.Getenv(wholeClusterEnv) != "" && busy.p99 > 3*idle.p99 {
		t.Errorf("reads took %v at p99 while images were fetched, and %v while nothing was", busy.p99, idle.p99)
	}
	c.checkEgress(t, large, 1.05)
	c.unmountAll(t, ctx)
}

// waits are how long reads took.
type waits struct {
	n             int
	p50, p90, p99 time.Duration
}

// String implements fmt.Stringer.
func (w waits) String() string {
	return fmt.Sprintf("%d reads, p50 %d ms, p90 %d ms, p99 %d ms", w.n, w.p50.Milliseconds(), w.p90.Milliseconds(), w.p99.Milliseconds())
}

// demand reads the beginning of files, one after the other, on all nodes at the
// same time.
func (c *testCluster) demand(t testing.TB, ctx context.Context, files []wantedFile) waits {
	t.Helper()
	var mu sync.Mutex
	var all []time.Duration
	each(t, c.nodes, func(n *clusterNode) error {
		for _, f := range files {
			begin := time.Now()
			if err := n.readStart(ctx, f); err != nil {
				return err
			}
			mu.Lock()
			all = append(all, time.Since(begin))
			mu.Unlock()
		}
		return nil
	})
	slices.Sort(all)
	return waits{len(all), all[len(all)/2], all[len(all)*9/10], all[len(all)*99/100]}
}

// readStart reads and checks the first bytes of a file.
func (n *clusterNode) readStart(ctx context.Context, want wantedFile) error {
	stop := context.AfterFunc(ctx, n.kill)
	defer stop()
	f, err := os.Open(filepath.Join(n.mnt, want.path))
	if err != nil {
		return err
	}
	defer f.Close()
	p := make([]byte, 4096)
	if _, err := f.ReadAt(p, 0); err != nil {
		return err
	}
	if !slices.Equal(p, randomStart(want.path, len(p))) {
		return wrongBytes{want.path}
	}
	return nil
}
