package node

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	"graze/chunk"
	"graze/dht"
	"graze/scheduler"
	"graze/seed"
)

// A whole is an image that is fetched whole, or in part, without being mounted.
type whole struct {
	*Tree
	node *Node
}

// openWhole opens an image to be fetched. A layer that has no index is read whole
// for that, which is no loss.
func (n *Node) openWhole(ctx context.Context, ref string) (*whole, error) {
	img, err := n.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	tree, err := n.OpenTree(ctx, img, IndexOptions{Build: true})
	if err != nil {
		return nil, err
	}
	return &whole{tree, n}, nil
}

// Chunks implements seed.Image.
func (w *whole) Chunks() iter.Seq[chunk.ID] {
	return func(yield func(chunk.ID) bool) {
		for i := range w.View.NumChunks() {
			if ref, _ := w.View.Chunk(uint32(i)); !yield(ref.ID) {
				return
			}
		}
	}
}

// Spans implements seed.Image: first those that this node is the home of, then
// the others, from a place on that differs from node to node.
func (w *whole) Spans() []uint32 {
	list := slices.Collect(w.homeShare())
	n := uint32(w.View.NumSpans())
	own := make([]bool, n)
	for _, span := range list {
		own[span] = true
	}
	start := uint32(0)
	if n > 0 && w.node.members != nil {
		start = uint32(dht.HomeKey(&chunk.Span{Blob: chunk.Blob(w.node.members.host.ID()), Len: 1 << 20})) % n
	}
	for i := range n {
		if span := (start + i) % n; !own[span] {
			list = append(list, span)
		}
	}
	return list
}

// homeShare yields the spans that this node is the cluster home of; all of them,
// if it works alone.
func (w *whole) homeShare() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		var route scheduler.Route
		for i := range uint32(w.View.NumSpans()) {
			if m := w.node.members; m != nil {
				span := w.View.Span(i)
				route = scheduler.Route{Rack: route.Rack[:0], Cluster: route.Cluster[:0], Former: route.Former[:0]}
				m.Route(&span, &route)
				if len(route.Cluster) == 0 || route.Cluster[0] != m.Self() {
					continue
				}
			}
			if !yield(i) {
				return
			}
		}
	}
}

// Bytes implements seed.Image.
func (w *whole) Bytes() (bytes int64) {
	for i := range w.View.NumChunks() {
		ref, _ := w.View.Chunk(uint32(i))
		bytes += int64(ref.Size)
	}
	return bytes
}

// Missing implements seed.Image.
func (w *whole) Missing(n uint32) bool {
	if w.node.store == nil {
		return true
	}
	return slices.ContainsFunc(w.View.Span(n).Parts, func(p chunk.Part) bool { return !w.node.store.Has(p.ID) })
}

// Fetch implements seed.Image.
func (w *whole) Fetch(ctx context.Context, spans []uint32) error {
	return w.Reader.Prefetch(ctx, slices.Values(spans), chunk.Backfill)
}

// newSeeds returns the keeper of the images that the node holds whole.
func (n *Node) newSeeds(file string) (*seed.Keeper, error) {
	return seed.New(seed.Config{
		File:  file,
		Open:  func(ctx context.Context, ref string) (seed.Image, error) { return n.openWhole(ctx, ref) },
		Store: n.store,
		// The rest is for readers, and for shares of other images.
		Budget: func() int64 { return n.store.Stats().Limit / 4 * 3 },
		Log:    n.log,
	})
}

// ErrNoSeed: the node does not hold whole images.
var ErrNoSeed = errors.New("the node is no seed: set cluster.seed, or start it with --seed")

// SeedAdd has the node hold an image whole, which it says by its digest.
func (n *Node) SeedAdd(ctx context.Context, ref string) (string, error) {
	if n.seeds == nil {
		return "", ErrNoSeed
	}
	img, err := n.Resolve(ctx, ref)
	if err != nil {
		return "", err
	}
	return img.byDigest(), n.seeds.Add(img.byDigest())
}

// SeedRemove has the node no longer hold an image whole. The reference has a
// digest, as SeedAdd and SeedList say it, or means the image now.
func (n *Node) SeedRemove(ctx context.Context, ref string) error {
	if n.seeds == nil {
		return ErrNoSeed
	}
	found, err := n.seeds.Remove(ref)
	if found || err != nil {
		return err
	}
	img, err := n.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	found, err = n.seeds.Remove(img.byDigest())
	if err == nil && !found {
		err = errors.New("the node does not hold " + img.byDigest())
	}
	return err
}

// SeedList says how much of each image the node holds.
func (n *Node) SeedList() ([]seed.Status, error) {
	if n.seeds == nil {
		return nil, ErrNoSeed
	}
	return n.seeds.List(), nil
}

// A PreheatResult says what one node did of a preheat.
type PreheatResult struct {
	Node  string `json:"node"`
	Spans int    `json:"spans"` // that the node is the home of
	Error string `json:"error,omitempty"`
}

// Preheat has every node of the cluster fetch the part of an image that it is the
// home of, so that the registry is not asked when the image is started. It calls
// done for each node, by several goroutines at once, and returns when all have
// ended.
func (n *Node) Preheat(ctx context.Context, ref string, done func(PreheatResult)) error {
	img, err := n.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	if n.members == nil {
		spans, err := n.preheatShare(ctx, img.byDigest())
		done(PreheatResult{Node: "this node", Spans: spans})
		return err
	}
	msg := notice{Kind: preheatNotice, Reference: img.byDigest()}
	var wg sync.WaitGroup
	for _, m := range n.members.dht.View().Members() {
		wg.Go(func() {
			var reply noticeReply
			var err error
			if m.ID == n.members.host.ID() {
				reply, err = n.onNotice(ctx, m.ID, msg)
			} else {
				reply, err = n.members.tell(ctx, &m, msg)
			}
			r := PreheatResult{Node: m.Name, Spans: reply.Spans}
			if err != nil {
				r.Error = err.Error()
			}
			done(r)
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// preheatShare fetches the part of an image that the node is the home of.
func (n *Node) preheatShare(ctx context.Context, ref string) (int, error) {
	img, err := n.openWhole(ctx, ref)
	if err != nil {
		return 0, err
	}
	defer img.Close()
	spans := slices.Collect(img.homeShare())
	return len(spans), img.Fetch(ctx, spans)
}
