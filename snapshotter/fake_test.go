package snapshotter

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"graze/chunk"
)

// needRoot skips a test that mounts.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
}

// fakeImages has images of which a view is a file system in memory, with one file
// for each layer, named by its number.
type fakeImages struct {
	// before is called by what may take the network.
	before func(ctx context.Context, op, name string) error

	mu      sync.Mutex // guards what follows
	images  map[string]Image
	mounted map[string]View // by folder
	mounts  int             // ever
}

func newFakeImages() *fakeImages {
	return &fakeImages{
		before:  func(context.Context, string, string) error { return nil },
		images:  map[string]Image{},
		mounted: map[string]View{},
	}
}

// add makes an image with layers of these names.
func (f *fakeImages) add(repository string, layers ...string) Image {
	img := Image{Name: repository + "@sha256:" + fmt.Sprint(layers), Repository: repository, Size: 100 << 20, Unpackable: true}
	chain := chunk.Blob("")
	for _, l := range layers {
		chain += chunk.Blob("/" + l)
		img.Chains = append(img.Chains, "chain:"+chain)
	}
	f.images[img.Name] = img
	f.images[repository+":1"] = img
	return img
}

// pack has an image that was added consist of layers that containerd can't unpack.
func (f *fakeImages) pack(repository string) {
	img := f.images[repository+":1"]
	img.Unpackable = false
	f.images[repository+":1"], f.images[img.Name] = img, img
}

// Resolve implements Images.
func (f *fakeImages) Resolve(ctx context.Context, name string) (Image, error) {
	if err := f.before(ctx, "resolve", name); err != nil {
		return Image{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	img, ok := f.images[withoutTag(name)]
	if !ok {
		return Image{}, fmt.Errorf("%s: %w", name, chunk.ErrNotFound)
	}
	return img, nil
}

// Ready implements Images.
func (f *fakeImages) Ready(ctx context.Context, name string, build bool) error {
	if !build {
		return ErrNoIndex
	}
	return f.before(ctx, "ready", name)
}

// Mount implements Images.
func (f *fakeImages) Mount(ctx context.Context, v View, dir string) error {
	if err := f.before(ctx, "mount", v.Image); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mounted[dir] == v {
		return nil
	}
	if err := unix.Mount("graze-test", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	for i := range v.Layers {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i+1)), []byte(v.Image), 0o644); err != nil {
			return err
		}
	}
	f.mounted[dir] = v
	f.mounts++
	return nil
}

// Unmount implements Images.
func (f *fakeImages) Unmount(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.mounted[dir]; !ok {
		return nil
	}
	delete(f.mounted, dir)
	return unix.Unmount(dir, unix.MNT_DETACH)
}

// views returns what is mounted.
func (f *fakeImages) views() map[string]View {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.mounted)
}

// ownerOf returns who owns a file.
func ownerOf(t *testing.T, name string) (uid, gid uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid, st.Gid
}
