package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"graze/image"
	"graze/image/imagetest"
	"graze/node"
)

// TestClusterCommonContent has one node read an image, and then all nodes another
// one that has the same files in other layers, and some more. What is common costs
// the registry nothing.
func TestClusterCommonContent(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 12, racks: 3, rate: "400mbit", origin: "400mbit", encrypt: true})
	ctx := waiting(t)
	c.startAll(t, ctx)
	files := commonFiles(sized(12 << 20))
	first := c.reg.publish(t, "first", []imagetest.Layer{
		layerOf("one", files[:len(files)/2]),
		layerOf("two", files[len(files)/2:]),
	})
	n := len(files)
	second := c.reg.publish(t, "second", []imagetest.Layer{
		layerOf("one", append(slices.Clone(files[n/3:2*n/3]), randomFile("new/1", 700<<10))),
		layerOf("two", append([]imagetest.Member{randomFile("new/2", 300<<10)}, files[:n/3]...)),
		layerOf("three", files[2*n/3:]),
	})
	reader := c.nodes[:1]
	mountAll(t, ctx, reader, first)
	readAll(t, ctx, reader, first)
	have := c.chunks(t, first, nil)
	c.waitHeard(t, ctx, 2*len(have))
	each(t, reader, func(n *clusterNode) error { return n.unmount(ctx) })
	c.reg.forget(t)
	begin := time.Now()
	mountAll(t, ctx, c.nodes, second)
	readAll(t, ctx, c.nodes, second)
	took := time.Since(begin)
	var fresh int64
	c.chunks(t, second, func(length int64, ids []string) {
		if slices.ContainsFunc(ids, func(id string) bool { return !have[id] }) {
			fresh += length
		}
	})
	got := c.reg.egress(t, second.layers, false)
	t.Logf("of %d bytes of layers, %d lie in spans that have something new; the registry has sent %d in %v", second.size, fresh, got.bytes, took)
	if got.bytes > fresh {
		t.Errorf("what both images have has cost the registry %d bytes", got.bytes-fresh)
	}
	if fresh == 0 || fresh > second.size/2 {
		t.Errorf("spans of %d bytes have something new", fresh)
	}
}

// TestClusterWithoutIndex has all nodes mount and read an image that has no index,
// at the same moment. The registry gives each layer once: to the node that makes
// the layer's index, from which the others get the chunks.
func TestClusterWithoutIndex(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 8, racks: 2, rate: "200mbit", origin: "200mbit", encrypt: true})
	ctx := waiting(t)
	c.startAll(t, ctx)
	img, _ := c.reg.pushBare(t, "bare", clusterLayers("bare", sized(20<<20)))
	c.reg.forget(t)
	begin := time.Now()
	each(t, c.nodes, func(n *clusterNode) error { return n.mountBy(ctx, img.ref, node.IndexOptions{Build: true}) })
	mounted := time.Since(begin)
	readAll(t, ctx, c.nodes, img)
	took := time.Since(begin)
	layers := c.reg.egress(t, img.layers, false)
	ratio := float64(layers.bytes) / float64(img.size)
	t.Logf("mounted after %v, all read after %v; the registry has sent the layers of %d bytes %.4f times", mounted, took, img.size, ratio)
	if ratio > 1.05 {
		t.Errorf("the registry has sent the layers %.4f times; again: %v", ratio, layers.again)
	}
}

// commonFiles are files of size bytes in all, large and small ones.
func commonFiles(size int64) []imagetest.Member {
	var files []imagetest.Member
	for i := range int64(12) {
		files = append(files, randomFile(fmt.Sprintf("common/%d/large", i), size/12-i*1000))
		for j := range int64(20) {
			files = append(files, randomFile(fmt.Sprintf("common/%d/small%d", i, j), 1000+j*500))
		}
	}
	return files
}

func layerOf(name string, files []imagetest.Member) imagetest.Layer {
	return imagetest.Layer{Name: name, Members: imagetest.Members(files...)}
}

// chunks returns the chunks of an image that the first node has mounted, and calls
// f with each span.
func (c *testCluster) chunks(t testing.TB, img *testImage, f func(length int64, ids []string)) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.nodes[0].state, "views", "*"))
	if err != nil || len(files) == 0 {
		t.Fatal("no view: ", err)
	}
	all := make(map[string]bool)
	for _, file := range files {
		view, err := image.OpenView(file)
		if err != nil {
			t.Fatal(err)
		}
		for i := range view.NumSpans() {
			s := view.Span(uint32(i))
			if !slices.Contains(img.layers, string(s.Blob)) {
				continue
			}
			var ids []string
			for _, part := range s.Parts {
				ids = append(ids, part.ID.String())
				all[part.ID.String()] = true
			}
			if f != nil {
				f(s.Len, ids)
			}
		}
		if err := view.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// waitHeard waits until the nodes have heard of so many chunks, each node counted
// for itself, and then of no more for a while: manifests and trees are chunks, too.
func (c *testCluster) waitHeard(t testing.TB, ctx context.Context, want int) {
	t.Helper()
	last, since := 0, time.Now()
	err := poll(ctx, func() error {
		heard := 0
		for _, n := range c.nodes {
			s, err := n.stats(ctx)
			if err != nil {
				return err
			}
			heard += int(s.Store.Heard)
		}
		if heard != last {
			last, since = heard, time.Now()
		}
		if quiet := time.Since(since); heard < want || quiet < 6*time.Second {
			return fmt.Errorf("the nodes have heard of %d chunks, of %d at least, and of none for %v", heard, want, quiet)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
