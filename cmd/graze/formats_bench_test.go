package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"graze/image/imagetest"
	"graze/image/rafs/rafstest"
	"graze/image/soci/socitest"
)

// imageFormats are the formats that the same files are mounted from, by what
// pushes an image of a layer.
var imageFormats = []struct {
	name string
	push func(b *testing.B, reg *testRegistry, l imagetest.Layer) (ref string)
}{
	{"targz", func(b *testing.B, reg *testRegistry, l imagetest.Layer) string {
		return pushFile(b, reg, "targz", l, imagetest.Gzip(1)) // with its index
	}},
	{"estargz", func(b *testing.B, reg *testRegistry, l imagetest.Layer) string {
		return reg.push(b, buildOne(b, l, imagetest.EStargz("estargz")), "estargz:1")
	}},
	{"zstd-chunked", func(b *testing.B, reg *testRegistry, l imagetest.Layer) string {
		return reg.push(b, buildOne(b, l, imagetest.ZstdChunked()), "zstd:chunked")
	}},
	{"stargz-zstd", func(b *testing.B, reg *testRegistry, l imagetest.Layer) string {
		return reg.push(b, buildOne(b, l, imagetest.StargzZstd()), "zstd:stargz")
	}},
	{"soci", func(b *testing.B, reg *testRegistry, l imagetest.Layer) string {
		img := buildOne(b, l, imagetest.Gzip(1))
		index, err := socitest.Index(socitest.First, img, [][]byte{ztocOf(b, img.Layers[0], 4<<20)})
		if err != nil {
			b.Fatal(err)
		}
		ref := reg.push(b, img, "soci:1")
		reg.push(b, index, "soci:index")
		return ref
	}},
	{"rafs-v5", func(b *testing.B, reg *testRegistry, l imagetest.Layer) string {
		return pushRAFS(b, reg, l, rafstest.Options{Version: 5, Compressor: rafstest.LZ4})
	}},
	{"rafs-v6", func(b *testing.B, reg *testRegistry, l imagetest.Layer) string {
		return pushRAFS(b, reg, l, rafstest.Options{Version: 6, Compressor: rafstest.LZ4})
	}},
}

// buildOne makes an image of one layer.
func buildOne(b *testing.B, l imagetest.Layer, e imagetest.Encoding) *imagetest.Image {
	b.Helper()
	img, err := imagetest.Build([]imagetest.Layer{l}, e)
	if err != nil {
		b.Fatal(err)
	}
	return img
}

// pushRAFS pushes an image in the format of Nydus.
func pushRAFS(b *testing.B, reg *testRegistry, l imagetest.Layer, opts rafstest.Options) string {
	b.Helper()
	root, err := rafstest.FromLayer(l)
	if err != nil {
		b.Fatal(err)
	}
	return reg.push(b, pushableRAFS(b, root, opts), fmt.Sprintf("rafs:v%d", opts.Version))
}

// BenchmarkFormats mounts the same 100,000 files from each format, on a node that
// has nothing: the time from the start of the process until it says that the mount
// is ready, by turns, and the process's peak memory by then. What the registry has
// sent for it is the index.
func BenchmarkFormats(b *testing.B) {
	needFUSE(b)
	reg := startRegistry(b)
	binary, err := buildPlain()
	if err != nil {
		b.Fatal(err)
	}
	counts := make(tally)
	var sides []side
	for _, f := range imageFormats {
		ref := f.push(b, reg, imagetest.SmallFiles("files", manyFiles))
		state, empty := emptyDir(b)
		sides = append(sides, side{f.name, func() { empty(); dropCaches(b) }, func() time.Duration {
			before, begin := reg.traffic(b), time.Now()
			m, err := mountWith(b, binary, ref, "--state", state, "--index", "require")
			if err != nil {
				b.Fatal(err)
			}
			took := time.Since(begin)
			counts.add(f.name+"-peak-MB", float64(procStatus(b, m.cmd.Process.Pid, "VmHWM"))/1e6)
			counts.add(f.name+"-cpu-s", cpuTime(b, m.cmd.Process.Pid).Seconds())
			counts.add(f.name+"-fetched-MB", float64(reg.traffic(b).bytes-before.bytes)/1e6)
			if _, err := os.Stat(m.dir + "/files/00999/99999"); err != nil {
				b.Error(err)
			}
			m.stop(b)
			return took
		}})
	}
	compare(b, sides...)
	counts.report(b)
}
