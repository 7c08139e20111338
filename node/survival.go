package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/copies"
	"graze/dht"
)

const (
	// defaultCopies and defaultCompletionRate are Copies and CompletionRate where
	// the configuration has none.
	defaultCopies         = 2
	defaultCompletionRate = 32 << 20
	// askTimeout bounds how long one member may take to say what it keeps, and
	// maxAsked how many are asked at a time.
	askTimeout = 5 * time.Second
	maxAsked   = 32
	// statusLife is how long what a steward has said counts.
	statusLife = 2 * time.Minute
)

// survival is what a node does for the images that are mounted in its cluster to
// outlast their registries: it keeps its shares, and is the steward of some.
type survival struct {
	keeper  *copies.Keeper
	steward *copies.Steward
	kick    chan struct{} // has a value when an image was mounted

	mu   sync.Mutex               // guards told
	told map[string]copies.Status // what stewards have said of images that are mounted here
}

// newSurvival returns a survival of which nothing runs yet.
func (n *Node) newSurvival(cfg *ClusterConfig) *survival {
	wanted := min(cmp.Or(cfg.Copies, defaultCopies), dht.MaxHomes)
	// Half of the store is for what readers need. A seed's whole images take most of
	// it, and what it has shares of besides is little.
	part := int64(2)
	if cfg.Seed {
		part = 8
	}
	return &survival{
		keeper: copies.NewKeeper(copies.KeeperConfig{
			Open:   n.openShare,
			Store:  n.store,
			Copies: wanted,
			Budget: func() int64 { return n.store.Stats().Limit / part },
			Rate:   max(0, cmp.Or(cfg.CompletionRate, defaultCompletionRate)),
			Idle:   n.sched.Idle,
			Whole:  n.seedsWhole,
			Log:    n.log,
		}),
		steward: copies.NewSteward(copies.StewardConfig{Ask: n.askShares, Copies: wanted}),
		kick:    make(chan struct{}, 1),
		told:    make(map[string]copies.Status),
	}
}

// mounted has the steward of a new image be told of it at once.
func (s *survival) mounted() {
	select {
	case s.kick <- struct{}{}:
	default: // it will be
	}
}

// survive runs the node's survival until ctx is done.
func (n *Node) survive(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.outlast.keeper.Run(ctx) })
	g.Go(func() error { return n.outlast.steward.Run(ctx) })
	g.Go(func() error {
		n.followMembers(ctx)
		return nil
	})
	g.Go(func() error {
		n.tellStewards(ctx)
		return nil
	})
	return g.Wait()
}

// followMembers has shares be looked at when the members have changed.
func (n *Node) followMembers(ctx context.Context) {
	epoch := n.members.dht.View().Epoch()
	for {
		changed := n.members.dht.Changed()
		if now := n.members.dht.View().Epoch(); now != epoch {
			epoch = now
			n.outlast.keeper.Refresh()
			n.outlast.steward.Refresh()
			n.outlast.mounted() // the steward may be another one
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// tellStewards tells the stewards of all images that are mounted here that they
// are, again and again.
func (n *Node) tellStewards(ctx context.Context) {
	tick := time.NewTicker(copies.UseRenewal)
	defer tick.Stop()
	for {
		list := n.mountedImages()
		n.outlast.forget(list)
		for ref, digest := range list {
			status, err := n.tellSteward(ctx, ref, digest)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				if skipped, ok := n.once.allow("steward", ref); ok {
					n.log.Warn("nobody can be told that an image is mounted", "reference", ref, "skipped", skipped, "err", err)
				}
				continue
			}
			n.outlast.note(ref, status)
		}
		select {
		case <-tick.C:
		case <-n.outlast.kick:
		case <-ctx.Done():
			return
		}
	}
}

// mountedImages returns the images that are mounted, by references with digests.
func (n *Node) mountedImages() map[string]chunk.Blob {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make(map[string]chunk.Blob)
	for _, m := range n.mounts {
		list[m.tree.Image.byDigest()] = m.tree.Image.Digest
	}
	return list
}

// tellSteward tells the steward of one image, or the next in line if it can't be
// reached.
func (n *Node) tellSteward(ctx context.Context, ref string, digest chunk.Blob) (copies.Status, error) {
	msg := notice{Kind: useNotice, Reference: ref}
	failed := errors.New("no member is known")
	for _, m := range n.members.dht.View().ClusterHomes(blobKey(digest), lookupHomes) {
		reply, err := n.tellOrDo(ctx, m, msg)
		if err == nil && reply.Status != nil {
			return *reply.Status, nil
		}
		if failed = err; err == nil {
			failed = fmt.Errorf("%w: node %s answers without an answer", chunk.ErrCorrupt, m.Name)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return copies.Status{}, failed
}

// tellOrDo sends a notice to another node, or does itself what it is about.
func (n *Node) tellOrDo(ctx context.Context, to *dht.Member, msg notice) (noticeReply, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if to.ID == n.members.host.ID() {
		return n.onNotice(ctx, to.ID, msg)
	}
	return n.members.tell(ctx, to, msg)
}

// askShares asks all members to keep their shares of an image.
func (n *Node) askShares(ctx context.Context, ref string, have int) []copies.Answer {
	msg := notice{Kind: keepNotice, Reference: ref, Copies: have}
	members := n.members.dht.View().Members()
	answers := make([]copies.Answer, len(members))
	var g errgroup.Group
	g.SetLimit(maxAsked)
	for i := range members {
		g.Go(func() error {
			reply, err := n.tellOrDo(ctx, &members[i], msg)
			if err == nil && reply.Report == nil {
				err = chunk.ErrCorrupt
			}
			answers[i] = copies.Answer{Node: cmp.Or(members[i].Name, string(members[i].ID)), Err: err}
			if err == nil {
				answers[i].Report = *reply.Report
			}
			return nil // it is in the answer
		})
	}
	_ = g.Wait()
	return answers
}

// onUseNotice is called when a node has an image mounted of which this one is taken
// for the steward.
func (n *Node) onUseNotice(from chunk.PeerID, ref string) (noticeReply, error) {
	if n.outlast == nil {
		return noticeReply{}, errNoCopies
	}
	status, err := n.outlast.steward.Mounted(ref, string(from))
	return noticeReply{Status: &status}, err
}

// onKeepNotice is called when a steward wants the node to keep its share of an
// image.
func (n *Node) onKeepNotice(ref string, have int) (noticeReply, error) {
	if n.outlast == nil {
		return noticeReply{}, errNoCopies
	}
	report, err := n.outlast.keeper.Keep(ref, have)
	return noticeReply{Report: &report}, err
}

var errNoCopies = errors.New("the node keeps no copies: cluster.copies is 0")

// note notes what a steward has said.
func (s *survival) note(ref string, status copies.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status.At = time.Now()
	s.told[ref] = status
}

// forget forgets images that are not mounted any more.
func (s *survival) forget(mounted map[string]chunk.Blob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range s.told {
		if _, ok := mounted[ref]; !ok {
			delete(s.told, ref)
		}
	}
}

// safety says whether an image that is mounted here could be read without its
// registry.
func (n *Node) safety(ref string) copies.Status {
	switch {
	case n.members == nil:
		return copies.Status{Why: "the node works alone, and keeps only what is read"}
	case n.outlast == nil:
		return copies.Status{Why: errNoCopies.Error()}
	}
	n.outlast.mu.Lock()
	defer n.outlast.mu.Unlock()
	status, ok := n.outlast.told[ref]
	if !ok || time.Since(status.At) > statusLife {
		return copies.Status{Why: "no other node has said so lately"}
	}
	return status
}
