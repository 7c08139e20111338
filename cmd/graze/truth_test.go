package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"graze/image/imagetest"
)

// testStart is earlier than anything that a test unpacks.
var testStart = time.Now()

// sameTree fails the test if the tree at dir differs from the wanted one in
// anything that an image determines.
func sameTree(t *testing.T, want imagetest.Tree, dir string) {
	t.Helper()
	got, err := imagetest.Snapshot(dir)
	if err != nil {
		t.Fatal(err)
	}
	opts := imagetest.SameFiles()
	// eStargz keeps files of its own in the archive. They are no part of the
	// image, but containerd does not know that.
	opts.Skip = map[string]bool{"stargz.index.json": true, ".prefetch.landmark": true, ".no.prefetch.landmark": true}
	// overlayfs counts the names of a file that a higher layer has hidden, where
	// a file system into which the layers are unpacked has the visible ones. The
	// latter is what stat(2) is about, and what we show.
	opts.IgnoreAt["change/group/c"] |= imagetest.NLink
	opts.IgnoreAt["change/group/d"] |= imagetest.NLink
	// The time at which containerd itself makes or changes a directory is its
	// modification time if a layer has files in it but no entry for it. Such a
	// time is later than any in the image.
	for path, n := range want {
		if n.Mode&syscall.S_IFMT == syscall.S_IFDIR && n.MTime.After(testStart) {
			opts.IgnoreAt[path] |= imagetest.MTime
		}
	}
	diff := imagetest.Diff(want, got, opts)
	for i, line := range diff {
		if i == 20 {
			t.Errorf("and %d more differences", len(diff)-i)
			break
		}
		t.Error(line)
	}
	if len(want) < 2 {
		t.Errorf("the tree has %d names: nothing was compared", len(want))
	}
}

// snapshot records a tree.
func snapshot(t *testing.T, dir string) imagetest.Tree {
	t.Helper()
	tree, err := imagetest.Snapshot(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// mixed returns an image whose layers take turns in all encodings.
func mixed(layers []imagetest.Layer) (*imagetest.Image, error) {
	encodings := imagetest.Encodings()
	blobs := make([]imagetest.Blob, len(layers))
	for i, l := range layers {
		var err error
		if blobs[i], err = encodings[i%len(encodings)].Encode(l); err != nil {
			return nil, err
		}
	}
	return imagetest.NewImage(blobs)
}

// TestTruthAdversarial mounts an image of everything odd in every encoding and
// compares it with what containerd unpacks: with an index that is made at the
// mount, with one from the registry, and with a state folder from before.
func TestTruthAdversarial(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	reg := startRegistry(t)
	ctd := startContainerd(t)
	layers := imagetest.Adversarial()
	type row struct {
		name  string
		build func() (*imagetest.Image, error)
	}
	rows := []row{{"mixed", func() (*imagetest.Image, error) { return mixed(layers) }}}
	for _, e := range imagetest.Encodings() {
		rows = append(rows, row{e.Name, func() (*imagetest.Image, error) { return imagetest.Build(layers, e) }})
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			img, err := row.build()
			if err != nil {
				t.Fatal(err)
			}
			name := strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
					return r
				}
				return '_'
			}, row.name)
			ref := reg.push(t, img, name+":1")
			checkImage(t, ref, snapshot(t, ctd.pull(t, ref)))
		})
	}
}

// checkImage compares all ways to mount an image with the tree that it must
// have.
func checkImage(t *testing.T, ref string, want imagetest.Tree) {
	built, pushed := t.TempDir(), t.TempDir()
	t.Run("built", func(t *testing.T) {
		sameTree(t, want, mount(t, ref, "--state", built, "--index", "build").dir)
	})
	t.Run("restarted", func(t *testing.T) {
		sameTree(t, want, mount(t, ref, "--state", built, "--index", "require").dir)
	})
	t.Run("pushed", func(t *testing.T) {
		graze(t, "index", "--state", t.TempDir(), "--push", ref)
		sameTree(t, want, mount(t, ref, "--state", pushed, "--index", "require").dir)
	})
}

// TestTruthDebian does the same with a real image, and compares it with what
// umoci unpacks too, which keeps the times of directories that have no entry.
func TestTruthDebian(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	needTools(t, "skopeo")
	reg := startRegistry(t)
	ref := pushDebian(t, reg)
	ctd := startContainerd(t)
	plain := ctd.pull(t, ref)
	want := snapshot(t, plain)
	checkImage(t, ref, want)

	t.Run("umoci", func(t *testing.T) {
		needTools(t, "umoci")
		bundle := filepath.Join(t.TempDir(), "bundle")
		image := filepath.Join(imagesDir(t), "debian-python") + ":debian-python"
		if out, err := exec.Command("umoci", "unpack", "--image", image, bundle).CombinedOutput(); err != nil {
			t.Fatalf("umoci: %v\n%s", err, out)
		}
		m := mount(t, ref, "--state", t.TempDir())
		sameTree(t, snapshot(t, filepath.Join(bundle, "rootfs")), m.dir)
	})

	t.Run("program", func(t *testing.T) {
		m := mount(t, ref, "--state", t.TempDir(), "--index", "require")
		run := func(root string) []byte {
			out, err := exec.Command("chroot", root, "python3", "/app/main.py").CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			return out
		}
		if lazy, full := run(m.dir), run(plain); !bytes.Equal(lazy, full) {
			t.Errorf("the program prints %q, and %q where the image is unpacked", lazy, full)
		}
	})
}

// pushDebian pushes the image that scripts/debian-image.sh makes. It skips the
// test where there is none.
func pushDebian(t testing.TB, reg *testRegistry) string {
	t.Helper()
	layout := filepath.Join(imagesDir(t), "debian-python")
	ref := reg.addr + "/debian-python:12"
	out, err := exec.Command("skopeo", "copy", "--quiet", "--dest-tls-verify=false", "oci:"+layout+":debian-python", "docker://"+ref).CombinedOutput()
	if err != nil {
		t.Fatalf("skopeo: %v\n%s", err, out)
	}
	return ref
}

// imagesDir returns the folder of real images, which 'make test' makes.
func imagesDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("GRAZE_IMAGES")
	if dir == "" {
		t.Skip("GRAZE_IMAGES does not name the folder of real images: see scripts/debian-image.sh")
	}
	return dir
}
