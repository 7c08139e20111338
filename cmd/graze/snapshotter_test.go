package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
)

// A rig is a containerd with graze as its snapshotter, and a registry.
type rig struct {
	reg  *testRegistry
	node *testNode
	ctd  *containerd
}

// startRig starts all that a containerd needs which is of the kind given.
func startRig(t testing.TB, cfg containerdConfig, tables string) *rig {
	t.Helper()
	needFUSE(t)
	needTools(t, "runc")
	r := &rig{reg: startRegistry(t)}
	return r.join(t, cfg, tables, "", nil)
}

// join starts a node and its containerd on a rig's registry, as a member of a
// cluster if it is given a key.
func (r *rig) join(t testing.TB, cfg containerdConfig, tables, key string, contacts []string) *rig {
	t.Helper()
	cfg.graze = filepath.Join(t.TempDir(), "graze.sock")
	if cfg.dir == "" {
		cfg.dir = t.TempDir()
	}
	address := cfg.dir + "/sock"
	if cfg.hidden {
		address = ""
	}
	text := fmt.Sprintf("[containerd]\nsocket = %q\naddress = %q\nsmall-image = \"\"\n%s", cfg.graze, address, tables)
	out := &rig{reg: r.reg}
	out.node = startNodeWith(t, text, key, "node", "", contacts)
	out.ctd = startContainerdWith(t, cfg)
	return out
}

// containerds calls f for each version of containerd that there is. Version 2 is
// in a folder of its own, which 'make test' makes.
func containerds(t *testing.T, f func(t *testing.T, cfg containerdConfig)) {
	t.Helper()
	t.Run("1", func(t *testing.T) { f(t, containerdConfig{}) })
	t.Run("2", func(t *testing.T) {
		dir := os.Getenv("GRAZE_CONTAINERD2")
		if dir == "" {
			t.Skip("GRAZE_CONTAINERD2 does not name a folder with containerd 2: see scripts/containerd2.sh")
		}
		f(t, containerdConfig{bin: dir})
	})
}

// pullLazily pulls an image with graze, as users of that containerd do.
func (r *rig) pullLazily(t testing.TB, ref string) {
	t.Helper()
	if r.ctd.bin == "" {
		graze(t, "pull", "--address", r.ctd.socket(), ref)
		return
	}
	r.ctd.ctr(t, "image", "pull", "--plain-http", "--snapshotter", "graze", ref)
}

// run runs a container to its end, and returns its output and exit code.
func (c *containerd) run(t testing.TB, snapshotter, ref, id string, args ...string) (string, int) {
	t.Helper()
	return c.runWith(t, nil, snapshotter, ref, id, args...)
}

// runWith is run with more flags.
func (c *containerd) runWith(t testing.TB, flags []string, snapshotter, ref, id string, args ...string) (string, int) {
	t.Helper()
	// What a container prints goes straight to a file: ctr stops copying it when the
	// container has ended, whether or not it has all.
	log := filepath.Join(t.TempDir(), "log")
	flags = append([]string{"--address", c.socket(), "run", "--rm", "--log-uri", "file://" + log, "--snapshotter", snapshotter}, flags...)
	args = append(append(flags, ref, id), args...)
	cmd := exec.Command(c.program("ctr"), args...)
	var stderr bytes.Buffer // it has warnings of version 2
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	printed, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if len(printed) == 0 {
		printed = stderr.Bytes()
	}
	return string(printed), cmd.ProcessState.ExitCode()
}

// start starts a container that waits until it is stopped.
func (c *containerd) start(t testing.TB, snapshotter, ref, id string) {
	t.Helper()
	c.ctr(t, "run", "--detach", "--snapshotter", snapshotter, ref, id, "/probe", "wait")
	t.Cleanup(func() { c.stop(t, id) })
}

// stop takes a container away, if it is there.
func (c *containerd) stop(t testing.TB, id string) {
	t.Helper()
	if !slices.Contains(strings.Fields(c.ctr(t, "container", "ls", "-q")), id) {
		return
	}
	c.ctr(t, "task", "rm", "--force", id)
	c.ctr(t, "container", "rm", id)
}

// rootfs returns where the root file system of a running container is mounted.
func (c *containerd) rootfs(id string) string {
	return filepath.Join(c.dir, "state/io.containerd.runtime.v2.task/default", id, "rootfs")
}

// probe is the program that containers run, which is built once.
var probe = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "graze-probe")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "probe")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the probe: %w\n%s", err, out)
	}
	return os.ReadFile(file)
})

// bulk is how much of an image's bytes its program leaves alone when it waits.
const bulk = 24 << 20

// probeLayers are the layers of an image that has the probe, a lot of bytes that
// only the report reads, and all that is odd, too.
func probeLayers(t testing.TB, seed uint64) []imagetest.Layer {
	t.Helper()
	program, err := probe()
	if err != nil {
		t.Fatal(err)
	}
	file := imagetest.File("probe", program)
	file.Header.Mode = 0o755
	layers := []imagetest.Layer{
		{Name: "base", Members: imagetest.Members(
			imagetest.Dir("etc/"),
			imagetest.File("etc/motd", []byte("hello\n")),
			imagetest.File("etc/other", []byte("other\n")),
			imagetest.File("etc/gone", []byte("gone\n")),
			imagetest.Symlink("etc/link", "motd"),
			imagetest.File("etc/mode", imagetest.Text(seed, 5000)),
			imagetest.Dir("tree/"),
			imagetest.Dir("tree/below/"),
			imagetest.File("tree/below/file", []byte("file\n")),
		)},
		{Name: "bulk", Members: imagetest.Members(
			imagetest.Dir("bulk/"),
			imagetest.File("bulk/random", imagetest.Random(seed, bulk)),
		)},
		{Name: "empty", Members: imagetest.Members()},
		{Name: "top", Members: imagetest.Members(
			imagetest.Dir("etc/"),
			imagetest.Whiteout("etc/", "gone"),
			imagetest.File("tree/below/more", []byte("more\n")),
			file,
		)},
		{Name: "empty", Members: imagetest.Members()},
	}
	return layers
}

// probeImage pushes an image of probeLayers. Its layers take turns in the encodings.
func (r *rig) probeImage(t testing.TB, name string, seed uint64, encodings ...imagetest.Encoding) (ref string, size int64) {
	t.Helper()
	layers := probeLayers(t, seed)
	blobs := make([]imagetest.Blob, len(layers))
	for i, l := range layers {
		var err error
		if blobs[i], err = encodings[i%len(encodings)].Encode(l); err != nil {
			t.Fatal(err)
		}
		size += blobs[i].Size
	}
	img, err := imagetest.NewImage(blobs, "/probe", "wait")
	if err != nil {
		t.Fatal(err)
	}
	return r.reg.push(t, img, name+":1"), size
}

// views returns how many mounts of graze's containers there are on this node.
func (r *rig) views(t testing.TB) int {
	t.Helper()
	return viewsOf(t, r.node.state)
}

// viewsOf returns how many mounts of graze there are in a node's state folder.
func viewsOf(t testing.TB, state string) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[2] == "fuse.graze" && strings.HasPrefix(f[1], state+"/") {
			n++
		}
	}
	return n
}

// eventually waits until f holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	if !within(time.Minute, f) {
		t.Fatal("in a minute this has not come true: ", what)
	}
}

// within waits until f holds, or until so much time has passed. It returns whether f
// holds.
func within(d time.Duration, f func() bool) bool {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return false
		}
	}
	return true
}

// reason returns why an image is served as it is.
func (r *rig) reason(t *testing.T, ref string) (reasons []string) {
	t.Helper()
	repository, _, _ := strings.Cut(ref[len(r.reg.addr):], ":")
	for _, i := range r.node.stats(t).Containerd.Images {
		if strings.HasPrefix(i.Name, r.reg.addr+repository+"@") {
			reasons = append(reasons, i.Reason)
		}
	}
	return reasons
}

// TestContainerd pulls and runs images of all kinds, by ctr. Each must need far
// fewer bytes to start than it has, and behave as it does with overlayfs.
func TestContainerd(t *testing.T) {
	containerds(t, func(all *testing.T, cfg containerdConfig) {
		r := startRig(all, cfg, "")
		rows := []struct {
			name      string
			encodings []imagetest.Encoding
			publish   bool
			whole     bool // the pull reads all layers, to index them
		}{
			{name: "indexed", encodings: []imagetest.Encoding{imagetest.Gzip(gzip.BestSpeed)}, publish: true},
			{name: "estargz", encodings: []imagetest.Encoding{imagetest.EStargz("estargz")}},
			{name: "unindexed", encodings: []imagetest.Encoding{imagetest.Gzip(gzip.BestSpeed)}, whole: true},
			{name: "mix", encodings: []imagetest.Encoding{imagetest.EStargz("estargz"), imagetest.Zstd(), imagetest.MultiMemberGzip(1 << 20)}, publish: true},
		}
		for i, row := range rows {
			all.Run(row.name, func(t *testing.T) {
				ref, size := r.probeImage(t, row.name, uint64(i+1), row.encodings...)
				if row.publish {
					graze(t, "index", "--state", t.TempDir(), "--push", ref)
				}
				before := r.reg.blobBytes(t).Bytes
				r.pullLazily(t, ref)
				r.ctd.start(all, "graze", ref, row.name+"-waits")
				got := r.reg.blobBytes(t).Bytes - before
				most := size / 3
				if row.whole {
					most = size * 11 / 10
				}
				if got > most {
					t.Errorf("the start took %d bytes of %d from the registry", got, size)
				}
				if got := r.reason(t, ref); !slices.Equal(got, []string{"lazy"}) {
					t.Errorf("the reasons are %q", got)
				}
				if n := r.views(t); n != i+1 {
					t.Errorf("%d views are mounted for %d images", n, i+1)
				}
				r.alike(t, ref, row.name)
			})
		}
		r.cleaned(all)
	})
}

// alike runs an image with graze and with overlayfs, and compares.
func (r *rig) alike(t *testing.T, ref, name string) {
	t.Helper()
	lazy, code := r.ctd.run(t, "graze", ref, name+"-lazy", "/probe")
	r.ctd.ctr(t, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
	want, wantCode := r.ctd.run(t, "overlayfs", ref, name+"-plain", "/probe")
	if code != wantCode || code != 7 {
		t.Errorf("exit code is %d, and %d with overlayfs", code, wantCode)
	}
	if lazy != want || !strings.Contains(want, "bulk/random") {
		t.Errorf("the container prints\n%s\nand with overlayfs\n%s", lazy, want)
	}
	if out, code := r.ctd.run(t, "graze", ref, name+"-missing", "/missing"); code == 0 || !strings.Contains(out, "no such file") {
		t.Errorf("a program that is not there ends with %d: %s", code, out)
	}
}

// cleaned removes all containers and images, after which nothing must be left.
func (r *rig) cleaned(t *testing.T) {
	t.Helper()
	for _, id := range strings.Fields(r.ctd.ctr(t, "container", "ls", "-q")) {
		r.ctd.stop(t, id)
	}
	for _, ref := range strings.Fields(r.ctd.ctr(t, "image", "ls", "-q")) {
		r.ctd.ctr(t, "image", "rm", "--sync", ref)
	}
	for _, dir := range []string{"snapshots", "views"} {
		dir = filepath.Join(r.node.state, "containerd", dir)
		eventually(t, dir+" is empty", func() bool {
			list, err := os.ReadDir(dir)
			return err == nil && len(list) == 0
		})
	}
	if n := r.views(t); n != 0 {
		t.Errorf("%d views are mounted", n)
	}
}

// TestContainerTruth compares the root file system of a running container, which
// has a writable layer, with that of one that was pulled.
func TestContainerTruth(t *testing.T) {
	r := startRig(t, containerdConfig{}, "")
	layers := slices.Concat(imagetest.Adversarial(), probeLayers(t, 1))
	img, err := mixed(layers)
	if err != nil {
		t.Fatal(err)
	}
	ref := r.reg.push(t, img, "odd:1")
	r.pullLazily(t, ref)
	r.ctd.start(t, "graze", ref, "lazy")
	r.ctd.ctr(t, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
	r.ctd.start(t, "overlayfs", ref, "plain")
	sameTree(t, snapshot(t, r.ctd.rootfs("plain")), r.ctd.rootfs("lazy"))
	// Both copy a file up in the same way.
	for _, id := range []string{"plain", "lazy"} {
		name := filepath.Join(r.ctd.rootfs(id), "etc/mode")
		if err := errors.Join(os.Chmod(name, 0o600), unix.Setxattr(name, "user.x", []byte("y"), 0)); err != nil {
			t.Fatal(err)
		}
	}
	sameTree(t, snapshot(t, r.ctd.rootfs("plain")), r.ctd.rootfs("lazy"))
}

// TestContainerdCluster pulls an image without index on two nodes: the second one
// has the index and the bytes from the first.
func TestContainerdCluster(t *testing.T) {
	containerds(t, func(t *testing.T, cfg containerdConfig) {
		needFUSE(t)
		key := filepath.Join(t.TempDir(), "key")
		graze(t, "key", "new", key)
		only := &rig{reg: startRegistry(t)}
		first := only.join(t, cfg, "", key, nil)
		second := only.join(t, cfg, "", key, []string{first.node.addr})
		first.node.members(t, 2)
		second.node.members(t, 2)
		ref, size := only.probeImage(t, "unindexed", 1, imagetest.Gzip(gzip.BestSpeed))
		first.pullLazily(t, ref)
		want, _ := first.ctd.run(t, "graze", ref, "one", "/probe")
		second.pullLazily(t, ref)
		got, code := second.ctd.run(t, "graze", ref, "two", "/probe")
		if code != 7 || got != want {
			t.Errorf("the second node ends with %d and prints\n%s\nthe first one\n%s", code, got, want)
		}
		if got := second.reason(t, ref); !slices.Equal(got, []string{"lazy"}) {
			t.Errorf("the reasons on the second node are %q", got)
		}
		// Who makes an index reads the layer, and so do those who are its home.
		if n := only.reg.blobBytes(t).Bytes; n > 2*size*11/10 {
			t.Errorf("the registry gave %d bytes to two nodes, for layers of %d", n, size)
		}
	})
}
