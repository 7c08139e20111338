package main

import (
	"compress/gzip"
	"slices"
	"strings"
	"testing"

	"graze/image/imagetest"
	"graze/image/rafs/rafstest"
)

// TestContainerdNydus pulls and runs native images of Nydus, whose layers are blobs of
// chunks and a bootstrap. containerd asks for each of them by itself; no layer but the
// bootstrap's is read whole. One that can't be read fails, as containerd has no use for
// its layers.
func TestContainerdNydus(t *testing.T) {
	containerds(t, func(all *testing.T, cfg containerdConfig) {
		r := startRig(all, cfg, "")
		oci, _ := r.probeImage(all, "oci", 1, imagetest.Gzip(gzip.BestSpeed))
		tree := startContainerd(all).pull(all, oci)
		r.ctd.ctr(all, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", oci)
		want, wantCode := r.ctd.run(all, "overlayfs", oci, "plain", "/probe")
		for name, opts := range map[string]rafstest.Options{
			"v5": {Version: 5, Compressor: rafstest.LZ4, Blobs: 2},
			"v6": {Version: 6, Compressor: rafstest.Zstd, TOC: true, Blobs: 3},
		} {
			all.Run(name, func(t *testing.T) {
				img := nydusImage(t, tree, opts)
				var size int64
				for _, l := range img.Layers {
					size += l.Size
				}
				ref := r.reg.push(t, img, name+":1")
				before := r.reg.blobBytes(t).Bytes
				r.pullLazily(t, ref)
				r.ctd.ctr(t, "run", "--detach", "--snapshotter", "graze", ref, name+"-waits", "/probe", "wait")
				t.Cleanup(func() { r.ctd.stop(t, name+"-waits") })
				if got := r.reg.blobBytes(t).Bytes - before; got > size/3 {
					t.Errorf("the start took %d bytes of %d from the registry", got, size)
				}
				if got := r.reason(t, ref); !slices.Equal(got, []string{"lazy"}) {
					t.Errorf("the reasons are %q", got)
				}
				if got, code := r.ctd.run(t, "graze", ref, name+"-reads", "/probe"); code != wantCode || got != want {
					t.Errorf("the container ends with %d and prints\n%s\nand with overlayfs with %d\n%s", code, got, wantCode, want)
				}
			})
		}
		all.Run("broken", func(t *testing.T) {
			layers := nydusImage(t, tree, rafstest.Options{Version: 6, Compressor: rafstest.Zstd}).Layers
			last := len(layers) - 1
			empty, err := imagetest.Gzip(6).Encode(imagetest.Layer{Name: "empty", Members: imagetest.Members()})
			if err != nil {
				t.Fatal(err)
			}
			empty.Annotations = layers[last].Annotations
			layers[last] = empty
			img, err := imagetest.NewImage(layers)
			if err != nil {
				t.Fatal(err)
			}
			ref := r.reg.push(t, img, "broken:1")
			if out := r.failingPull(t, ref); !strings.Contains(out, "containerd can't unpack its layers") {
				t.Errorf("the pull ends with\n%s", out)
			}
		})
		r.cleaned(all)
	})
}

// failingPull is pullLazily for a pull that fails. It returns what was said.
func (r *rig) failingPull(t *testing.T, ref string) string {
	t.Helper()
	if r.ctd.bin == "" {
		out, code := grazeCode(t, "pull", "--address", r.ctd.socket(), ref)
		if code == 0 {
			t.Fatal("the pull succeeds")
		}
		return out
	}
	_, err := r.ctd.try("image", "pull", "--plain-http", "--snapshotter", "graze", ref)
	if err == nil {
		t.Fatal("the pull succeeds")
	}
	return err.Error()
}
