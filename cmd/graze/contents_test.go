package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"testing"

	"graze/image/imagetest"
)

// TestTruthExternalTOC mounts an eStargz image whose tables of contents are in an
// image of their own.
func TestTruthExternalTOC(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	reg := startRegistry(t)
	ctd := startContainerd(t)
	var tables []imagetest.Blob
	img, err := imagetest.Build(imagetest.Adversarial(), imagetest.ExternalTOC(func(toc []byte) {
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256(toc))
		tables = append(tables, imagetest.Blob{MediaType: imagetest.MediaTypeTarGzip, Digest: digest, DiffID: digest, Size: int64(len(toc)), Data: bytes.Clone(toc)})
	}))
	if err != nil {
		t.Fatal(err)
	}
	for i := range tables {
		tables[i].Annotations = map[string]string{"containerd.io/snapshot/stargz/layer.digest": img.Layers[i].Digest}
	}
	beside, err := imagetest.NewImage(tables)
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.push(t, img, "external:1")
	want := snapshot(t, ctd.pull(t, ref))
	if _, err := tryMount(t, ref, "--state", t.TempDir(), "--index", "require"); err == nil {
		t.Error("the image is mounted without its tables of contents")
	}
	reg.push(t, beside, "external:1-esgztoc")
	sameTree(t, want, mount(t, ref, "--state", t.TempDir(), "--index", "require").dir)
}
