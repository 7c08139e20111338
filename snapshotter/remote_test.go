package snapshotter

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"graze/chunk"
)

// open opens a snapshotter whose Run is called by hand, until the end of the test.
func open(t *testing.T, cfg Config, images *fakeImages) *Snapshotter {
	t.Helper()
	needRoot(t)
	s, err := Open(cfg, images)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for dir := range images.views() {
			_ = images.Unmount(dir)
		}
	})
	return s
}

// criLabels are those that a client sets who tells the image.
func criLabels(img Image, chain chunk.Blob) map[string]string {
	_, digest, _ := strings.Cut(img.Name, "@")
	return map[string]string{
		snapshots.LabelSnapshotRef:             string(chain),
		snapshotters.TargetRefLabel:            img.Repository + ":1",
		snapshotters.TargetManifestDigestLabel: digest,
	}
}

// pull asks for all layers of an image as containerd's unpacker does, and plays
// its part for those that are not served lazily. It returns how many are.
func pull(t *testing.T, s *Snapshotter, img Image) (lazy int) {
	t.Helper()
	parent := ""
	for _, chain := range img.Chains {
		labels := criLabels(img, chain)
		key := "extract " + string(chain) + " of " + img.Name
		_, err := s.Prepare(t.Context(), key, parent, snapshots.WithLabels(labels))
		switch {
		case errdefs.IsAlreadyExists(err):
			lazy++
		case err != nil:
			t.Fatal(err)
		default:
			if err := s.Commit(t.Context(), string(chain), key, snapshots.WithLabels(labels)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Stat(t.Context(), string(chain)); err != nil {
			t.Fatal(err)
		}
		parent = string(chain)
	}
	return lazy
}

// top is the chain ID of an image's highest layer.
func top(img Image) string { return string(img.Chains[len(img.Chains)-1]) }

// names mounts a snapshot and returns what its root has.
func names(t *testing.T, mounts []mount.Mount) (list []string) {
	t.Helper()
	dir := t.TempDir()
	if err := mount.All(mounts, dir); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := mount.UnmountAll(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestSharedView starts containers of images that share layers, and looks at what
// is mounted.
func TestSharedView(t *testing.T) {
	images := newFakeImages()
	s := open(t, Config{Root: t.TempDir()}, images)
	app := images.add("r.test/app", "a", "b", "c")
	base := images.add("r.test/base", "a", "b")
	if n := pull(t, s, app); n != 3 {
		t.Fatalf("%d layers are lazy", n)
	}
	if n := pull(t, s, base); n != 2 {
		t.Fatalf("%d layers of the base are lazy", n)
	}
	if len(images.views()) != 0 {
		t.Error("something is mounted before the first container")
	}
	prepare := func(key, parent string) []mount.Mount {
		t.Helper()
		mounts, err := s.Prepare(t.Context(), key, parent)
		if err != nil {
			t.Fatal(err)
		}
		return mounts
	}
	for _, key := range []string{"one", "two", "three"} {
		if got := names(t, prepare(key, top(app))); !cmp.Equal(got, []string{"1", "2", "3"}) {
			t.Errorf("container of the image has %v", got)
		}
	}
	if got := names(t, prepare("below", top(base))); !cmp.Equal(got, []string{"1", "2"}) {
		t.Errorf("container of the base has %v", got)
	}
	view, err := s.View(t.Context(), "look", top(app))
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, view); view[0].Type != "bind" || !cmp.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("a view is %v and has %v", view, got)
	}
	if n := images.mounts; n != 2 {
		t.Errorf("%d mounts were made for two images", n)
	}

	for _, key := range []string{"one", "two", "three", "below"} {
		if err := s.Remove(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	cleanup(t, s)
	if got := images.views(); len(got) != 1 {
		t.Errorf("a snapshot is left, and these views are: %v", got)
	}
	if err := s.Remove(t.Context(), "look"); err != nil {
		t.Fatal(err)
	}
	cleanup(t, s)
	nothingLeft(t, s, images, len(app.Chains))
}

// cleanup has what is not needed taken away.
func cleanup(t *testing.T, s *Snapshotter) {
	t.Helper()
	if err := s.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// nothingLeft fails the test unless there are folders for so many snapshots, and
// no views.
func nothingLeft(t *testing.T, s *Snapshotter, images *fakeImages, snapshots int) {
	t.Helper()
	if got := images.views(); len(got) != 0 {
		t.Errorf("views that nobody uses are mounted: %v", got)
	}
	for dir, want := range map[string]int{s.views.dir: 0, s.snapshotsDir(): snapshots} {
		list, err := os.ReadDir(dir)
		if err != nil || len(list) != want {
			t.Errorf("%s has %v, and not %d folders: %v", filepath.Base(dir), list, want, err)
		}
	}
}

// TestLocalLayers builds upon an image, and upon what was built.
func TestLocalLayers(t *testing.T) {
	images := newFakeImages()
	s := open(t, Config{Root: t.TempDir()}, images)
	app := images.add("r.test/app", "a", "b")
	pull(t, s, app)
	parent := top(app)
	for _, name := range []string{"x", "y"} {
		mounts, err := s.Prepare(t.Context(), "build "+name, parent)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := mount.All(mounts, dir); err != nil {
			t.Fatal(err)
		}
		err = os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644)
		if err := mount.UnmountAll(dir, 0); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(t.Context(), "built "+name, "build "+name); err != nil {
			t.Fatal(err)
		}
		parent = "built " + name
	}
	usage, err := s.Usage(t.Context(), "built y")
	if err != nil || usage.Size == 0 || usage.Inodes == 0 {
		t.Errorf("usage of a local layer is %+v, %v", usage, err)
	}
	mounts, err := s.Prepare(t.Context(), "run", parent)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, mounts); !cmp.Equal(got, []string{"1", "2", "x", "y"}) {
		t.Errorf("the container has %v", got)
	}
	cleanup(t, s)
	if len(images.views()) != 1 || images.mounts != 1 {
		t.Errorf("%d views are mounted, %d were", len(images.views()), images.mounts)
	}
}

// TestSecondNamespace pulls an image whose lower layer another namespace has
// unpacked, so that its snapshot has another name.
func TestSecondNamespace(t *testing.T) {
	images := newFakeImages()
	s := open(t, Config{Root: t.TempDir()}, images)
	app := images.add("r.test/app", "a", "b")
	pull(t, s, app)
	if _, err := s.Prepare(t.Context(), "k", ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), "ns/7/plain", "k"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := s.Prepare(t.Context(), "ns/8/extract", "ns/7/plain", snapshots.WithLabels(criLabels(app, app.Chains[1])))
		if !errdefs.IsAlreadyExists(err) {
			t.Fatal("the upper layer is not served lazily: ", err)
		}
	}
	// This is how containerd looks for the snapshot.
	var found []snapshots.Info
	filter := `labels."containerd.io/snapshot.ref"==` + top(app) + `,parent=="ns/7/plain"`
	err := s.Walk(t.Context(), func(_ context.Context, info snapshots.Info) error {
		found = append(found, info)
		return nil
	}, filter)
	if err != nil || len(found) != 1 || found[0].Labels[remoteLabel] == "" {
		t.Fatalf("containerd finds %+v, %v", found, err)
	}
	mounts, err := s.Prepare(t.Context(), "ns/9/run", found[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, mounts); !cmp.Equal(got, []string{"1", "2"}) {
		t.Errorf("the container has %v", got)
	}
}

// TestReopen opens the snapshotter anew while a container is there, and after it
// was killed while it made a snapshot and took one away.
func TestReopen(t *testing.T) {
	images := newFakeImages()
	root := t.TempDir()
	app, other := images.add("r.test/app", "a", "b"), images.add("r.test/other", "c")
	s := open(t, Config{Root: root}, images)
	pull(t, s, app)
	pull(t, s, other)
	for key, parent := range map[string]string{"run": top(app), "gone": top(other)} {
		if _, err := s.Prepare(t.Context(), key, parent); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new-1", "99"} {
		if err := os.MkdirAll(filepath.Join(root, "snapshots", name, "fs"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, Config{Root: root}, images)
	cleanup(t, s)
	if got := images.views(); len(got) != 1 {
		t.Errorf("views are %v", got)
	}
	if mounts, err := s.Mounts(t.Context(), "run"); err != nil {
		t.Error(err)
	} else if got := names(t, mounts); !cmp.Equal(got, []string{"1", "2"}) {
		t.Errorf("the container has %v", got)
	}
	if images.mounts != 2 {
		t.Errorf("%d mounts were made", images.mounts)
	}
	if err := s.Remove(t.Context(), "run"); err != nil {
		t.Fatal(err)
	}
	cleanup(t, s)
	nothingLeft(t, s, images, 3)
}

// TestMountUnavailable: what can't be mounted now, as when the node is ending, is
// worth another try, and leaves nothing.
func TestMountUnavailable(t *testing.T) {
	images := newFakeImages()
	s := open(t, Config{Root: t.TempDir()}, images)
	img := images.add("r.test/app", "a")
	pull(t, s, img)
	images.before = func(_ context.Context, op, _ string) error {
		if op == "mount" {
			return chunk.ErrUnavailable
		}
		return nil
	}
	if _, err := s.Prepare(t.Context(), "container", top(img)); !errdefs.IsUnavailable(err) {
		t.Errorf("the error is %v", err)
	}
	if _, err := s.Stat(t.Context(), "container"); !errdefs.IsNotFound(err) {
		t.Errorf("of the snapshot that was not mounted: %v", err)
	}
	cleanup(t, s)
	nothingLeft(t, s, images, len(img.Chains))
}

// TestViews asks for the views that containers can be started upon.
func TestViews(t *testing.T) {
	images := newFakeImages()
	root := t.TempDir()
	s := open(t, Config{Root: root}, images)
	views := func() map[View]bool {
		t.Helper()
		list, err := s.Views(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		set := map[View]bool{}
		for _, v := range list {
			set[v] = true
		}
		return set
	}
	if v := views(); len(v) != 0 {
		t.Errorf("at first %v", v)
	}
	app := images.add("r.test/app", "a", "b")
	pull(t, s, app)
	if _, err := s.Prepare(t.Context(), "run", top(app)); err != nil {
		t.Fatal(err)
	}
	if v, want := views(), (map[View]bool{{app.Name, 1}: true, {app.Name, 2}: true}); !cmp.Equal(v, want) {
		t.Errorf("%v, want %v", v, want)
	}
	damaged, err := filepath.Glob(filepath.Join(root, "snapshots", "*", viewFile))
	if err != nil || len(damaged) != 2 {
		t.Fatal(damaged, err)
	}
	if err := os.WriteFile(damaged[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := views(); len(v) != 1 {
		t.Errorf("with a damaged one %v", v)
	}
}
