package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"graze/image/imagetest"
	"graze/image/soci/socitest"
)

// ztocOf returns the zTOC of a layer, by SOCI's own writer where there is one; nil if
// the layer can't have one.
func ztocOf(t testing.TB, b imagetest.Blob, spanSize int64) []byte {
	t.Helper()
	tool := os.Getenv("GRAZE_ZTOC")
	if tool == "" {
		z, err := socitest.ZTOC(layerBytes(t, b), spanSize)
		if err != nil {
			t.Logf("no zTOC: %v", err)
			return nil
		}
		return z
	}
	name := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(name, layerBytes(t, b), 0o600); err != nil {
		t.Fatal(err)
	}
	algorithm := "gzip"
	if b.MediaType == imagetest.MediaTypeTar {
		algorithm = "uncompressed"
	}
	z, err := exec.Command(tool, name, algorithm, strconv.FormatInt(spanSize, 10)).Output()
	if err != nil {
		t.Logf("no zTOC: %v", err)
		return nil
	}
	return z
}

func layerBytes(t testing.TB, b imagetest.Blob) []byte {
	t.Helper()
	r, err := b.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ztocsOf returns the zTOCs of all layers of an image.
func ztocsOf(t testing.TB, img *imagetest.Image) (list [][]byte) {
	t.Helper()
	for _, b := range img.Layers {
		list = append(list, ztocOf(t, b, 200_000))
	}
	return list
}

// TestTruthSOCI mounts images of everything odd by zTOCs: of the index that refers to
// the image, and of the one that its manifest names. Layers without a zTOC, or with
// one that can't be used, get graze's own index.
func TestTruthSOCI(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	reg := startRegistry(t)
	ctd := startContainerd(t)
	for _, e := range []imagetest.Encoding{imagetest.Gzip(6), imagetest.Plain()} {
		name := "soci" + strings.Map(tagRune, e.Name)
		img, err := imagetest.Build(imagetest.Adversarial(), e)
		if err != nil {
			t.Fatal(err)
		}
		ztocs := ztocsOf(t, img)
		ref := reg.push(t, img, name+":plain")
		want := snapshot(t, ctd.pull(t, ref))
		index := func(kind string) *imagetest.Image {
			x, err := socitest.Index(kind, img, ztocs)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		first := index(socitest.First)
		reg.push(t, first, name+":first")
		second := index(socitest.Second)
		reg.push(t, second, name+":second")
		named := pushed(t, reg, edited(t, img, func(m map[string]any) {
			m["annotations"] = map[string]string{"com.amazon.soci.index-digest": second.Digest()}
		}), name+":named")
		both := pushIndex(t, reg, name+":both", entry(named, nil, ""), entry(second, nil, socitest.Second))
		for _, tt := range []struct{ name, ref, why string }{
			{"referrer", ref, "which refers to the image"},
			{"named", reg.addr + "/" + name + "@" + named.Digest(), "which the manifest names"},
			{"in the same index", both, "which the manifest names"},
		} {
			t.Run(e.Name+"/"+tt.name, func(t *testing.T) {
				state := t.TempDir()
				m := mount(t, tt.ref, "--state", state, "--index", "build")
				sameTree(t, want, m.dir)
				used := 0
				for _, l := range m.ready.Layers {
					if l.Format == "soci" && strings.Contains(l.Index, tt.why) {
						used++
					}
				}
				if used < len(m.ready.Layers)-2 {
					t.Errorf("zTOCs serve %d layers: %+v", used, m.ready.Layers)
				}
				m.stop(t)
				sameTree(t, want, mount(t, tt.ref, "--state", state, "--index", "require").dir)
			})
		}
	}
}
