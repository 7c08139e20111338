package node

import (
	"errors"
	"strings"
	"testing"
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
