package directory

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"graze/chunk"
)

// A View is the members of a cluster at one moment. It never changes.
type View interface {
	// Epoch is different for members that are different.
	Epoch() uint64
	// Keepers appends those who keep what is known of a chunk, the first in line
	// first.
	Keepers(dst []chunk.PeerID, key Key) []chunk.PeerID
	// Members appends all members.
	Members(dst []chunk.PeerID) []chunk.PeerID
}

// A Cluster is the other nodes.
type Cluster interface {
	// Self is this node's name.
	Self() chunk.PeerID
	// View returns the members now.
	View() View
	// Tell sends a message to a node, and returns when that has taken it.
	Tell(ctx context.Context, to chunk.PeerID, m Message) error
}

// MaxKeys is the most keys of a message.
const MaxKeys = 2048

// A Message says which chunks its sender holds.
type Message struct {
	Start uint64 // number of the sender's start
	Keys  []Key
}

// Config holds a Directory's settings. The zero value is usable.
type Config struct {
	// Limit is the most chunks that are known; default 262,144.
	Limit int
	// Interval is how long what is to be told is collected; default 2 s.
	Interval time.Duration
	// Settle is how long the members must not have changed before the keepers
	// that are new are told of all that the node has; default 5 s.
	Settle time.Duration
	// Stored ranges over the chunks that the node has; default none.
	Stored iter.Seq[chunk.ID]
}

func (c Config) withDefaults() (Config, error) {
	if c.Limit < 0 || c.Interval < 0 || c.Settle < 0 {
		return c, errors.New("directory: a limit is negative")
	}
	if c.Limit == 0 {
		c.Limit = 1 << 18
	}
	if c.Interval == 0 {
		c.Interval = 2 * time.Second
	}
	if c.Settle == 0 {
		c.Settle = 5 * time.Second
	}
	if c.Stored == nil {
		c.Stored = func(func(chunk.ID) bool) {}
	}
	return c, nil
}

const (
	// maxPending bounds the chunks that wait to be told of.
	maxPending = 1 << 16
	// tellers is how many nodes are told at a time, and tellTime how long each may
	// take.
	tellers  = 8
	tellTime = 5 * time.Second
)

// A Directory is one node's part in finding chunks by what they are. It is safe
// for concurrent use.
type Directory struct {
	cluster Cluster
	cfg     Config
	table   *table
	start   uint64

	mu      sync.Mutex // guards what follows
	pending []Key      // got, and not told of
	starts  map[chunk.PeerID]uint64
	behind  map[chunk.PeerID]bool // nodes that have to be told of all
}

// New returns a Directory. It starts no goroutines and does no I/O.
func New(cluster Cluster, cfg Config) (*Directory, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Directory{
		cluster: cluster,
		cfg:     cfg,
		table:   newTable(cfg.Limit),
		start:   rand.Uint64(),
		starts:  make(map[chunk.PeerID]uint64),
		behind:  make(map[chunk.PeerID]bool),
	}, nil
}

// Got notes that the node has got a chunk that others may look for.
func (d *Directory) Got(id chunk.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.pending) < maxPending {
		d.pending = append(d.pending, KeyOf(id))
	}
}

// Heard takes a message of another node.
func (d *Directory) Heard(from chunk.PeerID, m Message) {
	d.table.note(from, m.Keys)
	d.mu.Lock()
	defer d.mu.Unlock()
	old, known := d.starts[from]
	if known && old == m.Start {
		return
	}
	if !known && len(d.starts) == maxNodes {
		clear(d.starts)
	}
	d.starts[from] = m.Start
	// A node that is new to this one is a new member too, and told as such.
	if known {
		d.behind[from] = true
	}
}

// Keepers appends the nodes to ask who holds a chunk, the first in line first;
// this node may be one of them.
func (d *Directory) Keepers(dst []chunk.PeerID, id chunk.ID) []chunk.PeerID {
	return d.cluster.View().Keepers(dst, KeyOf(id))
}

// Holders appends the nodes that this one has heard to hold a chunk.
func (d *Directory) Holders(dst []chunk.PeerID, id chunk.ID) []chunk.PeerID {
	return d.table.appendHolders(dst, KeyOf(id))
}

// Known returns the number of chunks that the node has heard of.
func (d *Directory) Known() int { return d.table.len() }

// Run tells keepers what the node has and gets until ctx is done.
func (d *Directory) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { d.follow(ctx) })
	tick := time.NewTicker(d.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.Flush(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Flush tells the keepers of what the node has got so far, and returns when they
// know, or can't be reached.
func (d *Directory) Flush(ctx context.Context) {
	d.mu.Lock()
	keys := d.pending
	d.pending = nil
	d.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	view := d.cluster.View()
	out := make(outbox)
	for _, key := range keys {
		out.add(view.Keepers(nil, key), key)
	}
	d.send(ctx, out)
}

// An outbox is what is to be told to each node.
type outbox map[chunk.PeerID][]Key

func (o outbox) add(to []chunk.PeerID, key Key) {
	for _, id := range to {
		o[id] = append(o[id], key)
	}
}

// send tells nodes, some at a time. Those that can't be told are behind from then
// on.
func (d *Directory) send(ctx context.Context, out outbox) {
	self := d.cluster.Self()
	d.table.note(self, out[self])
	delete(out, self)
	slots := make(chan struct{}, tellers)
	var wg sync.WaitGroup
	for to, keys := range out {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if d.tell(ctx, to, keys) != nil {
				d.mu.Lock()
				d.behind[to] = true
				d.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// tell tells one node, in as many messages as it takes.
func (d *Directory) tell(ctx context.Context, to chunk.PeerID, keys []Key) error {
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	if len(keys) == 0 {
		return d.cluster.Tell(ctx, to, Message{Start: d.start})
	}
	for part := range slices.Chunk(keys, MaxKeys) {
		if err := d.cluster.Tell(ctx, to, Message{d.start, part}); err != nil {
			return err
		}
	}
	return nil
}
