package node

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/dht"
	"graze/peer"
	"graze/scheduler"
)

// Nodes outside the gossip pool, with the same cluster key, are found by the
// images that they say they hold, in a DHT with one record per image. A home asks
// them for what they hold before it asks the registry.

const (
	maxOutsideImages = 256 // images whose holders are remembered
	maxImageHolders  = 8   // of each
	findOnce         = 4   // searches at one time
	// A search that is the first for its image is waited for, so that the first
	// chunks of an image don't come from the registry; all others are not.
	firstFindWait = 2 * time.Second
	foundFor      = 2 * time.Minute  // until an image's holders are looked for again
	absentFor     = 30 * time.Second // the same if there were none
	provideEvery  = 2 * time.Second  // how often it is looked at what the node holds
)

// An outside is what a node knows of nodes outside its gossip pool.
type outside struct {
	providers *dht.Providers
	host      *peer.Host
	log       *slog.Logger
	ask       func(ctx context.Context, id chunk.PeerID, image chunk.Blob) (*holding, error)
	due       chan chunk.Blob // images whose holders are to be looked for

	mu     sync.Mutex
	images map[chunk.Blob]*outsideImage  // guarded by mu
	nodes  map[chunk.PeerID]*outsideNode // guarded by mu; all holders of images
	finds  int64                         // guarded by mu; searches made
	found  int64                         // guarded by mu; of them, those with a holder
}

// An outsideImage is an image whose holders are of interest.
type outsideImage struct {
	holders []chunk.PeerID // the most complete first
	next    time.Time      // when they are looked for again
	used    time.Time
	first   chan struct{} // closed when the first search has ended
	busy    bool          // a search is under way, or due
}

// An outsideNode is a node that holds an image.
type outsideNode struct {
	bulk string
	name string
	rack string
	zone string
}

// newOutside returns the part of the DHT that a configuration asks for, nil if it
// asks for none.
func (n *Node) newOutside(cfg *ClusterConfig, m *members) (*outside, error) {
	if !cfg.Outside && len(cfg.Bootstrap) == 0 {
		return nil, nil
	}
	providers, err := dht.NewProviders(m.host.P2P(), dht.ProvidersConfig{
		Bootstrap: cfg.Bootstrap,
		View:      m.dht.View,
		Negative:  absentFor / 2,
		Log:       n.log,
	})
	if err != nil {
		return nil, err
	}
	return &outside{
		providers: providers,
		host:      m.host,
		log:       n.log,
		ask:       m.askHolding,
		due:       make(chan chunk.Blob, maxOutsideImages),
		images:    make(map[chunk.Blob]*outsideImage),
		nodes:     make(map[chunk.PeerID]*outsideNode),
	}, nil
}

// run takes part in the DHT until ctx is done. held returns the images that the
// node holds, or has mounted.
func (o *outside) run(ctx context.Context, held func() []chunk.Blob) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return o.providers.Run(ctx) })
	g.Go(func() error {
		o.keepProvided(ctx, held)
		return nil
	})
	for range findOnce {
		g.Go(func() error {
			for {
				select {
				case image := <-o.due:
					o.search(ctx, image)
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
	return g.Wait()
}

// keepProvided announces what the node holds until ctx is done.
func (o *outside) keepProvided(ctx context.Context, held func() []chunk.Blob) {
	provided := make(map[chunk.Blob]bool)
	tick := time.NewTicker(provideEvery)
	defer tick.Stop()
	for {
		gone := make(map[chunk.Blob]bool, len(provided))
		for image := range provided {
			gone[image] = true
		}
		for _, image := range held() {
			delete(gone, image)
			if provided[image] {
				continue
			}
			if err := o.providers.Provide(image); err != nil {
				o.log.Debug("image is not announced", "image", image, "err", err)
				continue
			}
			provided[image] = true
		}
		for image := range gone {
			o.providers.Release(image)
			delete(provided, image)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// find has the holders of images be looked for, and waits for searches that are
// the first for their image, for a while.
func (o *outside) find(ctx context.Context, images []chunk.Blob) {
	var wait []<-chan struct{}
	o.mu.Lock()
	for _, image := range images {
		x := o.touchLocked(image)
		select {
		case <-x.first:
		default:
			wait = append(wait, x.first)
		}
	}
	o.mu.Unlock()
	if len(wait) == 0 {
		return
	}
	limit := time.NewTimer(firstFindWait)
	defer limit.Stop()
	for _, first := range wait {
		select {
		case <-first:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// touchLocked returns what is known of an image, and has it be looked for if that
// is due.
func (o *outside) touchLocked(image chunk.Blob) *outsideImage {
	now := time.Now()
	x := o.images[image]
	if x == nil {
		o.makeRoomLocked()
		x = &outsideImage{first: make(chan struct{})}
		o.images[image] = x
	}
	x.used = now
	if !x.busy && !now.Before(x.next) {
		select {
		case o.due <- image:
			x.busy = true
		default: // the next request tries again
		}
	}
	return x
}

// makeRoomLocked forgets the image that was used longest ago, if there are too
// many.
func (o *outside) makeRoomLocked() {
	if len(o.images) < maxOutsideImages {
		return
	}
	var oldest chunk.Blob
	for image, x := range o.images {
		if !x.busy && (oldest == "" || x.used.Before(o.images[oldest].used)) {
			oldest = image
		}
	}
	delete(o.images, oldest)
}

// appendHolders appends the nodes that hold one of the images, to the most that a
// search asks. It answers from memory.
func (o *outside) appendHolders(list []chunk.PeerID, images []chunk.Blob) []chunk.PeerID {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, image := range images {
		for _, id := range o.touchLocked(image).holders {
			if len(list) < maxImageHolders && !slices.Contains(list, id) {
				list = append(list, id)
			}
		}
	}
	return list
}

// node returns what is known of a holder.
func (o *outside) node(id chunk.PeerID) (outsideNode, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x := o.nodes[id]
	if x == nil {
		return outsideNode{}, false
	}
	return *x, true
}

// place returns where a holder is for the scheduler.
func (o *outside) place(id chunk.PeerID) (scheduler.Place, bool) {
	x, ok := o.node(id)
	return scheduler.Place{Rack: x.rack, Zone: x.zone, Outside: true}, ok
}

// known returns all holders.
func (o *outside) known() map[chunk.PeerID]outsideNode {
	o.mu.Lock()
	defer o.mu.Unlock()
	nodes := make(map[chunk.PeerID]outsideNode, len(o.nodes))
	for id, x := range o.nodes {
		nodes[id] = *x
	}
	return nodes
}

// search looks for the holders of an image, and asks each what it has and where
// it serves it.
func (o *outside) search(ctx context.Context, image chunk.Blob) {
	found, err := o.providers.Find(ctx, image)
	if err != nil && ctx.Err() == nil && !errors.Is(err, chunk.ErrUnavailable) {
		o.log.Debug("holders can't be looked for", "image", image, "err", err)
	}
	answers := make([]*holding, len(found))
	var wg sync.WaitGroup
	for i, h := range found {
		wg.Go(func() {
			if err := o.host.Learn(h.ID, h.P2P); err != nil {
				o.log.Debug("holder has no address", "peer", h.ID, "err", err)
				return
			}
			if answers[i], err = o.ask(ctx, h.ID, image); err != nil && ctx.Err() == nil {
				o.log.Debug("holder does not answer", "peer", h.ID, "err", err)
			}
		})
	}
	wg.Wait()
	order := rand.Perm(len(found)) // so that not all nodes ask the same ones
	order = slices.DeleteFunc(order, func(i int) bool { return answers[i] == nil })
	slices.SortStableFunc(order, func(i, j int) int { return answers[j].tenths() - answers[i].tenths() })
	order = order[:min(len(order), maxImageHolders)]

	o.mu.Lock()
	defer o.mu.Unlock()
	o.finds++
	var holders []chunk.PeerID
	for _, i := range order {
		a := answers[i]
		holders = append(holders, found[i].ID)
		o.nodes[found[i].ID] = &outsideNode{bulk: a.Bulk, name: a.Name, rack: a.Rack, zone: a.Zone}
	}
	if len(holders) > 0 {
		o.found++
	}
	o.settleLocked(image, holders)
}

// settleLocked keeps what a search has found, and forgets nodes that hold nothing
// of interest any more.
func (o *outside) settleLocked(image chunk.Blob, holders []chunk.PeerID) {
	if x := o.images[image]; x != nil {
		pause := foundFor
		if len(holders) == 0 {
			pause = absentFor
			if o.providers.Stats().Peers == 0 {
				pause = firstFindWait // the DHT has not been joined yet
			}
		}
		x.holders, x.busy = holders, false
		x.next = time.Now().Add(pause)
		select {
		case <-x.first:
		default:
			close(x.first)
		}
	}
	used := make(map[chunk.PeerID]bool, len(o.nodes))
	for _, x := range o.images {
		for _, id := range x.holders {
			used[id] = true
		}
	}
	for id := range o.nodes {
		if !used[id] {
			delete(o.nodes, id)
			o.host.Forget(id)
		}
	}
}
