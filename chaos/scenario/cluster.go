package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"graze/chaos"
	"graze/chaos/lab"
	agent "graze/node"
	"graze/registry"
)

const (
	registryAddr = "10.77.255.1"
	registryPort = "5000"
	// gracePeriod is what processes have to end in at the end.
	gracePeriod = 10 * time.Second
)

// A cluster is a registry and nodes, each on a machine of its own.
type cluster struct {
	spec     Cluster
	failing  []int  // numbers of the nodes whose disks can fail
	binary   string // of graze
	dir      string
	log      *slog.Logger
	net      *lab.Network
	nodes    []*node
	liar     *lab.Process // nil if there is none
	store    *registry.Registry
	faults   *chaos.Registry
	gate     *chaos.Gate
	ledger   *ledger
	machine  *lab.Machine // the registry's; nil if the nodes ran already
	behind   http.Handler // the registry without faults
	registry string       // host:port at which nodes find it
	served   errgroup.Group
	stop     context.CancelFunc // ends the registry
}

// newCluster makes the machines and starts the registry; no node runs. Close it
// after use, whatever the error.
func newCluster(s *Scenario, cfg Config) (*cluster, error) {
	// Paths of sockets are short, and so is this.
	dir, err := os.MkdirTemp("", "graze-chaos")
	if err != nil {
		return nil, err
	}
	c := &cluster{spec: s.Cluster, failing: s.failing(), binary: cfg.Binary, dir: dir, log: cfg.Log}
	set := c.init
	if len(cfg.Running.Sockets) > 0 {
		set = c.joinRunning
	}
	if err := set(cfg); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cluster) init(cfg Config) (err error) {
	if c.net, err = lab.NewNetwork(c.spec.Racks); err != nil {
		return err
	}
	if c.machine, err = c.net.Add(lab.Outside, registryAddr, c.spec.Registry); err != nil {
		return err
	}
	if c.store, err = registry.New(filepath.Join(c.dir, "registry"), registry.Config{}); err != nil {
		return err
	}
	c.behind, c.registry = c.store, registryAddr+":"+registryPort
	err = c.serveRegistry(cfg.Seed, func(addr string) (net.Listener, error) { return c.machine.Listen("tcp", addr) })
	if err != nil {
		return fmt.Errorf("start the registry: %w", err)
	}
	key, err := exec.Command(c.binary, "key", "new").Output()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "key"), key, 0o600); err != nil {
		return err
	}
	for i := range c.spec.Nodes {
		n, err := c.newNode(i)
		if err != nil {
			return fmt.Errorf("make %s: %w", nodeName(i), err)
		}
		c.nodes = append(c.nodes, n)
	}
	return nil
}

// nodeName returns what a node is called.
func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// address returns the address of node i, in its rack's network.
func (c *cluster) address(i int) string {
	return fmt.Sprintf("10.77.%d.%d", i%c.spec.Racks, 1+i/c.spec.Racks)
}

// newNode makes the machine, the disk and the settings of node i.
func (c *cluster) newNode(i int) (*node, error) {
	n := &node{
		name: nodeName(i), rack: i % c.spec.Racks, cluster: c,
		state: filepath.Join(c.dir, nodeName(i)), socket: agent.Socket(filepath.Join(c.dir, nodeName(i))), dir: filepath.Join(c.dir, nodeName(i)+".mnt"),
	}
	var err error
	if n.machine, err = c.net.Add(n.rack, c.address(i), c.spec.Link); err != nil {
		return nil, err
	}
	if err := errors.Join(os.Mkdir(n.state, 0o700), os.Mkdir(n.dir, 0o755)); err != nil {
		return nil, err
	}
	if err := n.makeDisk(slices.Contains(c.failing, i)); err != nil {
		return nil, errors.Join(fmt.Errorf("make a disk: %w", err), n.close())
	}
	return n, n.writeSettings(c.settings(i))
}

// settings returns what the file of node i has.
func (c *cluster) settings(i int) map[string]any {
	join := []string{c.address(0) + ":7946"}
	if c.spec.Nodes > 1 {
		join = append(join, c.address(1)+":7946")
	}
	all := map[string]any{
		"state":               filepath.Join(c.dir, nodeName(i)),
		"keep-mounts":         "nobody",
		"registry.plain-http": true,
		"cluster.key-file":    filepath.Join(c.dir, "key"),
		"cluster.name":        nodeName(i),
		"cluster.listen":      c.address(i) + ":7945",
		"cluster.gossip":      c.address(i) + ":7946",
		"cluster.p2p":         c.address(i) + ":7947",
		"cluster.join":        join,
		"cluster.rack":        fmt.Sprintf("rack-%d", i%c.spec.Racks),
		"cluster.seed":        c.spec.seed(i),
	}
	maps.Copy(all, c.spec.settings(i))
	return all
}

// writeSettings writes the node's file. Names with a dot are in a table.
func (n *node) writeSettings(settings map[string]any) error {
	tree := make(map[string]any)
	for key, value := range settings {
		table, name, ok := strings.Cut(key, ".")
		if !ok {
			tree[key] = value
			continue
		}
		if tree[table] == nil {
			tree[table] = make(map[string]any)
		}
		tree[table].(map[string]any)[name] = value
	}
	text, err := toml.Marshal(tree)
	if err != nil {
		return err
	}
	return os.WriteFile(n.state+".toml", text, 0o600)
}

// publish pushes an image with its index, and returns how nodes name it.
func (c *cluster) publish(ctx context.Context, s *Scenario, files []file) (ref string, layers []string, err error) {
	// It is pushed on the loopback of this host: registries there need no TLS.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	served := make(chan error, 1)
	go func() { served <- registry.Serve(ctx, ln, c.behind, registry.Config{}) }()
	local := ln.Addr().String() + "/" + s.Name + ":1"
	if layers, err = push(ctx, local, s.Name, files); err != nil {
		return "", nil, fmt.Errorf("push the image: %w", err)
	}
	state, err := os.MkdirTemp(c.dir, "index")
	if err != nil {
		return "", nil, err
	}
	index := exec.CommandContext(ctx, c.binary, "index", "--push", "--state", state, local)
	if out, err := index.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("index the image: %w\n%s", err, out)
	}
	cancel()
	return c.registry + "/" + s.Name + ":1", layers, <-served
}

// close ends all that runs and takes away what was made.
func (c *cluster) close() error {
	var errs []error
	if c.liar != nil {
		errs = append(errs, endProcess(c.liar))
	}
	var ends errgroup.Group
	for _, n := range c.nodes {
		ends.Go(n.close)
	}
	errs = append(errs, ends.Wait())
	if c.stop != nil {
		c.stop()
		errs = append(errs, c.served.Wait())
	}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	if c.net != nil {
		c.net.Close()
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// endProcess ends a process, kindly at first.
func endProcess(p *lab.Process) error {
	_ = p.Signal(unix.SIGCONT)
	_ = p.Signal(unix.SIGTERM)
	select {
	case <-p.Exited():
		return nil
	case <-time.After(gracePeriod):
	}
	_ = p.Signal(unix.SIGKILL)
	<-p.Exited()
	return fmt.Errorf("process %d did not end in %v", p.PID(), gracePeriod)
}

// logs returns what the nodes have said, for whoever looks for a cause.
func (c *cluster) logs(w io.Writer) error {
	for _, n := range c.nodes {
		text, err := os.ReadFile(n.state + ".log")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if _, err := fmt.Fprintf(w, "== %s\n%s", n.name, text); err != nil {
			return err
		}
	}
	return nil
}
