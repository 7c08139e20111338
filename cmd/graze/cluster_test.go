package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"graze/image"
)

// sized returns the size of a test's image, which is five times as large where a
// whole run is asked for.
func sized(n int64) int64 {
	if os.Getenv(wholeClusterEnv) != "" {
		return 5 * n
	}
	return n
}

// coldRate is what links carry when the time that a cold start takes is compared
// with what they allow. In a whole run it is so little that the links are what
// all wait for, and not the processors of the one machine that all nodes share.
func coldRate() string {
	if os.Getenv(wholeClusterEnv) != "" {
		return "10mbit"
	}
	return "40mbit"
}

// waiting returns a context that bounds all that a test waits for.
func waiting(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(sized(int64(patience))))
	t.Cleanup(cancel)
	return ctx
}

// TestClusterShares has nodes share images. None of them has any of a part's image when
// the part begins.
func TestClusterShares(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 16, racks: 2, rate: coldRate(), origin: coldRate(), encrypt: true})
	c.startAll(t, waiting(t))
	t.Run("cold", func(t *testing.T) { c.cold(t, 0.15) })
	c.setRate(t, "400mbit")
	t.Run("arrivals", c.arrivals)
	t.Run("preheat", c.preheat)
}

// TestClusterPlain is about nodes that don't encrypt what they send. There are
// two racks of four, to one of which each chunk comes from the other: no less than
// one copy of eight crosses.
func TestClusterPlain(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 8, racks: 2, rate: coldRate(), origin: coldRate()})
	c.startAll(t, waiting(t))
	c.cold(t, 0.2)
}

// cold has all nodes mount an image, and read all of it, at the same moment. Of
// what they receive, the share crossed may come from another rack.
func (c *testCluster) cold(t *testing.T, crossed float64) {
	ctx := waiting(t)
	img := c.reg.publish(t, "cold", clusterLayers("cold", sized(20<<20)))
	c.reg.forget(t)
	before, begin := c.net.traffic(t), time.Now()
	mountAll(t, ctx, c.nodes, img)
	mounted := time.Since(begin)
	readAll(t, ctx, c.nodes, img)
	took, limit := time.Since(begin), c.shape.fluid(img.size)
	tr := c.net.traffic(t).since(before)
	ratio := took.Seconds() / limit.Seconds()
	t.Logf("mounted after %.2f s, all read after %.2f s, %.2f times the fluid limit of %.2f s", mounted.Seconds(), took.Seconds(), ratio, limit.Seconds())
	if os.Getenv(wholeClusterEnv) != "" && ratio > 1.5 {
		t.Errorf("it took %.2f times the fluid limit", ratio)
	}
	c.checkEgress(t, img, 1.05)
	t.Logf("links: %d bytes received, %d from the registry, %d across racks: %.1f %%", tr.received, tr.registry, tr.crossed, 100*tr.share())
	if s := tr.share(); s > crossed {
		t.Errorf("%.1f %% of the bytes came from other racks, more than %.0f %%", 100*s, 100*crossed)
	}
	c.checkStats(t, ctx, tr)
	c.unmountAll(t, ctx)
}

// arrivals has nodes come one by one to an image: all but the first cost the
// registry none of its layers.
func (c *testCluster) arrivals(t *testing.T) {
	ctx := waiting(t)
	img := c.reg.publish(t, "arrivals", clusterLayers("arrivals", sized(4<<20)))
	c.reg.forget(t)
	begin := time.Now()
	for i, n := range c.nodes {
		before := c.reg.egress(t, img.layers, false).bytes
		if err := n.mount(ctx, img.ref); err != nil {
			t.Fatal(err)
		}
		if err := n.read(ctx, img.files); err != nil {
			t.Fatal(err)
		}
		if after := c.reg.egress(t, img.layers, false).bytes; i > 0 && after != before {
			t.Errorf("%s has cost the registry %d bytes of layers", n.name, after-before)
		}
	}
	t.Logf("all have read after %.2f s", time.Since(begin).Seconds())
	c.checkEgress(t, img, 1.05)
	c.unmountAll(t, ctx)
}

// preheat has the cluster fetch an image before any node mounts it. The start of
// all then costs the registry none of its layers.
func (c *testCluster) preheat(t *testing.T) {
	ctx := waiting(t)
	img := c.reg.publish(t, "preheated", clusterLayers("preheated", sized(8<<20)))
	c.reg.forget(t)
	graze(t, "preheat", "--state", c.nodes[3].state, img.ref)
	before := c.reg.egress(t, img.layers, false)
	mountAll(t, ctx, c.nodes, img)
	readAll(t, ctx, c.nodes, img)
	after := c.reg.egress(t, img.layers, false)
	t.Logf("the registry has sent %d bytes of layers before the image was mounted, and %d after", before.bytes, after.bytes-before.bytes)
	if after.bytes != before.bytes {
		t.Errorf("the start of a preheated image has cost the registry %d bytes of layers", after.bytes-before.bytes)
	}
	c.checkEgress(t, img, 1.05)
	c.unmountAll(t, ctx)
}

// checkEgress says what the registry has sent of an image, all of which was read.
// Most is how often it may send each span. Neighbouring spans share some bytes,
// so all of them are more than the layers.
func (c *testCluster) checkEgress(t testing.TB, img *testImage, most float64) {
	t.Helper()
	layers, rest := c.reg.egress(t, img.layers, false), c.reg.egress(t, img.layers, true)
	spans := c.spanBytes(t, img)
	ratio := float64(layers.bytes) / float64(spans)
	t.Logf("registry: spans of %d bytes sent %.4f times; layers of %d bytes %.4f times; config and index of %d bytes %.2f times",
		spans, ratio, layers.once, layers.ratio(), rest.once, rest.ratio())
	if layers.once > img.size || layers.once < img.size*9/10 {
		t.Errorf("the registry has sent %d different bytes of layers that have %d", layers.once, img.size)
	}
	if ratio > most {
		t.Errorf("the registry has sent the spans %.4f times, more than %.2f times; again: %v", ratio, most, layers.again)
	}
}

// spanBytes returns the sum of the lengths of all spans of an image that the first
// node has mounted.
func (c *testCluster) spanBytes(t testing.TB, img *testImage) (n int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.nodes[0].state, "views", "*"))
	if err != nil || len(files) == 0 {
		t.Fatal("no view: ", err)
	}
	for _, file := range files {
		view, err := image.OpenView(file)
		if err != nil {
			t.Fatal(err)
		}
		for i := range view.NumSpans() {
			if s := view.Span(uint32(i)); slices.Contains(img.layers, string(s.Blob)) {
				n += s.Len
			}
		}
		if err := view.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// share is the share of crossed in what was received.
func (tr traffic) share() float64 { return float64(tr.crossed) / float64(max(tr.received, 1)) }

// unmountAll unmounts the image on all nodes.
func (c *testCluster) unmountAll(t testing.TB, ctx context.Context) {
	t.Helper()
	each(t, c.nodes, func(n *clusterNode) error { return n.unmount(ctx) })
}

// TestClusterNewcomer has a node that has never run before mount an image in the
// moment in which it answers. The others have the image.
func TestClusterNewcomer(t *testing.T) {
	ctx := waiting(t)
	c := newCluster(t, clusterShape{nodes: 4, racks: 1, rate: "400mbit", origin: "400mbit", encrypt: true})
	img := c.reg.publish(t, "known", clusterLayers("known", sized(4<<20)))
	old, newcomer := c.nodes[:3], c.nodes[3]
	each(t, old, func(n *clusterNode) error { return n.start(ctx) })
	c.settle(t, ctx)
	mountAll(t, ctx, old, img)
	readAll(t, ctx, old, img)
	before := c.reg.egress(t, img.layers, false).bytes
	if err := newcomer.start(ctx); err != nil {
		t.Fatal(err)
	}
	mountAll(t, ctx, c.nodes[3:], img)
	readAll(t, ctx, c.nodes[3:], img)
	if after := c.reg.egress(t, img.layers, false).bytes; after != before {
		t.Errorf("the newcomer has cost the registry %d bytes of layers", after-before)
	}
}
