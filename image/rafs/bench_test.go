package rafs

import (
	"fmt"
	"testing"

	"graze/image/imagetest"
	"graze/image/rafs/rafstest"
)

// BenchmarkOpen opens the bootstrap of 100,000 small files, and goes over its
// entries as the merge does.
func BenchmarkOpen(b *testing.B) {
	root, err := rafstest.FromLayer(imagetest.SmallFiles("files", 100_000))
	if err != nil {
		b.Fatal(err)
	}
	for _, opts := range []rafstest.Options{{Version: 5}, {Version: 6}, {Version: 6, Batch: 64 << 10, MetaBeside: true}} {
		name := fmt.Sprintf("version=%d", opts.Version)
		if opts.Batch > 0 {
			name += "/batch"
		}
		img, err := rafstest.Build(root, opts)
		if err != nil {
			b.Fatal(err)
		}
		layer, err := img.BootstrapLayer()
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				boot, metas, err := Unpack(layer.Data)
				if err != nil {
					b.Fatal(err)
				}
				cfg := blobsOf(img).config()
				cfg.Metas = metas
				l, err := Open(b.Context(), boot, cfg)
				if err != nil {
					b.Fatal(err)
				}
				for _, err := range l.Entries {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(len(layer.Data))/1e6, "layer-MB")
			b.ReportMetric(float64(len(img.Bootstrap))/1e6, "bootstrap-MB")
		})
	}
}
