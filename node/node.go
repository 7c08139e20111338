package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/chunkstore"
	"graze/cri"
	"graze/directory"
	"graze/fusefs"
	"graze/image/codec"
	"graze/scheduler"
	"graze/seed"
)

// A Node fetches, keeps and serves the chunks of images. One folder belongs to
// one Node at a time. It is safe for concurrent use.
type Node struct {
	*Library
	store   *chunkstore.Store // nil if the node keeps no chunks
	catalog *catalog
	sched   *scheduler.Scheduler
	members *members     // nil if the node works alone
	seeds   *seed.Keeper // nil if the node is no seed
	lookout *lookout     // nil if the node works alone
	outlast *survival    // nil if the node does nothing for images to outlast registries
	proxy   *cri.Proxy   // nil if the node is not asked by kubelet

	visitors *users     // whose pods' images kubelet pulls; nil if the node is not asked
	snaps    *snapshots // nil if the node is no snapshotter of containerd
	started  time.Time
	once     repeats

	directory *directory.Directory // who is said to hold what; nil if the node works alone

	answers       answers
	copying       keyLocks[chunk.Blob] // of blobs that are too large for chunks
	building      keyLocks[chunk.Blob] // of layers
	sharesIndexes bool                 // makes indexes for other nodes, and takes theirs

	ready     chan struct{} // closed when the admin socket answers
	restoring chan struct{} // closed when dirs are locked where mounts are taken up
	serve     chan *Mount   // mounts that Run shall serve
	ended     chan struct{} // closed when Run takes no more

	reserve *reserve         // room for what a mount needs
	keeping *keeping         // nil if mounts end with the node
	dirs    keyLocks[string] // folders where something is mounted or taken up

	monitored MonitorConfig
	drill     Drill

	metadataLimit int64 // in bytes

	mu       sync.Mutex // guards what follows
	mounts   []*Mount
	gone     fusefs.Stats   // of mounts that are no more
	why      error          // Run ends
	trees    map[*Tree]bool // that are open
	metadata MetadataStats
}

// Open opens the node whose state is in cfg.State, and makes the folder if there
// is none. Nothing is fetched before Run. Close it after use.
func Open(cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	visitors := cfg.addUsers()
	var watch *lookout
	if cfg.Cluster != nil {
		watch = newLookout()
		cfg.Origin.Trace.RegistryDown = watch.fail
	}
	lib, err := OpenLibrary(cfg)
	if err != nil {
		return nil, err
	}
	n := &Node{
		Library: lib,
		lookout: watch,
		catalog: newCatalog(lib.client, lib.blobs),
		started: time.Now(),

		ready:     make(chan struct{}),
		restoring: make(chan struct{}),
		serve:     make(chan *Mount),
		ended:     make(chan struct{}),

		monitored: cfg.Monitor,
		drill:     cfg.Drill,
		reserve:   new(reserve),
		trees:     make(map[*Tree]bool),
	}
	if cfg.Hold != nil && !cfg.Uncached {
		n.keeping = newKeeping(cfg.Hold, lib.log)
	}
	var store scheduler.Store = noStore{}
	if !cfg.Uncached {
		n.store, err = chunkstore.Open(filepath.Join(cfg.State, "chunks"), chunkstore.Config{Limit: cfg.StoreLimit, KeepAll: cfg.Drill.Eviction, Log: cfg.Log})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open the chunk store: %w", err), lib.Close())
		}
		store = sectionStore{n.store}
		n.reserve = newReserve(n.dir)
		n.metadataLimit = cfg.metadataLimit(n.store.Stats().Limit)
	}
	policy := scheduler.Config{ReadDeadline: cfg.ReadDeadline, StallTimeout: cfg.patience(), Trace: n.trace()}
	if cfg.Cluster != nil {
		if err := n.enter(&cfg, &policy); err != nil {
			return nil, errors.Join(fmt.Errorf("join the cluster: %w", err), n.Close())
		}
	}
	n.sched, err = scheduler.New(newSpill(store, n.reserve.tight, n.notKept), n.catalog, new(codec.Decoder), policy)
	if err == nil && cfg.CRI != nil {
		err = n.serveUsers(*cfg.CRI, visitors, cfg.Containerd != nil)
	}
	if err == nil && cfg.Cluster != nil {
		err = n.hold(cfg.Cluster)
	}
	if err == nil && cfg.Containerd != nil {
		n.snaps, err = n.newSnapshots(*cfg.Containerd, cfg.Origin)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// enter makes the node a member of a cluster: what it needs it asks other nodes for
// first.
func (n *Node) enter(whole *Config, policy *scheduler.Config) (err error) {
	cfg := whole.Cluster
	if n.members, err = n.join(*cfg, whole.silence()); err != nil {
		return err
	}
	n.find, n.fetch, n.tail = n.findByPeers, n.fetchByPeers, n.tailByPeers
	n.catalog.node = n.members.host.ID()
	n.catalog.fromNode = n.fetchFromNode
	if n.sharesIndexes = !cfg.OwnIndexes; n.sharesIndexes {
		n.build = n.sharedIndex
	}
	if n.directory, err = n.newDirectory(); err != nil {
		return err
	}
	n.answers.fresh = cmp.Or(cfg.TagFreshness, defaultTagFreshness)
	policy.Cluster, policy.Peers, policy.Directory = n.members, n.members, n.directory
	policy.Quarantine = cfg.Quarantine
	policy.OriginRate, policy.OriginRequests = cfg.RegistryBytes, cfg.RegistryRequests
	return nil
}

// hold has the node hold more of images than what it reads.
func (n *Node) hold(cfg *ClusterConfig) (err error) {
	if cfg.Copies >= 0 && n.store != nil {
		n.outlast = n.newSurvival(cfg)
	}
	if cfg.Seed {
		n.seeds, err = n.newSeeds(filepath.Join(n.dir, "seeds.json"))
	}
	return err
}

// Close closes the store. Run must have returned, if it was called.
func (n *Node) Close() error {
	var err error
	if n.snaps != nil {
		err = n.snaps.Close()
	}
	if n.members != nil {
		err = errors.Join(err, n.members.host.Close())
	}
	if n.store != nil {
		err = errors.Join(err, n.store.Close())
	}
	return errors.Join(err, n.Library.Close())
}

// Run does the node's work until ctx is done: it fetches what readers miss,
// serves mounts and answers containerd and the admin socket. It begins with the
// mounts that the node before it has left. Then it takes all mounts away, or leaves
// them to the next node: see Config.Hold. Call it once.
func (n *Node) Run(ctx context.Context) error {
	var containerd net.Listener
	if n.snaps != nil {
		var err error
		if containerd, err = n.snaps.listen(ctx); err != nil {
			return err
		}
	}
	// What readers need ends after the last reader.
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	below, base := n.goBelow(base)

	above, ctx := errgroup.WithContext(ctx)
	above.Go(func() error {
		n.serveMounts(ctx)
		return nil
	})
	if n.snaps != nil {
		above.Go(func() error { return n.snaps.run(ctx, containerd) })
	}
	above.Go(func() error {
		n.restore(ctx)
		if n.keeping != nil {
			n.keeping.run(ctx)
		}
		return nil
	})
	if n.store != nil {
		above.Go(func() error { return n.serveAdmin(ctx) })
		above.Go(func() error {
			n.keepMetadata(ctx)
			return nil
		})
	}
	if n.proxy != nil {
		above.Go(func() error { return n.proxy.Run(ctx) })
	}
	if n.monitored.Listen != "" {
		above.Go(func() error { return n.serveMonitor(ctx, n.monitored) })
	}
	above.Go(func() error {
		select {
		case <-base.Done():
			return context.Cause(base) // something below has failed
		case <-ctx.Done():
			return nil
		}
	})
	err := above.Wait()
	stop()
	if failed := below.Wait(); !errors.Is(err, failed) {
		err = errors.Join(err, failed)
	}
	return err
}

// goBelow starts all that readers need, until ctx is done or one of it fails.
func (n *Node) goBelow(ctx context.Context) (*errgroup.Group, context.Context) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.sched.Run(ctx) })
	if n.members != nil {
		g.Go(func() error { return n.members.run(ctx, n.held) })
		g.Go(func() error {
			n.serveNotices(ctx)
			return nil
		})
		g.Go(func() error {
			n.directory.Run(ctx)
			return nil
		})
		g.Go(func() error { return n.keepLookout(ctx) })
	}
	if n.seeds != nil {
		g.Go(func() error { return n.seeds.Run(ctx) })
	}
	if n.outlast != nil {
		g.Go(func() error { return n.survive(ctx) })
	}
	return g, ctx
}

// Ready is closed when the admin socket answers. A node that keeps no chunks has
// none.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// A VerifyReport says what Verify has checked and found.
type VerifyReport struct {
	Chunks int64 `json:"chunks"`
	Blobs  int64 `json:"blobs"` // manifests, configs and indexes
	Bytes  int64 `json:"bytes"` // of the chunks

	// Corrupt has the digests of what had rotted, and was dropped.
	Corrupt []string `json:"corrupt"`
}

// Verify reads every chunk and every metadata blob that the node keeps, and
// drops what has rotted.
func (n *Node) Verify(ctx context.Context) (VerifyReport, error) {
	r := VerifyReport{Corrupt: []string{}}
	if n.store == nil {
		return r, errors.New("the node keeps no chunks")
	}
	chunks, err := n.store.Scrub(ctx, chunkstore.ScrubOptions{})
	r.Chunks, r.Bytes = chunks.Chunks, chunks.Bytes
	for _, id := range chunks.Corrupt {
		r.Corrupt = append(r.Corrupt, id.String())
	}
	if err != nil {
		return r, err
	}
	blobs, err := n.blobs.list()
	if err != nil {
		return r, err
	}
	for _, b := range blobs {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		err := n.blobs.check(b)
		if errors.Is(err, chunk.ErrCorrupt) {
			r.Corrupt = append(r.Corrupt, string(b))
		} else if err != nil && !isMissing(err) {
			return r, err
		}
		r.Blobs++
	}
	return r, nil
}

// trace logs what an operator should know of the scheduler's work. The same
// blob, chunk or store fails many times in a row: what is said is not repeated
// for a while.
func (n *Node) trace() scheduler.Trace {
	return scheduler.Trace{
		RunDone: func(r scheduler.RunInfo) {
			if r.Err == nil || errors.Is(r.Err, context.Canceled) || errors.Is(r.Err, chunk.ErrCorrupt) {
				return // each corrupt chunk is told of below
			}
			if skipped, ok := n.once.allow("fetch", string(r.Blob)); ok {
				n.log.Warn("fetch failed", "blob", r.Blob, "off", r.Off, "len", r.Len, "class", r.Class,
					"retried", r.Retried, "failed", r.Failed, "skipped", skipped, "err", r.Err)
			}
		},
		PeerLied: func(from chunk.PeerID, ref chunk.Ref, err error) {
			if skipped, ok := n.once.allow("lied", string(from)); ok {
				n.log.Error("node sent wrong bytes and is avoided", "peer", from, "chunk", ref.ID, "skipped", skipped, "err", err)
			}
		},
		Corrupt: func(blob chunk.Blob, ref chunk.Ref, err error) {
			if skipped, ok := n.once.allow("corrupt", ref.ID.String()); ok {
				n.log.Error("chunk is corrupt and was thrown away", "chunk", ref.ID, "blob", blob, "skipped", skipped, "err", err)
			}
		},
	}
}

// notKept logs that a chunk could not be stored, if the node keeps any.
func (n *Node) notKept(ref chunk.Ref, err error) {
	if n.store == nil {
		return
	}
	if skipped, ok := n.once.allow("store", ""); ok {
		n.log.Warn("chunk could not be kept", "chunk", ref.ID, "skipped", skipped, "err", err)
	}
}

// keep stores a chunk that came by while an index was made, so that nobody has to
// fetch it again. It need not succeed.
func (n *Node) keep(v chunk.Verified) {
	if n.store == nil {
		return
	}
	if err := n.store.Put(v); err != nil {
		n.notKept(v.Ref(), err)
		return
	}
	if n.directory != nil {
		n.directory.Got(v.Ref().ID)
	}
}

// noStore is the store of a node that keeps no chunks.
type noStore struct{}

func (noStore) ReadAt(chunk.ID, []byte, int64) error { return chunk.ErrNotFound }
func (noStore) Has(chunk.ID) bool                    { return false }
func (noStore) Put(chunk.Verified) error             { return chunk.ErrFull }
