package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/chaos/lab"
	"graze/node"
)

// wholeClusterEnv makes the tests of clusters use larger images, and check times.
const wholeClusterEnv = "GRAZE_TEST_CLUSTER"

// patience bounds everything that a test of clusters waits for. It is far more
// than anything takes.
const patience = 4 * time.Minute

// A clusterShape says how large a cluster is, and how fast its links are.
type clusterShape struct {
	nodes, racks int
	rate         string // of a node's link, as tc(8) writes it
	origin       string // of the registry's
	encrypt      bool
	top          string // more lines of each node's configuration
	copies       int    // that the cluster makes of what is mounted
	seeds        bool   // the first node of each rack is a seed
	settings     string // more lines of the table "cluster" of each node's configuration
	pools        bool   // each rack gossips by itself; those after the first know an address of the first
}

// A testCluster is a registry and nodes, which are processes of their own in
// network namespaces of their own. Node i is in rack i modulo the racks.
type testCluster struct {
	shape  clusterShape
	dir    string
	binary string
	key    string
	net    *testNetwork
	reg    *clusterRegistry
	nodes  []*clusterNode
}

// A clusterNode is one node of a testCluster.
type clusterNode struct {
	*lab.Machine
	cluster *testCluster
	name    string
	rack    int
	state   string // folder
	mnt     string // where images are mounted

	mu      sync.Mutex
	proc    *lab.Process  // guarded by mu; nil: not running
	healthy chan struct{} // guarded by mu; closed once the image can be read
	kills   int           // guarded by mu
}

// plainBinary is the file of the binary that nodes run, which is built once: the
// race detector would take their time. TestMain removes its folder.
var plainBinary struct {
	once sync.Once
	dir  string
	err  error
}

// buildPlain returns the file of the binary that nodes run.
func buildPlain() (string, error) {
	b := &plainBinary
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "graze-test"); b.err == nil {
			b.err = runCommand("go", "build", "-o", filepath.Join(b.dir, "graze"), ".")
		}
	})
	return filepath.Join(b.dir, "graze"), b.err
}

// newCluster makes the machines of a cluster and starts its registry. No node
// runs yet. All is gone after the test.
func newCluster(t testing.TB, shape clusterShape) *testCluster {
	t.Helper()
	needFUSE(t)
	needNetwork(t)
	needTools(t, "go")
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	// Paths of sockets are short, and so is this.
	dir, err := os.MkdirTemp("", "graze")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c := &testCluster{shape: shape, dir: dir, binary: binary, key: filepath.Join(dir, "key")}
	graze(t, "key", "new", c.key)
	c.net = newNetwork(t, shape.racks)
	c.reg = startClusterRegistry(t, c.net.add(t, -1, registryAddr, shape.origin))
	for i := range shape.nodes {
		n := c.addNode(t, i)
		c.nodes = append(c.nodes, n)
	}
	t.Cleanup(func() { c.end(t) })
	return c
}

// addNode makes the machine of node i.
func (c *testCluster) addNode(t testing.TB, i int) *clusterNode {
	t.Helper()
	n := &clusterNode{cluster: c, name: fmt.Sprintf("node-%d", i), rack: i % c.shape.racks, healthy: make(chan struct{})}
	n.Machine = c.net.add(t, n.rack, fmt.Sprintf("10.77.%d.%d", n.rack, 1+i), c.shape.rate)
	join := fmt.Sprintf(`join = ["10.77.0.1:7946", "10.77.%d.2:7946"]`, 1%c.shape.racks)
	if c.shape.pools {
		join = fmt.Sprintf("join = [\"10.77.%d.%d:7946\"]\noutside = true", n.rack, 1+n.rack)
		if n.rack > 0 {
			join += "\nbootstrap = [\"10.77.0.1:7947\"]"
		}
	}
	n.state, n.mnt = filepath.Join(c.dir, n.name), filepath.Join(c.dir, n.name+".mnt")
	config := c.shape.top + fmt.Sprintf(`
state = %q
keep-mounts = "nobody"
[registry]
plain-http = true
[cluster]
key-file = %q
name = %q
listen = "%[4]s:7945"
gossip = "%[4]s:7946"
p2p = "%[4]s:7947"
%[5]s
rack = "rack-%[6]d"
encrypt = %[7]t
copies = %[8]d
seed = %[9]t
%[10]s
`, n.state, c.key, n.name, n.Addr, join, n.rack, c.shape.encrypt, c.shape.copies, c.shape.seeds && i < c.shape.racks, c.shape.settings)
	if err := errors.Join(os.Mkdir(n.mnt, 0o755), os.WriteFile(n.state+".toml", []byte(config), 0o600)); err != nil {
		t.Fatal(err)
	}
	return n
}

// start runs the node's process and waits until it answers.
func (n *clusterNode) start(ctx context.Context) error {
	log, err := os.OpenFile(n.state+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(n.cluster.binary, "node", "--config", n.state+".toml")
	cmd.Stdout, cmd.Stderr = log, log
	p, err := n.Machine.Start(cmd)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.proc = p
	n.mu.Unlock()
	return poll(ctx, func() error {
		select {
		case <-p.Exited():
			return errStop{fmt.Errorf("%s has ended: %v", n.name, p.Err())}
		default:
		}
		_, err := n.stats(ctx)
		return err
	})
}

// kill ends the node's process without warning, and takes its dead mount away.
func (n *clusterNode) kill() {
	n.end(syscall.SIGKILL)
	_ = unix.Unmount(n.mnt, unix.MNT_DETACH)
}

// end sends the node's process a signal and waits for its end.
func (n *clusterNode) end(sig syscall.Signal) {
	n.mu.Lock()
	p := n.proc
	n.proc = nil
	if p != nil {
		n.kills++
		n.healthy = make(chan struct{})
	}
	n.mu.Unlock()
	if p == nil {
		return
	}
	_ = p.Signal(sig)
	select {
	case <-p.Exited():
	case <-time.After(patience):
		_ = p.Signal(syscall.SIGKILL)
		<-p.Exited()
	}
}

// life returns how often the node has been ended, and a channel that is closed
// once its image can be read.
func (n *clusterNode) life() (kills int, healthy <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kills, n.healthy
}

// errStop wraps an error that waiting does not change.
type errStop struct{ error }

// poll calls f until it returns nil or ctx is done. Processes tell nobody what
// they have got to.
func poll(ctx context.Context, f func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if stop := (errStop{}); err == nil || errors.As(err, &stop) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w; at last: %w", context.Cause(ctx), err)
		}
	}
}

// stats returns the node's figures.
func (n *clusterNode) stats(ctx context.Context) (node.Stats, error) {
	remote, err := node.Dial(node.Socket(n.state))
	if err != nil {
		return node.Stats{}, err
	}
	defer remote.Close()
	return remote.Stats(ctx)
}

// peers returns what the node knows of its cluster's nodes, itself among them.
func (n *clusterNode) peers(ctx context.Context) ([]node.PeerInfo, error) {
	remote, err := node.Dial(node.Socket(n.state))
	if err != nil {
		return nil, err
	}
	defer remote.Close()
	return remote.Peers(ctx)
}

// mount mounts an image on the node, whose index must be there.
func (n *clusterNode) mount(ctx context.Context, ref string) error {
	return n.mountBy(ctx, ref, node.IndexOptions{})
}

// mountBy mounts an image on the node.
func (n *clusterNode) mountBy(ctx context.Context, ref string, opts node.IndexOptions) error {
	remote, err := node.Dial(node.Socket(n.state))
	if err != nil {
		return err
	}
	defer remote.Close()
	if _, err := remote.Mount(ctx, ref, n.mnt, opts); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.healthy)
	return nil
}

// unmount takes the image away.
func (n *clusterNode) unmount(ctx context.Context) error {
	n.mu.Lock()
	n.healthy = make(chan struct{})
	n.mu.Unlock()
	if err := unix.Unmount(n.mnt, 0); err != nil {
		return fmt.Errorf("unmount %s: %w", n.mnt, err)
	}
	return poll(ctx, func() error {
		s, err := n.stats(ctx)
		if err == nil && len(s.Mounts) > 0 {
			err = errors.New("it still has the mount")
		}
		return err
	})
}

// peer returns what the node knows of another one.
func (n *clusterNode) peer(ctx context.Context, name string) (node.PeerInfo, error) {
	list, err := n.peers(ctx)
	if err != nil {
		return node.PeerInfo{}, err
	}
	for _, p := range list {
		if p.Name == name {
			return p, nil
		}
	}
	return node.PeerInfo{}, fmt.Errorf("%s does not know %s", n.name, name)
}

// startAll starts nodes and waits until each of them knows all.
func (c *testCluster) startAll(t testing.TB, ctx context.Context) {
	t.Helper()
	each(t, c.nodes, func(n *clusterNode) error { return n.start(ctx) })
	c.settle(t, ctx)
}

// settle waits until each node that runs knows all that run, and no other.
func (c *testCluster) settle(t testing.TB, ctx context.Context) {
	t.Helper()
	var running []*clusterNode
	for _, n := range c.nodes {
		if n.running() {
			running = append(running, n)
		}
	}
	each(t, running, func(n *clusterNode) error {
		return poll(ctx, func() error {
			list, err := n.peers(ctx)
			if err != nil {
				return err
			}
			want, ready := 0, 0
			for _, other := range running {
				if !c.shape.pools || other.rack == n.rack {
					want++
				}
			}
			for _, p := range list {
				if p.Ready {
					ready++
				}
			}
			if ready != want || len(list) != ready {
				return fmt.Errorf("%d nodes are known, %d of them ready; there are %d", len(list), ready, want)
			}
			return nil
		})
	})
}

func (n *clusterNode) running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc != nil
}

// each calls f for all nodes at the same time. An error ends the test.
func each(t testing.TB, nodes []*clusterNode, f func(*clusterNode) error) {
	t.Helper()
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			if err := f(n); err != nil {
				errs[i] = fmt.Errorf("%s: %w", n.name, err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// end ends all nodes. Each must leave nothing behind.
func (c *testCluster) end(t testing.TB) {
	var wg sync.WaitGroup
	for _, n := range c.nodes {
		wg.Go(func() {
			n.mu.Lock()
			p := n.proc
			n.mu.Unlock()
			n.end(syscall.SIGTERM)
			if p != nil && p.Err() != nil {
				t.Errorf("%s: %v", n.name, p.Err())
			}
			if isMounted(n.mnt) {
				t.Errorf("%s: the image is still mounted", n.name)
				_ = unix.Unmount(n.mnt, unix.MNT_DETACH)
			}
		})
	}
	wg.Wait()
	for _, n := range c.nodes {
		c.logged(t, n)
	}
}

// logged shows what a node has logged that is not good, if the test has failed.
func (c *testCluster) logged(t testing.TB, n *clusterNode) {
	if !t.Failed() {
		return
	}
	text, err := os.ReadFile(n.state + ".log")
	if err != nil {
		return
	}
	shown := 0
	for line := range bytes.Lines(text) {
		if shown < 20 && (bytes.Contains(line, []byte("WARN")) || bytes.Contains(line, []byte("ERROR")) || bytes.Contains(line, []byte("panic")) || bytes.HasPrefix(line, []byte("graze:"))) {
			t.Logf("%s: %s", n.name, line)
			shown++
		}
	}
}

// clusterReaders is how many files are read at a time on each node.
const clusterReaders = 8

// read reads files of the image that the node has mounted, in their order, some at a
// time, and checks each.
func (n *clusterNode) read(ctx context.Context, files []wantedFile) error {
	var next atomic.Int64
	errs := make([]error, clusterReaders)
	var readers sync.WaitGroup
	for i := range errs {
		readers.Go(func() {
			for errs[i] == nil {
				at := int(next.Add(1)) - 1
				if at >= len(files) {
					return
				}
				errs[i] = n.readOne(ctx, files[at])
			}
		})
	}
	readers.Wait()
	return errors.Join(errs...)
}

// readOne reads and checks one file. An error that is that of a killed node is not
// one: the file is read again when the node is back.
func (n *clusterNode) readOne(ctx context.Context, f wantedFile) error {
	for {
		kills, healthy := n.life()
		select {
		case <-healthy:
		case <-ctx.Done():
			return fmt.Errorf("before %s: %w", f.path, context.Cause(ctx))
		}
		err := n.readFile(ctx, f)
		if err == nil {
			return nil
		}
		wrong := wrongBytes{}
		if now, _ := n.life(); now == kills || errors.As(err, &wrong) {
			return err
		}
	}
}

// wrongBytes says that a file has other bytes than it must have.
type wrongBytes struct{ path string }

func (w wrongBytes) Error() string { return w.path + " has wrong bytes" }

// readFile reads and checks one file. A node that lets it wait beyond the end of
// ctx is killed, which ends the wait.
func (n *clusterNode) readFile(ctx context.Context, want wantedFile) error {
	stop := context.AfterFunc(ctx, n.kill)
	defer stop()
	f, err := os.Open(filepath.Join(n.mnt, want.path))
	if err == nil {
		defer f.Close()
		h := sha256.New()
		var size int64
		if size, err = io.Copy(h, f); err == nil {
			if size != want.size || [sha256.Size]byte(h.Sum(nil)) != want.sum {
				return wrongBytes{want.path}
			}
			return nil
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("read %s: %w", want.path, context.Cause(ctx))
	}
	return err
}

// mountAll mounts the image on nodes, all at the same time.
func mountAll(t testing.TB, ctx context.Context, nodes []*clusterNode, img *testImage) {
	t.Helper()
	each(t, nodes, func(n *clusterNode) error { return n.mount(ctx, img.ref) })
}

// readAll reads all files of the image on nodes at the same time, each of them in
// the same order. It returns how long that took.
func readAll(t testing.TB, ctx context.Context, nodes []*clusterNode, img *testImage) time.Duration {
	t.Helper()
	begin := time.Now()
	each(t, nodes, func(n *clusterNode) error { return n.read(ctx, img.files) })
	return time.Since(begin)
}

// mbit returns the bytes/s of a rate as tc(8) writes it.
func mbit(rate string) float64 {
	var n float64
	if _, err := fmt.Sscanf(strings.TrimSuffix(rate, "mbit"), "%g", &n); err != nil {
		panic(err)
	}
	return n * 1e6 / 8
}

// fluid is the time that the links need at least to bring size bytes to all.
func (s clusterShape) fluid(size int64) time.Duration {
	f, n, up, origin := float64(size), float64(s.nodes), mbit(s.rate), mbit(s.origin)
	return time.Duration(max(f/origin, f/up, n*f/(origin+n*up)) * float64(time.Second))
}
