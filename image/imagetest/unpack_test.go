package imagetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/archive"
	"golang.org/x/sys/unix"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("unpacking devices and owners needs root")
	}
}

// unpackFlat applies the archives to one directory.
func unpackFlat(ctx context.Context, dir string, layers []io.Reader) error {
	for i, r := range layers {
		if _, err := archive.Apply(ctx, dir, r); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return nil
}

// unpackOverlay applies each archive to a directory of its own, as containerd
// does for overlayfs, and returns where they are mounted one over the other.
func unpackOverlay(t testing.TB, layers []io.Reader) (string, error) {
	t.Helper()
	// Not TempDir, whose name may have characters that mean something in options.
	base, err := os.MkdirTemp("", "imagetest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	var parents []string // the top first
	for i, r := range layers {
		dir := filepath.Join(base, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := archive.Apply(t.Context(), dir, r,
			archive.WithParents(slices.Clone(parents)), archive.WithConvertWhiteout(archive.OverlayConvertWhiteout))
		if err != nil {
			return "", fmt.Errorf("layer %d: %w", i, err)
		}
		parents = slices.Insert(parents, 0, dir)
	}
	merged := filepath.Join(base, "merged")
	empty := filepath.Join(base, "empty")
	for _, dir := range []string{merged, empty} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Two lower directories at least, or the kernel wants an upper one.
	opts := "lowerdir=" + strings.Join(append(parents, empty), ":")
	if err := unix.Mount("overlay", merged, "overlay", unix.MS_RDONLY, opts); err != nil {
		t.Skipf("no overlayfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return merged, nil
}

func archives(t testing.TB, layers []Layer) []io.Reader {
	t.Helper()
	var list []io.Reader
	for _, l := range layers {
		p, err := l.Tar()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, bytes.NewReader(p))
	}
	return list
}

func snapshot(t testing.TB, dir string) Tree {
	t.Helper()
	tree, err := Snapshot(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// overlayOptions leave out what overlayfs doesn't keep: the link count of a
// group that a higher layer broke up.
func overlayOptions() DiffOptions {
	opts := SameFiles()
	for _, name := range []string{"a", "c", "d"} {
		opts.IgnoreAt["change/group/"+name] = NLink
	}
	return opts
}

// TestAdversarialUnpacks unpacks the layers in containerd's two ways, which must
// give one tree.
func TestAdversarialUnpacks(t *testing.T) {
	needRoot(t)
	flat := t.TempDir()
	if err := unpackFlat(t.Context(), flat, archives(t, Adversarial())); err != nil {
		t.Fatal(err)
	}
	a := snapshot(t, flat)
	if len(a) < 1700 {
		t.Errorf("%d names", len(a))
	}
	merged, err := unpackOverlay(t, archives(t, Adversarial()))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range Diff(a, snapshot(t, merged), overlayOptions()) {
		t.Error(d)
	}
	checkAdversarial(t, a)
}

// checkAdversarial checks some of what the layers are to show.
func checkAdversarial(t *testing.T, tree Tree) {
	t.Helper()
	for _, name := range []string{
		"change/removed dir/sub", "change/removed dir/a", "change/removed and made again", "change/file to dir", "change/merged/removed",
		"change/opaque/replaced", "change/opaque late/hidden", "change/opaque late/added", "change/opaque, empty/hidden",
		"change/group/a", "change/group/e", "kinds/null", "change/dir to file/a", "archive/file then dir/b",
	} {
		if tree[name] != nil {
			t.Errorf("%q is there", name)
		}
	}
	for name, want := range map[string]string{
		"links/dir/c": "links/a", "links/symlink2": "links/dangling", "links/null2": "links/null",
		"change/group/c": "", "change/group/b": "", "archive/twice, link": "archive/twice",
	} {
		if n := tree[name]; n == nil || n.Group != want {
			t.Errorf("%q: %+v, want a link to %q", name, n, want)
		}
	}
	if n := tree["contents/sparse"]; n == nil || n.Size != 3<<20 {
		t.Errorf("sparse file: %+v", n)
	}
	if n := tree["times/1"]; n == nil || n.MTime.Unix() != 0 {
		t.Errorf("time before the epoch: %+v", n)
	}
	if n := tree["xattrs/capability"]; n == nil || n.Xattrs["security.capability"] != capability {
		t.Errorf("capability: %+v", n)
	}
}

func TestDeterministic(t *testing.T) {
	a, b := Adversarial(), Adversarial()
	for i := range a {
		x, err := a[i].Tar()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			y, err := b[i].Tar()
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(x, y) {
				t.Errorf("layer %s varies", a[i].Name)
			}
		}
	}
}

func TestHostileFates(t *testing.T) {
	needRoot(t)
	for _, c := range Hostile() {
		t.Run(c.Name, func(t *testing.T) {
			dir := t.TempDir()
			flatErr := unpackFlat(t.Context(), dir, archives(t, c.Layers))
			merged, overlayErr := unpackOverlay(t, archives(t, c.Layers))
			if c.Fate == Refused {
				if flatErr == nil || overlayErr == nil {
					t.Fatalf("unpacked: %v, %v", flatErr, overlayErr)
				}
				return
			}
			if flatErr != nil {
				t.Fatal(flatErr)
			}
			if c.Fate == Differs {
				if overlayErr == nil && len(Diff(snapshot(t, dir), snapshot(t, merged), SameFiles())) == 0 {
					t.Error("both ways give the same tree")
				}
				return
			}
			if overlayErr != nil {
				t.Fatal(overlayErr)
			}
			opts := SameFiles()
			strict := SameFiles()
			for _, name := range c.Unstable {
				opts.IgnoreAt[name] = MTime
			}
			a, b := snapshot(t, dir), snapshot(t, merged)
			for _, d := range Diff(a, b, opts) {
				t.Error(d)
			}
			if got := Diff(a, b, strict); len(got) != len(c.Unstable) {
				t.Errorf("unstable are %q, want %q", got, c.Unstable)
			}
		})
	}
}
