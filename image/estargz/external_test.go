package estargz

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	writer "github.com/containerd/stargz-snapshotter/estargz"
	"github.com/google/go-cmp/cmp"

	"graze/chunk"
	"graze/image"
	"graze/image/imagetest"
)

// TestExternalTOC opens layers whose table of contents is not in them.
func TestExternalTOC(t *testing.T) {
	for _, l := range imagetest.Adversarial() {
		t.Run(l.Name, func(t *testing.T) {
			var table []byte
			b, err := imagetest.ExternalTOC(func(toc []byte) { table = bytes.Clone(toc) }).Encode(l)
			if err != nil {
				t.Fatal(err)
			}
			cfg := Config{Blob: chunk.Blob(b.Digest), Annotations: b.Annotations}
			if _, err := Open(t.Context(), &ranger{p: b.Data}, cfg); !errors.Is(err, ErrExternalTOC) {
				t.Errorf("the layer itself: %v", err)
			}
			got, err := OpenExternal(bytes.NewReader(table), b.Size, cfg)
			if err != nil {
				t.Fatal(err)
			}
			compareArchive(t, got, b.Data)
		})
	}
}

// TestExternalTOCRefuses opens a layer by tables for which nothing vouches.
func TestExternalTOCRefuses(t *testing.T) {
	var table []byte
	b, err := imagetest.ExternalTOC(func(toc []byte) { table = bytes.Clone(toc) }).Encode(imagetest.SmallFiles("files", 3))
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{TOCDigestAnnotation: chunk.SHA256.Sum(nil).String()}
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		table       []byte
		size        int64
		want        error
	}{
		{"no digest", nil, table, b.Size, ErrUnverified},
		{"other digest", other, table, b.Size, chunk.ErrCorrupt},
		{"cut short", b.Annotations, table[:len(table)/2], b.Size, chunk.ErrCorrupt},
		{"no table", b.Annotations, b.Data, b.Size, chunk.ErrCorrupt},
		{"of a smaller layer", b.Annotations, table, 100, chunk.ErrCorrupt},
		{"of hardly a layer", b.Annotations, table, 10, ErrNotEStargz},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := OpenExternal(bytes.NewReader(tt.table), tt.size, Config{Blob: testBlob, Annotations: tt.annotations, Unverified: Accept})
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// TestPrefetchOfLayers merges layers of which some have a landmark: what stands
// before it in each is to be prefetched.
func TestPrefetchOfLayers(t *testing.T) {
	var layers []*image.Layer
	for i, first := range [][]string{{"0/1", "0/3"}, nil, {"2/2"}} {
		files := []file{{hdr: tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeDir, Mode: 0o755}}}
		for n := range 5 {
			files = append(files, file{hdr: tar.Header{Name: fmt.Sprintf("%d/%d", i, n), Mode: 0o644}, data: random(100 + n)})
		}
		blob, annotations := build(t, files, writer.WithPrioritizedFiles(first))
		l, err := Open(t.Context(), &ranger{p: blob}, Config{Blob: chunk.Blob(fmt.Sprintf("sha256:%064d", i)), Annotations: annotations})
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, &l.Layer)
	}
	path := filepath.Join(t.TempDir(), "view")
	if err := image.WriteView(path, layers, image.Info{}); err != nil {
		t.Fatal(err)
	}
	v, err := image.OpenView(path)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var got []string
	wanted := slices.Collect(v.Prefetch())
	for i := range layers {
		dir, _ := v.Lookup(1, fmt.Sprint(i))
		for n := range 5 {
			ino, _ := v.Lookup(dir, fmt.Sprint(n))
			for e := range v.Extents(ino, 0, 1) {
				if _, span := v.Chunk(e.Chunk); slices.Contains(wanted, span) {
					got = append(got, fmt.Sprintf("%d/%d", i, n))
				}
			}
		}
	}
	if diff := cmp.Diff([]string{"0/1", "0/3", "2/2"}, got); diff != "" {
		t.Errorf("to be prefetched (-want +got):\n%s", diff)
	}
}
