package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"graze/node"
)

// TestClusterPools has two pools of nodes, each with its own gossip, of which the
// second one knows one address of the first. What the first holds, the second
// gets from there, and not from the registry, whether that answers or not.
func TestClusterPools(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 6, racks: 2, rate: "200mbit", origin: "200mbit", encrypt: true, pools: true})
	ctx := waiting(t)
	c.startAll(t, ctx)
	first, second := c.pool(0), c.pool(1)
	each(t, second, func(n *clusterNode) error {
		return n.outside(ctx, func(s node.OutsideStats) error {
			if s.Peers < 3 {
				return fmt.Errorf("%d nodes are in the table of the DHT", s.Peers)
			}
			return nil
		})
	})
	t.Run("registry there", func(t *testing.T) {
		img := c.reg.publish(t, "pools", clusterLayers("pools", sized(8<<20)))
		c.announced(t, ctx, first, img)
		c.reg.forget(t)
		mountAll(t, ctx, second, img)
		readAll(t, ctx, second, img)
		layers, rest := c.reg.egress(t, img.layers, false), c.reg.egress(t, img.layers, true)
		t.Logf("the start of %d nodes of the second pool has cost the registry %d of %d bytes of layers, and %d of other blobs", len(second), layers.bytes, img.size, rest.bytes)
		if layers.bytes > img.size/100 {
			t.Errorf("the registry has sent %d bytes of layers", layers.bytes)
		}
		c.checkOutside(t, ctx, second, img)
		c.unmountAll(t, ctx)
	})
	t.Run("registry dead", func(t *testing.T) {
		img := c.reg.publish(t, "dead", clusterLayers("dead", sized(4<<20)))
		c.announced(t, ctx, first, img)
		s, err := first[0].stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		c.reg.stop()
		repository := strings.TrimSuffix(img.ref, ":1")
		img.ref = repository + "@" + string(s.Mounts[0].Digest)
		mountAll(t, ctx, second, img)
		readAll(t, ctx, second, img)
	})
}

// pool returns the nodes of a pool, which are those of a rack.
func (c *testCluster) pool(rack int) (list []*clusterNode) {
	for _, n := range c.nodes {
		if n.rack == rack {
			list = append(list, n)
		}
	}
	return list
}

// outside waits until the node's search for holders outside is as ok wants it.
func (n *clusterNode) outside(ctx context.Context, ok func(node.OutsideStats) error) error {
	return poll(ctx, func() error {
		s, err := n.stats(ctx)
		if err != nil {
			return err
		}
		return ok(s.Cluster.Outside)
	})
}

// announced has nodes read an image, and waits until they have announced it.
func (c *testCluster) announced(t *testing.T, ctx context.Context, nodes []*clusterNode, img *testImage) {
	t.Helper()
	before := make(map[*clusterNode]int64)
	for _, n := range nodes {
		s, err := n.stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		before[n] = s.Cluster.Outside.Announced
	}
	mountAll(t, ctx, nodes, img)
	readAll(t, ctx, nodes, img)
	each(t, nodes, func(n *clusterNode) error {
		return n.outside(ctx, func(s node.OutsideStats) error {
			if s.Provided != 1 || s.Announced <= before[n] {
				return fmt.Errorf("%d images are announced, %d announcements were made", s.Provided, s.Announced)
			}
			return nil
		})
	})
}

// checkOutside compares what nodes say they have got from outside their pool with
// the image: the pool has got it about once. They show the holders among their
// peers.
func (c *testCluster) checkOutside(t *testing.T, ctx context.Context, nodes []*clusterNode, img *testImage) {
	t.Helper()
	var got int64
	shown := make(map[string]bool)
	for _, n := range nodes {
		s, err := n.stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, src := range s.Sources {
			if src.Kind == node.PeersSource && src.Name == "outside" {
				got += src.Bytes
			}
		}
		peers, err := n.peers(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range peers {
			if p.Role == "outside" && p.In > 0 && p.Tier == "outside" {
				shown[p.Name] = true
			}
		}
	}
	var want int64
	for _, f := range img.files {
		want += f.size
	}
	t.Logf("%d bytes have come from outside, for files of %d; from %v", got, want, shown)
	if got < want*9/10 || got > want*13/10 {
		t.Errorf("%d bytes have come from outside, for files of %d", got, want)
	}
	if len(shown) == 0 {
		t.Error("no node shows where the bytes came from")
	}
}
