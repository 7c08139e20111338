package estargz

import (
	"testing"

	writer "github.com/containerd/stargz-snapshotter/estargz"

	"graze/chunk"
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
				compareArchive(t, got, b.Data)
			})
		}
	}
}
