package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"graze/image/imagetest"
)

// exported returns the digests of the blobs in an archive that containerd makes of
// an image, each compared with its name.
func exported(t *testing.T, c *containerd, ref string) ([]string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	args := []string{"--address", c.socket(), "--namespace", cmp.Or(c.namespace, "default"), "image", "export"}
	if c.bin != "" {
		// By default, version 2 writes the archive aside, and can end before it is whole.
		args = append(args, "--local")
	}
	if out, err := exec.Command(c.program("ctr"), append(args, file, ref)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []string
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(list)
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		digits, ok := strings.CutPrefix(h.Name, "blobs/sha256/")
		if !ok || digits == "" {
			continue
		}
		p, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(p)); sum != digits {
			t.Errorf("blob %s in the archive is %s", digits, sum)
		}
		list = append(list, "sha256:"+digits)
	}
}

// collect has containerd collect garbage.
func (c *containerd) collect(t *testing.T, ref string) {
	t.Helper()
	c.ctr(t, "image", "tag", ref, "garbage:1")
	c.ctr(t, "image", "rm", "--sync", "garbage:1")
}

// lose takes a blob from containerd for good.
func (c *containerd) lose(t *testing.T, ref, blob string) {
	t.Helper()
	c.ctr(t, "content", "rm", blob)
	c.collect(t, ref)
}

// TestMaterialize takes the layers of an image from containerd, which is what a
// lazy pull leaves, and gives them back.
func TestMaterialize(t *testing.T) {
	reg := startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	ref := reg.push(t, img, "small:1")
	ctd := startContainerd(t)
	ctd.ctr(t, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
	want, err := exported(t, ctd, ref)
	if err != nil || len(want) != 4 {
		t.Fatalf("%q, %v", want, err)
	}
	lose := func() {
		for _, layer := range img.Layers {
			ctd.lose(t, ref, layer.Digest)
		}
	}
	lose()
	if _, err := exported(t, ctd, ref); err == nil {
		t.Fatal("an image without layers can be exported")
	}

	args := []string{"materialize", "--state", t.TempDir(), "--address", ctd.dir + "/sock", "--json", ref}
	for _, fetched := range []int{len(img.Layers), 0} {
		var report struct{ Blobs, Fetched int }
		if err := json.Unmarshal([]byte(graze(t, args...)), &report); err != nil {
			t.Fatal(err)
		}
		if report.Blobs != 4 || report.Fetched != fetched {
			t.Errorf("%+v, want %d fetched", report, fetched)
		}
	}
	ctd.collect(t, ref)
	got, err := exported(t, ctd, ref)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("exported %q, want %q: %v", got, want, err)
	}
	ctd.ctr(t, "image", "push", "--plain-http", reg.addr+"/copy:1", ref)
	ctd.ctr(t, "image", "convert", "--uncompress", "--oci", ref, "converted:1")

	// By a node, with the node's way to the registry.
	lose()
	config := filepath.Join(t.TempDir(), "node.toml")
	state := t.TempDir()
	if err := os.WriteFile(config, fmt.Appendf(nil, "state = %q\nkeep-mounts = \"nobody\"\n", state), 0o600); err != nil {
		t.Fatal(err)
	}
	startFileNode(t, config)
	args[2] = state
	out := graze(t, slices.DeleteFunc(slices.Clone(args), func(s string) bool { return s == "--json" })...)
	if !strings.Contains(out, "all 4 blobs; 2 were fetched") {
		t.Errorf("by a node: %s", out)
	}
	if got, err := exported(t, ctd, ref); err != nil || !slices.Equal(got, want) {
		t.Errorf("exported %q, want %q: %v", got, want, err)
	}
}

// TestMaterializeErrors says what is wrong, and goes on from what is there.
func TestMaterializeErrors(t *testing.T) {
	reg := startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	ref := reg.push(t, img, "small:1")
	ctd := startContainerd(t)
	ctd.ctr(t, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
	layer := img.Layers[0]
	ctd.lose(t, ref, layer.Digest)
	args := []string{"materialize", "--state", t.TempDir(), "--address", ctd.dir + "/sock"}

	if out, code := grazeCode(t, append(args, reg.addr+"/other:1")...); code != 1 || !strings.Contains(out, "images ls") {
		t.Errorf("no such image: %d, %s", code, out)
	}
	if out, code := grazeCode(t, append(args, "--repository", reg.addr+"/nowhere", "--namespace", "nowhere", ref)...); code != 1 || !strings.Contains(out, "nowhere") {
		t.Errorf("no such namespace: %d, %s", code, out)
	}

	// A part of the layer is there, from a run that was broken off.
	half := layer.Data[:len(layer.Data)/2]
	cmd := exec.Command("ctr", "--address", ctd.dir+"/sock", "content", "ingest", "--expected-digest", layer.Digest, "graze-"+layer.Digest)
	cmd.Stdin = bytes.NewReader(half)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Fatalf("half a layer is taken: %s", out)
	}
	before := reg.blobBytes(t).Bytes
	graze(t, append(args, ref)...)
	if fetched := reg.blobBytes(t).Bytes - before; fetched != int64(len(layer.Data)-len(half)) {
		t.Errorf("%d bytes were fetched of a layer of %d of which %d were there", fetched, len(layer.Data), len(half))
	}

	// And now wrong bytes: they are thrown away, and the next run starts anew.
	ctd.lose(t, ref, layer.Digest)
	wrong := bytes.Clone(half)
	wrong[0]++
	cmd = exec.Command("ctr", "--address", ctd.dir+"/sock", "content", "ingest", "--expected-digest", layer.Digest, "graze-"+layer.Digest)
	cmd.Stdin = bytes.NewReader(wrong)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Fatalf("half a layer is taken: %s", out)
	}
	if out, code := grazeCode(t, append(args, ref)...); code != 1 || !strings.Contains(out, layer.Digest) {
		t.Errorf("wrong bytes: %d, %s", code, out)
	}
	graze(t, append(args, ref)...)
}
