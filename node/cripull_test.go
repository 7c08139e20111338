package node

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"graze/chunk"
)

// TestResolverLayer has containerd ask for what only the registry has.
func TestResolverLayer(t *testing.T) {
	lib, err := OpenLibrary(Config{State: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	fetcher, err := resolver{lib}.Fetcher(t.Context(), "registry.example/app:1")
	if err != nil {
		t.Fatal(err)
	}
	kept := []byte(`{"a":"config"}`)
	if _, err := lib.blobs.write(kept); err != nil {
		t.Fatal(err)
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(kept), Size: int64(len(kept))}
	r, err := fetcher.Fetch(t.Context(), desc)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != string(kept) {
		t.Errorf("%q, %v", got, err)
	}
	desc.MediaType = ocispec.MediaTypeImageLayerGzip
	if _, err := fetcher.Fetch(t.Context(), desc); !errors.Is(err, chunk.ErrUnavailable) || !strings.Contains(err.Error(), "has to be fetched whole") {
		t.Errorf("a layer: %v", err)
	}
}
