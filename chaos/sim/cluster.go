package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"graze/chunk"
	"graze/directory"
	"graze/scheduler"
)

// A Config describes a cluster. Rates are in bytes a second.
type Config struct {
	Seed          uint64
	Nodes         int
	Racks         int
	Up, Down      int64         // of each node's link; default 125 MB/s
	Origin        int64         // of the registry; default 125 MB/s
	Latency       time.Duration // one way within a rack; default 100 µs. Twice that between racks
	OriginLatency time.Duration // default 20 ms
	MinRack       int           // least size of a rack that has homes of its own; default 3
	Image         *Image
	// Directory configures what nodes know of each other's chunks; Blind nodes
	// have no directory.
	Directory directory.Config
	Blind     bool
	// Step, if set, is called at each step that a node takes on the network.
	Step      func()
	Scheduler scheduler.Config
}

// A Cluster is nodes on a network. Close it after use.
type Cluster struct {
	Nodes []*Node

	cfg      Config
	image    *Image
	registry *registry
	byID     map[chunk.PeerID]*Node
	stored   map[chunk.ID][]byte

	mu      sync.Mutex
	cutRack string // nothing passes between it and the others
	near    int64  // bytes that went from node to node within racks
	far     int64  // and between racks
	told    int    // messages of directories
	views   uint64 // how often a node's view has changed
}

// New makes a cluster whose nodes all believe in each other. None is started.
func New(cfg Config) *Cluster {
	if cfg.Up == 0 {
		cfg.Up = 125e6
	}
	if cfg.Down == 0 {
		cfg.Down = 125e6
	}
	if cfg.Origin == 0 {
		cfg.Origin = 125e6
	}
	if cfg.Latency == 0 {
		cfg.Latency = 100 * time.Microsecond
	}
	if cfg.OriginLatency == 0 {
		cfg.OriginLatency = 20 * time.Millisecond
	}
	if cfg.MinRack == 0 {
		cfg.MinRack = 3
	}
	c := &Cluster{
		cfg:      cfg,
		image:    cfg.Image,
		byID:     make(map[chunk.PeerID]*Node),
		stored:   make(map[chunk.ID][]byte),
		registry: &registry{blobs: maps.Clone(cfg.Image.blobs), latency: cfg.OriginLatency},
	}
	c.registry.link.setRate(cfg.Origin)
	c.Show(cfg.Image)
	for i := range cfg.Nodes {
		n := &Node{
			c:     c,
			id:    chunk.PeerID(fmt.Sprintf("node%d", i+int(cfg.Seed%1000)*1000)),
			place: scheduler.Place{Rack: fmt.Sprintf("r%d", i%max(cfg.Racks, 1)), Zone: "z"},
			store: &store{chunks: make(map[chunk.ID][]byte), intern: c.intern},
		}
		n.up.setRate(cfg.Up)
		n.down.setRate(cfg.Down)
		c.Nodes = append(c.Nodes, n)
		c.byID[n.id] = n
	}
	for _, n := range c.Nodes {
		n.See(c.Nodes)
	}
	return c
}

// Show makes im what nodes read from now on. No reads may be under way.
func (c *Cluster) Show(im *Image) {
	c.image = im
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	maps.Copy(c.registry.blobs, im.blobs)
	for i, ref := range im.refs {
		c.stored[ref.ID] = im.Bytes(i)
	}
}

// intern returns the bytes of a chunk as they stand in the image, so that many
// nodes can hold it.
func (c *Cluster) intern(v chunk.Verified) []byte {
	if p := c.stored[v.Ref().ID]; p != nil {
		return p
	}
	return append([]byte(nil), v.Bytes()...)
}

func (c *Cluster) config(n *Node) scheduler.Config {
	cfg := c.cfg.Scheduler
	cfg.Cluster, cfg.Peers = n, n
	if n.directory != nil {
		cfg.Directory = n.directory
	}
	return cfg
}

// Start starts all nodes.
func (c *Cluster) Start() error {
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Close ends all nodes that run.
func (c *Cluster) Close() {
	for _, n := range c.Nodes {
		if s, _ := n.scheduler(); s != nil {
			n.Kill()
		}
	}
}

// latency returns how long a message takes from a to b.
func (c *Cluster) latency(a, b *Node) time.Duration {
	if a.place.Rack == b.place.Rack {
		return c.cfg.Latency
	}
	return 2 * c.cfg.Latency
}

// CutRack lets nothing pass between a rack and the other nodes, until it is
// called with "".
func (c *Cluster) CutRack(rack string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cutRack = rack
}

func (c *Cluster) cut(a, b *Node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cutRack != "" && (a.place.Rack == c.cutRack) != (b.place.Rack == c.cutRack)
}

func (c *Cluster) count(from, to *Node, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from.place.Rack == to.place.Rack {
		c.near += int64(n)
	} else {
		c.far += int64(n)
	}
}

// Traffic is what has passed the links.
type Traffic struct {
	Origin   int64 // bytes from the registry
	Requests int   // to the registry
	Near     int64 // bytes between nodes of one rack
	Far      int64 // bytes between racks
	Told     int   // messages of directories
}

// Traffic returns what has passed the links so far.
func (c *Cluster) Traffic() Traffic {
	c.mu.Lock()
	t := Traffic{Near: c.near, Far: c.far, Told: c.told}
	c.mu.Unlock()
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	t.Origin = c.registry.bytes
	t.Requests = len(c.registry.requests)
	return t
}

// Requests returns what the registry was asked for, in order.
func (c *Cluster) Requests() []Range {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	return slices.Clone(c.registry.requests)
}

func (c *Cluster) step() {
	if c.cfg.Step != nil {
		c.cfg.Step()
	}
}

// CutRegistry has the registry not answer, or answer again.
func (c *Cluster) CutRegistry(down bool) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.registry.down = down
}

// FluidLimit returns the least time in which all nodes can have the image if
// bytes were a fluid.
func (c *Cluster) FluidLimit() time.Duration {
	f, n := float64(c.image.Size()), float64(len(c.Nodes))
	origin, up, down := float64(c.cfg.Origin), float64(c.cfg.Up), float64(c.cfg.Down)
	t := max(f/origin, f/down, n*f/(origin+n*up))
	return time.Duration(t * float64(time.Second))
}

// Order returns the numbers of all chunks, shuffled unless rng is nil.
func (c *Cluster) Order(rng *rand.Rand) []int {
	order := make([]int, c.image.Chunks())
	for i := range order {
		order[i] = i
	}
	if rng != nil {
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	return order
}
