package main

import (
	"compress/gzip"
	"context"
	"fmt"
	"testing"

	"graze/image/imagetest"
	"graze/image/soci/socitest"
	"graze/node"
)

// TestClusterSOCI has nodes read an image by its SOCI index at the same time. The
// registry gives each span to the cluster once, as it stands in the layer; and one of
// the nodes can tell that the others have all of the image.
func TestClusterSOCI(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 4, racks: 1, rate: "400mbit", origin: "400mbit"})
	ctx := waiting(t)
	c.startAll(t, ctx)
	layers := clusterLayers("soci", 6<<20)
	img, _ := c.reg.pushBare(t, "soci", layers)
	made, err := imagetest.Build(layers, imagetest.Gzip(gzip.BestSpeed))
	if err != nil {
		t.Fatal(err)
	}
	index, err := socitest.Index(socitest.First, made, ztocsOf(t, made))
	if err != nil {
		t.Fatal(err)
	}
	c.reg.push(t, index, "soci:index")
	c.reg.forget(t)
	mountAll(t, ctx, c.nodes, img)
	readAll(t, ctx, c.nodes, img)
	// Neighbouring spans share a byte.
	c.checkEgress(t, img, 1.01)
	if err := poll(ctx, func() error { return c.nodes[0].seesAll(ctx, img, len(c.nodes)-1) }); err != nil {
		t.Error(err)
	}
	c.unmountAll(t, ctx)
}

// seesAll returns an error unless the node has all of an image, and so have others.
func (n *clusterNode) seesAll(ctx context.Context, img *testImage, others int) error {
	remote, err := node.Dial(node.Socket(n.state))
	if err != nil {
		return err
	}
	defer remote.Close()
	p, err := remote.Presence(ctx, img.ref)
	if err != nil {
		return err
	}
	if p.Local.Chunks != p.Chunks || len(p.Peers) != others {
		return fmt.Errorf("image is here: %+v", p)
	}
	for _, h := range p.Peers {
		if h.Have != h.Chunks || h.Chunks != p.Chunks {
			return fmt.Errorf("node %s has %d of %d", h.Node, h.Have, h.Chunks)
		}
	}
	return nil
}
