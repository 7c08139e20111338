package main

import (
	"archive/tar"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"graze/image/imagetest"
	"graze/image/soci/socitest"
)

// TestTruthDebianFormats converts a real image by the writers of other formats, and
// gives it a SOCI index, and compares what is mounted with what containerd unpacks.
func TestTruthDebianFormats(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	needTools(t, "skopeo")
	reg := startRegistry(t)
	ref := pushDebian(t, reg)
	want := snapshot(t, startContainerd(t).pull(t, ref))

	t.Run("soci", func(t *testing.T) {
		img := layoutImage(t, "debian-python")
		index, err := socitest.Index(socitest.First, img, debianZTOCs(t, img))
		if err != nil {
			t.Fatal(err)
		}
		reg.push(t, index, "debian-python:soci")
		m := mount(t, ref, "--state", t.TempDir(), "--index", "require")
		checkIndex(t, m, "soci", "which refers to the image")
		sameTree(t, want, m.dir)
	})

	seconds := wholeSeconds(want)
	layers := layoutLayers(t, layoutImage(t, "debian-python"))
	for name, e := range map[string]imagetest.Encoding{
		"estargz":      imagetest.EStargz("estargz"),
		"zstd-chunked": imagetest.ZstdChunked(),
		"stargz-zstd":  imagetest.StargzZstd(),
	} {
		t.Run(name, func(t *testing.T) {
			var blobs []imagetest.Blob
			for _, l := range layers {
				b, err := e.EncodeFile(filepath.Join(t.TempDir(), "layer"), l)
				if err != nil {
					t.Fatal(err)
				}
				blobs = append(blobs, b)
			}
			img, err := imagetest.NewImage(blobs)
			if err != nil {
				t.Fatal(err)
			}
			sameTree(t, seconds, mount(t, reg.push(t, img, "debian-python:"+name), "--state", t.TempDir(), "--index", "require").dir)
		})
	}
}

// wholeSeconds returns a tree without the fractions of seconds that the other writers
// don't keep.
func wholeSeconds(tree imagetest.Tree) imagetest.Tree {
	out := maps.Clone(tree)
	for path, n := range tree {
		c := *n
		c.MTime = n.MTime.Truncate(time.Second)
		out[path] = &c
	}
	return out
}

// debianZTOCs are the zTOCs of an image, with spans of the usual size.
func debianZTOCs(t testing.TB, img *imagetest.Image) (list [][]byte) {
	t.Helper()
	for _, b := range img.Layers {
		z := ztocOf(t, b, 4<<20)
		if z == nil {
			t.Fatalf("layer %s has no zTOC", b.Digest)
		}
		list = append(list, z)
	}
	return list
}

// layoutImage returns a real image, whose layers stay in their files.
func layoutImage(t testing.TB, name string) *imagetest.Image {
	t.Helper()
	dir := filepath.Join(imagesDir(t), name)
	blob := func(digest string) string {
		return filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
	}
	read := func(file string, v any) []byte {
		p, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(p, v)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	var index, manifest struct {
		Manifests, Layers []struct {
			MediaType, Digest string
			Size              int64
		}
	}
	read(filepath.Join(dir, "index.json"), &index)
	img := &imagetest.Image{}
	img.Manifest = read(blob(index.Manifests[0].Digest), &manifest)
	for _, l := range manifest.Layers {
		img.Layers = append(img.Layers, imagetest.Blob{MediaType: l.MediaType, Digest: l.Digest, Size: l.Size, File: blob(l.Digest)})
	}
	return img
}

// layoutLayers returns the layers of a real image, of .tar.gz, as their members.
func layoutLayers(t testing.TB, img *imagetest.Image) (list []imagetest.Layer) {
	t.Helper()
	for _, b := range img.Layers {
		archive := filepath.Join(t.TempDir(), "layer.tar")
		if out, err := exec.Command("sh", "-c", `gzip -dc "$0" >"$1"`, b.File, archive).CombinedOutput(); err != nil {
			t.Fatalf("gzip: %v\n%s", err, out)
		}
		list = append(list, imagetest.Layer{Name: b.Digest, Members: func(yield func(imagetest.Member) bool) {
			if err := eachMember(archive, yield); err != nil {
				t.Error(err)
			}
		}})
	}
	return list
}

// eachMember yields the members of an archive, each valid until the next.
func eachMember(archive string, yield func(imagetest.Member) bool) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if !yield(imagetest.Member{Header: *h, Body: func() io.Reader { return tr }}) {
			return nil
		}
	}
}
