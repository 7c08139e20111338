package main

import (
	"compress/gzip"
	"testing"

	"graze/image/imagetest"
	"graze/image/rafs/rafstest"
)

// TestClusterNydus has nodes read an image in the format of Nydus at the same
// time, whose blobs are two unmodified layers, which are read from contexts on, and
// one of LZ4 blocks. The registry gives each of them to the cluster once.
func TestClusterNydus(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 4, racks: 1, rate: "400mbit", origin: "400mbit"})
	ctx := waiting(t)
	c.startAll(t, ctx)
	layers := clusterLayers("nydus", 6<<20)
	oci, _ := c.reg.pushBare(t, "nydus", layers)
	var referred []rafstest.Layer
	for _, l := range layers[:2] {
		plain, err := l.Tar()
		if err != nil {
			t.Fatal(err)
		}
		blob, err := imagetest.Gzip(gzip.BestSpeed).Encode(l)
		if err != nil {
			t.Fatal(err)
		}
		referred = append(referred, rafstest.Layer{Blob: blob.Data, Tar: plain})
	}
	root, err := rafstest.FromLayer(imagetest.Layer{Members: concat(layers[0].Members, layers[1].Members, layers[2].Members)})
	if err != nil {
		t.Fatal(err)
	}
	made := pushableRAFS(t, root, rafstest.Options{Version: 6, Compressor: rafstest.LZ4, Layers: referred, InfoCompressor: rafstest.Zstd})
	c.reg.push(t, made, "nydus:rafs")
	img := &testImage{ref: registryAddr + ":5000/nydus:rafs", layers: oci.layers[:2], files: oci.files}
	for _, l := range made.Layers {
		img.layers = append(img.layers, l.Digest)
		img.size += l.Size
	}
	for _, l := range referred {
		img.size += int64(len(l.Blob))
	}
	c.reg.forget(t)
	mountAll(t, ctx, c.nodes, img)
	readAll(t, ctx, c.nodes, img)
	// Contexts overlap, and windows come on top.
	c.checkEgress(t, img, 1.2)
	c.unmountAll(t, ctx)
}
