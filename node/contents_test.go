package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"

	"graze/chunk"
	"graze/image"
	"graze/image/imagetest"
)

// TestExternalByDigest asks for an image whose table of contents is in another one,
// which is found by its tag: with the digest besides, and by the digest alone.
func TestExternalByDigest(t *testing.T) {
	st := newStateTest(t)
	n := st.open(t)
	img, err := n.Resolve(t.Context(), pushExternal(t, st))
	if err != nil {
		t.Fatal(err)
	}
	alone, err := n.Resolve(t.Context(), img.byDigest())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.OpenView(t.Context(), alone, IndexOptions{}); !errors.Is(err, ErrNoIndex) || !strings.Contains(err.Error(), "by digest, without a tag") {
		t.Errorf("by digest alone: %v", err)
	}
	both, err := n.Resolve(t.Context(), st.ref("a:1@"+string(img.Digest)))
	if err != nil {
		t.Fatal(err)
	}
	view, err := n.OpenView(t.Context(), both, IndexOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if index := view.Info().Layers[0].Index; !strings.Contains(index, ":1-esgztoc") {
		t.Errorf("index is from %s", index)
	}
	if err := view.Close(); err != nil {
		t.Error(err)
	}
}

// TestLargeTOCChunk opens an image whose table of contents has a chunk that is too
// large: the layer gets an index of graze's own, or is refused, and both say why.
func TestLargeTOCChunk(t *testing.T) {
	st := newStateTest(t)
	n := st.open(t)
	img, err := imagetest.Build([]imagetest.Layer{imagetest.LargeFile("large", chunk.MaxSize+1)}, imagetest.EStargz("large chunks", estargz.WithChunkSize(2*chunk.MaxSize)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.Resolve(t.Context(), st.push(t, img, "a:1"))
	if err != nil {
		t.Fatal(err)
	}
	const why = "chunk of 16777217 bytes, more than 16777216"
	if _, err := n.OpenView(t.Context(), got, IndexOptions{}); !errors.Is(err, ErrNoIndex) || !strings.Contains(err.Error(), why) {
		t.Errorf("without leave to make an index: %v", err)
	}
	view, err := n.OpenView(t.Context(), got, IndexOptions{Build: true})
	if err != nil {
		t.Fatal(err)
	}
	if l := view.Info().Layers[0]; l.Format != image.TarGz || !strings.Contains(l.Index, "made here") || !strings.Contains(l.Index, why) {
		t.Errorf("layer is served by %s: %s", l.Format, l.Index)
	}
	if err := view.Close(); err != nil {
		t.Error(err)
	}
}
