package node

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ctd "github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"

	"graze/image/imagetest"
)

// TestSweepOrder has more metadata than is wanted: what was not used for longest goes
// first, and no more than has to.
func TestSweepOrder(t *testing.T) {
	st := newStateTest(t)
	n := st.open(t)
	kept := int64(0)
	names := []string{"a", "b", "c"}
	known := make(map[string]fs.FileInfo)
	for i, name := range names {
		st.close(t, st.use(t, n, st.push(t, oneFile(t, name), name+":1")))
		for path, f := range st.files(t) {
			if known[path] == nil {
				at := time.Now().Add(time.Duration(i-len(names)) * time.Hour)
				if err := os.Chtimes(path, at, at); err != nil {
					t.Fatal(err)
				}
				if i > 0 {
					kept += f.Size()
				}
			}
		}
		known = st.files(t)
	}
	n.metadataLimit = kept
	before := n.metadataStats()
	st.sweep(t, n)
	if got := st.there(t, n, names...); got != "b c" {
		t.Errorf("%s are there without a registry", got)
	}
	s := n.metadataStats()
	files := st.files(t)
	if s.Bytes != kept || s.Limit != kept || int(s.Files) != len(files) || int(s.Removed-before.Removed) != len(known)-len(files) || s.InUse != 0 {
		t.Errorf("%+v, of %d files %d are left", s, len(known), len(files))
	}

	// What has been used stays instead of what has not, be that newer.
	st.age(t)
	tree := st.use(t, n, st.ref("b:1"))
	at := time.Now().Add(-usedLately * 3 / 2)
	n.metadataLimit = 0
	for path, f := range st.files(t) {
		if time.Since(f.ModTime()) > usedLately {
			continue
		}
		n.metadataLimit += f.Size()
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	st.close(t, tree)
	st.sweep(t, n)
	if got := st.there(t, n, names...); got != "b" {
		t.Errorf("%s are there after that", got)
	}
}

// TestSweepSpares has no metadata wanted at all. What images in use need stays, also
// when a node starts that has opened none of them yet.
func TestSweepSpares(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, as containerd's snapshots do")
	}
	st := newStateTest(t)
	withSnapshots := func(cfg *Config) { cfg.Containerd = &ContainerdConfig{Socket: filepath.Join(st.state, "c.sock")} }
	n := st.open(t, withSnapshots)
	refs := make(map[string]string)
	trees := make(map[string]*Tree)
	for _, name := range []string{"mounted", "held", "open", "unused", "snapshot", "late"} {
		refs[name] = st.push(t, oneFile(t, name), name+":1")
		if name != "late" {
			trees[name] = st.use(t, n, refs[name])
		}
	}
	rec, err := newMountRecord("/none", trees["mounted"].Image, MountOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.write(st.state); err != nil {
		t.Fatal(err)
	}
	seeds := filepath.Join(st.state, "seeds.json")
	if n.seeds, err = n.newSeeds(seeds); err != nil {
		t.Fatal(err)
	}
	if err := n.seeds.Add(trees["held"].Image.byDigest()); err != nil {
		t.Fatal(err)
	}
	img := trees["snapshot"].Image
	chain := string(chainIDs(img.DiffIDs)[0])
	_, err = n.snaps.Prepare(t.Context(), "extract", "", ctd.WithLabels(map[string]string{
		ctd.LabelSnapshotRef:                   chain,
		snapshotters.TargetRefLabel:            refs["snapshot"],
		snapshotters.TargetManifestDigestLabel: string(img.Digest),
	}))
	if !errdefs.IsAlreadyExists(err) {
		t.Fatalf("the layer is not lazy: %v", err)
	}
	for name, tree := range trees {
		if name != "open" {
			st.close(t, tree)
		}
	}
	st.age(t)
	late := st.use(t, n, refs["late"])
	st.close(t, late)
	st.sweep(t, n)
	if got := st.there(t, n, slices.Sorted(maps.Keys(refs))...); got != "held late mounted open snapshot" {
		t.Errorf("%s are there without a registry", got)
	}
	if s := n.metadataStats(); s.InUse == 0 || s.Bytes <= s.InUse {
		t.Errorf("%+v: some is of images in use, and some was used lately", s)
	}
	st.close(t, trees["open"])

	st.restart(t)
	n = st.open(t, withSnapshots)
	if n.seeds, err = n.newSeeds(seeds); err != nil {
		t.Fatal(err)
	}
	st.age(t)
	st.sweep(t, n)
	if got := st.there(t, n, slices.Sorted(maps.Keys(refs))...); got != "held mounted snapshot" {
		t.Errorf("%s are there after a restart", got)
	}

	// Nobody uses them any more.
	if err := rec.remove(st.state); err != nil {
		t.Fatal(err)
	}
	if err := n.snaps.Remove(t.Context(), chain); err != nil {
		t.Fatal(err)
	}
	if err := n.SeedRemove(t.Context(), img.Repository); err == nil {
		t.Error("another image is held")
	}
	for _, s := range n.seeds.List() {
		if err := n.SeedRemove(t.Context(), s.Reference); err != nil {
			t.Fatal(err)
		}
	}
	st.age(t)
	st.sweep(t, n)
	if files := st.files(t); len(files) != 0 {
		t.Errorf("left are %v", slices.Sorted(maps.Keys(files)))
	}
	st.restart(t)
	n = st.open(t)
	for _, ref := range refs {
		st.close(t, st.use(t, n, ref))
	}
}

// TestSweepKinds has nothing but one image that is in use, of each kind: all that was
// kept of it stays, so that the view can be made again without a registry.
func TestSweepKinds(t *testing.T) {
	for _, kind := range imageKinds {
		t.Run(kind.name, func(t *testing.T) {
			st := newStateTest(t)
			n := st.open(t)
			tree := st.use(t, n, kind.push(t, st))
			if _, formats := reports(tree.View.Info().Layers); !strings.Contains(formats, kind.format) {
				t.Fatalf("the image is opened as %s", formats)
			}
			rec, err := newMountRecord("/none", tree.Image, MountOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := rec.write(st.state); err != nil {
				t.Fatal(err)
			}
			st.age(t)
			before := slices.Sorted(maps.Keys(st.files(t)))
			st.sweep(t, n) // it is open
			st.close(t, tree)
			st.age(t)
			st.sweep(t, n) // it is known by its record alone
			if after := slices.Sorted(maps.Keys(st.files(t))); !slices.Equal(before, after) {
				t.Errorf("left of %v\nare %v", before, after)
			}
			if s := n.metadataStats(); s.InUse != s.Bytes || s.Removed != 0 {
				t.Errorf("%+v", s)
			}
			if err := rec.remove(st.state); err != nil {
				t.Fatal(err)
			}
			st.age(t)
			st.sweep(t, n)
			if files := st.files(t); len(files) != 0 {
				t.Errorf("not used any more are %v", slices.Sorted(maps.Keys(files)))
			}
		})
	}
}

// TestAnyFileCanGo removes each file by itself, as a node that is killed while it
// sweeps may leave any of them: the image can be opened again all the same.
func TestAnyFileCanGo(t *testing.T) {
	for _, kind := range imageKinds {
		t.Run(kind.name, func(t *testing.T) {
			st := newStateTest(t)
			n := st.open(t)
			ref := kind.push(t, st)
			st.close(t, st.use(t, n, ref))
			for path := range st.files(t) {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				st.close(t, st.use(t, n, ref))
			}
		})
	}
}

// TestSweepLeftovers has files that a killed process did not complete.
func TestSweepLeftovers(t *testing.T) {
	st := newStateTest(t)
	n := st.open(t)
	st.close(t, st.use(t, n, st.push(t, oneFile(t, "a"), "a:1")))
	before := len(st.files(t))
	for i, name := range []string{"blobs/sha256/.new-1", "blobs/sha256/.new-2", "views/a.view.tmp-1", "views/a.view.tmp-2"} {
		path := filepath.Join(st.state, name)
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-leftoverAfter * time.Duration(i%2*2))
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	n.metadataLimit = 1 << 30
	st.sweep(t, n)
	left := strings.Join(slices.Sorted(maps.Keys(st.files(t))), " ")
	if strings.Contains(left, "-2") || strings.Count(left, "-1") != 2 || len(st.files(t)) != before+2 {
		t.Errorf("left are %s", left)
	}
}

// oneFile returns an image of one layer with a file.
func oneFile(t *testing.T, name string) *imagetest.Image {
	t.Helper()
	layer := imagetest.Layer{Name: name, Members: imagetest.Members(imagetest.File(name, imagetest.Text(uint64(len(name)), 300_000+int(name[0]))))}
	img, err := imagetest.Build([]imagetest.Layer{layer}, imagetest.Gzip(6))
	if err != nil {
		t.Fatal(err)
	}
	return img
}
