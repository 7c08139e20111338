package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"graze/image/imagetest"
)

// A cycleScale is how much TestCycles does.
type cycleScale struct{ cycles, images, atOnce int }

func cycleScaleOf() cycleScale {
	if os.Getenv(wholeClusterEnv) != "" {
		return cycleScale{cycles: 100, images: 10, atOnce: 20}
	}
	return cycleScale{cycles: 8, images: 4, atOnce: 4}
}

// TestCycles pulls images, and starts and stops containers, while their node is
// killed, ended and replaced by another binary at random. Each container outlives
// the node at least once, and sees nothing of it. What can't be started while the
// node is away is started again, as kubelet does. At the end nothing is left.
func TestCycles(t *testing.T) {
	containerds(t, func(t *testing.T, cfg containerdConfig) {
		scale := cycleScaleOf()
		c := newCycles(t, cfg)
		for i := range scale.images {
			c.push(t, i)
		}
		ctx, cancel := context.WithCancel(t.Context())
		worked := make(chan struct{})
		go func() {
			defer close(worked)
			c.pullAll(ctx, t)
			c.work(ctx, t, scale)
		}()
		defer func() {
			cancel()
			<-worked
		}()
		c.disturb(t, worked)
		t.Logf("%d containers over %d restarts of the node; %d starts and %d pulls were tried again", scale.cycles, c.lives, c.startedAgain, c.pulledAgain)
		c.accounted(t)
		c.vanished(t)
	})
}

// cycles is a containerd with a node that dies and comes back.
type cycles struct {
	reg    *testRegistry
	node   *keptNode
	ctd    *containerd
	images []cycleImage
	said   bytes.Buffer // by the node in its former lives

	mu           sync.Mutex    // guards what is below
	lives        int           // how often the node has come back
	back         chan struct{} // closed when it does
	away         time.Time     // when the node went last
	startedAgain int
	pulledAgain  int
}

// A cycleImage is an image whose program uses its files, which have this sum.
type cycleImage struct{ ref, sum string }

// newCycles starts a node and a containerd without images.
func newCycles(t *testing.T, cfg containerdConfig) *cycles {
	t.Helper()
	needTools(t, "go", "runc")
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	c := &cycles{reg: startRegistry(t), node: newKeptNode(t), back: make(chan struct{})}
	cfg.graze = filepath.Join(c.node.state, "containerd.sock")
	config := filepath.Join(t.TempDir(), "node.toml")
	cfg.dir = t.TempDir()
	text := fmt.Sprintf("[containerd]\nsocket = %q\naddress = %q\nsmall-image = \"\"\n", cfg.graze, cfg.dir+"/sock")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.node.flags = append(c.node.flags, "--config", config)
	c.node.binary = filepath.Join(t.TempDir(), "graze")
	c.upgrade(t, binary)
	c.node.start(t)
	c.ctd = startContainerdWith(t, cfg)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the node says:\n%s", &c.said)
		}
	})
	return c
}

// upgrade replaces the node's program, as a package does. Another process writes it:
// what this one writes, children that it starts meanwhile can have open, and then it
// can't be run.
func (c *cycles) upgrade(t *testing.T, binary string) {
	t.Helper()
	next := c.node.binary + ".new"
	if err := errors.Join(runCommand("cp", binary, next), os.Rename(next, c.node.binary)); err != nil {
		t.Fatal(err)
	}
}

// usedLayers are the layers of image i, whose program uses its files. They have this
// sum.
func usedLayers(t *testing.T, i int) (layers []imagetest.Layer, sum string) {
	t.Helper()
	program, err := probe()
	if err != nil {
		t.Fatal(err)
	}
	file := imagetest.File("probe", program)
	file.Header.Mode = 0o755
	small, h := []imagetest.Member{imagetest.Dir("data/")}, sha256.New()
	for n := range 40 {
		text := imagetest.Text(uint64(100*i+n), 4000)
		small = append(small, imagetest.File(fmt.Sprintf("data/%02d", n), text))
		h.Write(text)
	}
	large := imagetest.Random(uint64(i), 1<<20)
	h.Write(large)
	layers = []imagetest.Layer{
		{Name: "small", Members: imagetest.Members(small...)},
		{Name: "large", Members: imagetest.Members(imagetest.Dir("data/"), imagetest.File("data/large", large))},
		{Name: "program", Members: imagetest.Members(file)},
	}
	return layers, fmt.Sprintf("%x", h.Sum(nil))
}

// push pushes image i, of one of the formats.
func (c *cycles) push(t *testing.T, i int) {
	t.Helper()
	layers, sum := usedLayers(t, i)
	encodings := []imagetest.Encoding{imagetest.Gzip(6), imagetest.EStargz("estargz"), imagetest.Zstd()}
	img, err := imagetest.Build(layers, encodings[i%len(encodings)], "/probe", "use")
	if err != nil {
		t.Fatal(err)
	}
	ref := c.reg.push(t, img, fmt.Sprintf("cycle-%d:1", i))
	if i%2 == 0 { // the node makes the others' indexes
		graze(t, "index", "--state", t.TempDir(), "--push", ref)
	}
	c.images = append(c.images, cycleImage{ref, sum})
}

// disturb ends the node and starts it again, in all ways, until worked is closed. It
// leaves a node that runs.
func (c *cycles) disturb(t *testing.T, worked <-chan struct{}) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	ms := func(most int) time.Duration { return time.Duration(random.IntN(most)) * time.Millisecond }
	for {
		select {
		case <-time.After(ms(3000)):
		case <-worked:
			return
		}
		sig := syscall.SIGKILL
		if random.IntN(4) == 0 {
			sig = syscall.SIGTERM
		}
		c.end(t, sig)
		pause(t, ms(300))
		switch random.IntN(4) {
		case 0:
			c.upgrade(t, c.node.binary)
		case 1:
			// It is killed while it takes up what the one before has left.
			cmd := c.node.command()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pause(t, ms(200))
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		c.node.start(t)
		c.returned()
	}
}

// end ends the node's process, and keeps what it has said.
func (c *cycles) end(t *testing.T, sig syscall.Signal) {
	t.Helper()
	c.mu.Lock()
	c.away = time.Now()
	c.mu.Unlock()
	c.node.end(t, sig)
	fmt.Fprintf(&c.said, "%s%s at %s\n", c.node.stderr, sig, time.Now().Format(time.RFC3339Nano))
}

// returned notes that the node has come back.
func (c *cycles) returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lives++
	close(c.back)
	c.back = make(chan struct{})
}

// outlive waits until the node has gone and come back.
func (c *cycles) outlive(ctx context.Context) error {
	c.mu.Lock()
	back := c.back
	c.mu.Unlock()
	select {
	case <-back:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// again reports whether what failed is to be tried again, since it said that the
// node was away, and counts it. containerd takes some seconds to find out that the
// node is back.
func (c *cycles) again(begin time.Time, err error, counter *int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := err.Error()
	away := func(said string) bool { return strings.Contains(text, said) }
	// By version, and by what it was about when the node was killed.
	if !slices.ContainsFunc([]string{"navailable", "connection error", "error reading from server"}, away) || c.away.Before(begin.Add(-10*time.Second)) {
		return false
	}
	*counter++
	return true
}

// pullAll pulls all images.
func (c *cycles) pullAll(ctx context.Context, t *testing.T) {
	for _, img := range c.images {
		for ctx.Err() == nil {
			begin := time.Now()
			out, code := grazeCode(t, "pull", "--address", c.ctd.socket(), img.ref)
			if code == 0 {
				break
			}
			if !c.again(begin, errors.New(out), &c.pulledAgain) {
				t.Errorf("pull: exit code %d\n%s", code, out)
				return
			}
			pause(t, startRetry)
		}
	}
}

// work runs containers, so many at once.
func (c *cycles) work(ctx context.Context, t *testing.T, scale cycleScale) {
	todo := make(chan int)
	var wg sync.WaitGroup
	for range scale.atOnce {
		wg.Go(func() {
			for i := range todo {
				if err := c.cycle(ctx, i); err != nil {
					t.Errorf("container %d: %v", i, err)
				}
			}
		})
	}
	for i := range scale.cycles {
		todo <- i
	}
	close(todo)
	wg.Wait()
}

// cycle starts a container, uses it and stops it.
func (c *cycles) cycle(ctx context.Context, i int) error {
	p, err := c.start(ctx, i)
	if err != nil {
		return err
	}
	err = p.hello(ctx)
	if err == nil {
		err = c.outlive(ctx)
	}
	if err == nil {
		err = p.hello(ctx)
	}
	return errors.Join(err, p.stop())
}

// accounted compares what is said of snapshots: by the node, by containerd, and by
// the folders that there are.
func (c *cycles) accounted(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+c.ctd.graze, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	node := proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "graze")
	layers := 3 * len(c.images)
	var have, want []string
	var folders []os.DirEntry
	same := within(time.Minute, func() bool {
		// It may take containerd some seconds to find out that the node is back. What was
		// removed while it was away is collected as garbage with the next removal.
		_, err := c.ctd.try("snapshots", "--snapshotter", "graze", "prepare", "none")
		if err != nil {
			return false
		}
		c.ctd.ctr(t, "snapshots", "--snapshotter", "graze", "rm", "none")
		c.ctd.ctr(t, "leases", "create", "--id", "none", "--expires", "1h")
		c.ctd.ctr(t, "leases", "delete", "--sync", "none")
		listed := c.ctd.ctr(t, "snapshots", "--snapshotter", "graze", "ls")
		have, want = nil, nil
		ctx := namespaces.WithNamespace(t.Context(), "default")
		err = node.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			have = append(have, info.Name[strings.LastIndexByte(info.Name, '/')+1:])
			return nil
		})
		for line := range strings.Lines(listed) {
			if name := strings.Fields(line)[0]; name != "KEY" {
				want = append(want, name)
			}
		}
		slices.Sort(have)
		slices.Sort(want)
		list, bad := os.ReadDir(filepath.Join(c.node.state, "containerd/snapshots"))
		folders = list
		return err == nil && bad == nil && slices.Equal(have, want) && len(want) == layers && len(folders) == layers
	})
	if !same {
		t.Errorf("of %d layers, the node has %q, containerd %q, and there are folders %q", layers, have, want, folders)
	}
	lazy, err := filepath.Glob(filepath.Join(c.node.state, "containerd/snapshots/*/view.json"))
	if err != nil || len(lazy) != layers {
		t.Errorf("%d layers are served lazily (%v)", len(lazy), err)
	}
}

// vanished removes the images, and fails the test if anything is left of them or of
// the containers.
func (c *cycles) vanished(t *testing.T) {
	t.Helper()
	for _, what := range []string{"task", "container"} {
		if left := strings.Fields(c.ctd.ctr(t, what, "ls", "-q")); len(left) > 0 {
			t.Errorf("containerd has for %s %q", what, left)
		}
	}
	for _, img := range c.images {
		c.ctd.ctr(t, "image", "rm", "--sync", img.ref)
	}
	for _, dir := range []string{"snapshots", "views"} {
		dir = filepath.Join(c.node.state, "containerd", dir)
		eventually(t, dir+" is empty", func() bool {
			list, err := os.ReadDir(dir)
			return err == nil && len(list) == 0
		})
	}
	for _, dir := range []string{c.node.state, c.ctd.dir} {
		if at := mountsAt(t, dir); len(at) > 0 {
			t.Errorf("left in the mount table: %q", at)
		}
	}
	c.node.serves(t)
	if list := processesOf(t, c.ctd.dir); len(list) != 1 {
		t.Errorf("processes of containerd: %q", list)
	}
	if list := processesOf(t, c.node.state); len(list) > 2 { // and its keeper
		t.Errorf("processes of the node: %q", list)
	}
}

// processesOf returns the command lines of containerd and graze that name a folder.
func processesOf(t *testing.T, dir string) (list []string) {
	t.Helper()
	for _, name := range glob(t, "/proc/[0-9]*/comm") {
		comm, _ := os.ReadFile(name) // it may have ended
		if !strings.HasPrefix(string(comm), "containerd") && !strings.HasPrefix(string(comm), "graze") {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		if text := strings.ReplaceAll(string(line), "\x00", " "); strings.Contains(text, dir) {
			list = append(list, text)
		}
	}
	return list
}
