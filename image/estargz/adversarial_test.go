package estargz

import (
	"bytes"
	"compress/gzip"
	"testing"

	writer "github.com/containerd/stargz-snapshotter/estargz"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"graze/chunk"
	"graze/image"
	"graze/image/imagetest"
)

// TestAdversarial opens odd layers and compares the entries, and the files' contents,
// with the archive in the layer.
func TestAdversarial(t *testing.T) {
	for _, e := range []imagetest.Encoding{
		imagetest.EStargz("default"),
		imagetest.EStargz("shared members", writer.WithMinChunkSize(64<<10), writer.WithChunkSize(100<<10)),
	} {
		for _, l := range imagetest.Adversarial() {
			t.Run(e.Name+"/"+l.Name, func(t *testing.T) {
				b, err := e.Encode(l)
				if err != nil {
					t.Fatal(err)
				}
				r := &ranger{p: b.Data}
				got, err := Open(t.Context(), r, Config{Blob: chunk.Blob(b.Digest), Annotations: b.Annotations})
				if err != nil {
					t.Fatal(err)
				}
				checkTable(t, got)
				zr, err := gzip.NewReader(bytes.NewReader(b.Data))
				if err != nil {
					t.Fatal(err)
				}
				want, files, err := imagetest.ReadArchive(zr)
				if err != nil {
					t.Fatal(err)
				}
				ignore := cmpopts.IgnoreFields(image.Entry{}, "Extents")
				if diff := cmp.Diff(want, collect(t, got), ignore, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("entries (-want +got):\n%s", diff)
				}
				for name, data := range contents(t, b.Data, got) {
					if !bytes.Equal(data, files[name]) {
						t.Errorf("%q has other contents", name)
					}
				}
			})
		}
	}
}
