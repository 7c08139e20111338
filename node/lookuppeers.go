package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/chunk"
	"graze/dht"
	"graze/origin"
)

// In a cluster a lookup has a home, like a span: the home asks the registry for
// all, and its answer is good for some seconds. When no registry answers, the home
// asks those next in line what they knew last, and says so.

const (
	// lookupHomes is how many homes of a lookup are asked one after the other.
	lookupHomes = 4
	// knownNodes is how many others are asked at the same time for what they know,
	// for at most knownPatience.
	knownNodes    = 24
	knownPatience = 3 * time.Second
)

// An askedLookup is a lookup that another node is asked for.
type askedLookup struct {
	lookup
	// Known asks for what the node knows already. Otherwise it is asked as the
	// home, which asks the registry.
	Known bool `json:"known,omitempty"`
}

// A toldFinding is a finding as nodes tell it. Their clocks need not agree.
type toldFinding struct {
	Manifests []v1.Descriptor `json:"manifests"`
	Age       time.Duration   `json:"age"` // since a registry said so, in nanoseconds
	Stale     bool            `json:"stale,omitempty"`
}

// told returns f as it is told to other nodes.
func (f *finding) told() *toldFinding {
	return &toldFinding{f.Manifests, max(0, time.Since(f.Checked)), f.stale}
}

// heard returns what the node from has told of a lookup.
func (q lookup) heard(told *toldFinding, from chunk.PeerID) (*finding, error) {
	if told == nil || told.Age < 0 {
		return nil, fmt.Errorf("%w: node %s answers without an answer", chunk.ErrCorrupt, from)
	}
	f := &finding{lookup: q, Manifests: told.Manifests, Checked: time.Now().Add(-told.Age), stale: told.Stale, from: from}
	return f, f.check(q)
}

// key returns what the lookup's homes are found by.
func (q lookup) key() dht.Key {
	return dht.HomeKey(&chunk.Span{Blob: chunk.Blob(string(q.Kind) + " " + q.Reference)})
}

// findByPeers answers a lookup by its home. It is the Library's find of a node in
// a cluster.
func (n *Node) findByPeers(ctx context.Context, q lookup) (*finding, error) {
	if a, ok := n.answers.get(q); ok && a.err == nil && !a.found.stale {
		return a.found, nil
	}
	f, err := n.askHomes(ctx, q)
	switch {
	case err == nil && !f.stale:
		n.answers.put(q, f, nil)
		n.noteFound(f)
		return f, nil
	case err == nil:
		return n.lastKnown(f, fmt.Errorf("%w: as the home of the reference says", chunk.ErrUnavailable))
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case !errors.Is(err, chunk.ErrUnavailable):
		return nil, err
	}
	asked := append(n.others(q), n.beyond(ctx, q.image())...)
	if known := n.newest(n.lastFound(q), n.askKnown(ctx, q, asked)); known != nil {
		return n.lastKnown(known, err)
	}
	return nil, err
}

// askHomes asks the homes of a lookup, the next one if one can't be reached. A
// home that is refused by the registry leaves the question to this node, which may
// have other credentials; so do homes of which none can be reached.
func (n *Node) askHomes(ctx context.Context, q lookup) (*finding, error) {
	for _, home := range n.members.dht.View().ClusterHomes(q.key(), lookupHomes) {
		if home.ID == n.members.host.ID() {
			return n.findAsHome(ctx, q)
		}
		f, err := n.askLookup(ctx, home, q, false)
		var said *noticeError
		switch {
		case err == nil, ctx.Err() != nil:
			return f, err
		case errors.As(err, &said) && errors.Is(err, chunk.ErrUnavailable):
			return nil, err
		case errors.As(err, &said):
			return n.askRegistry(ctx, q)
		}
		n.log.Warn("home of a reference can't be reached", "reference", q.Reference, "home", home.Name, "err", err)
	}
	askCtx, cancel := patient(ctx)
	defer cancel()
	return n.askRegistry(askCtx, q)
}

// askLookup asks one other node.
func (n *Node) askLookup(ctx context.Context, to *dht.Member, q lookup, known bool) (*finding, error) {
	reply, err := n.members.tell(ctx, to, notice{Kind: lookupNotice, Lookup: &askedLookup{q, known}})
	if err != nil {
		return nil, err
	}
	return q.heard(reply.Finding, to.ID)
}

// findAsHome answers a lookup that this node is the home of. All who ask at the
// same time share one request to the registry.
func (n *Node) findAsHome(ctx context.Context, q lookup) (*finding, error) {
	unlock, err := n.answers.locks.lock(ctx, q)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if a, ok := n.answers.get(q); ok {
		return a.found, a.err
	}
	if f := n.foundBlob(q); f != nil {
		return f, nil
	}
	askCtx, cancel := patient(ctx)
	f, err := n.askRegistry(askCtx, q)
	cancel()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err == nil {
		n.noteFound(f)
	} else if errors.Is(err, chunk.ErrUnavailable) {
		next := n.members.dht.View().ClusterHomes(q.key(), dht.MaxHomes)
		if known := n.newest(n.lastFound(q), n.askKnown(ctx, q, next)); known != nil {
			f, err = known.asStale(), nil
		}
	}
	n.answers.put(q, f, err)
	return f, err
}

// newest returns the finding that a registry has made last, or nil.
func (n *Node) newest(a, b *finding) *finding {
	if a == nil || b != nil && b.Checked.After(a.Checked) {
		return b
	}
	return a
}

// askKnown asks members at the same time for what they know of a lookup, and
// returns what is newest; nil if they know nothing.
func (n *Node) askKnown(ctx context.Context, q lookup, list []*dht.Member) *finding {
	ctx, cancel := context.WithTimeout(ctx, knownPatience)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards best
	var best *finding
	for _, m := range list {
		if m.ID == n.members.host.ID() {
			continue
		}
		wg.Go(func() {
			f, err := n.askLookup(ctx, m, q, true)
			if err != nil {
				return // it knows nothing, or does not answer: others may
			}
			mu.Lock()
			defer mu.Unlock()
			best = n.newest(best, f)
		})
	}
	wg.Wait()
	return best
}

// others returns members that may know something of what q asks: its homes, and
// some more, beginning at another place for each question.
func (n *Node) others(q lookup) []*dht.Member {
	view := n.members.dht.View()
	return appendOthers(view.ClusterHomes(q.key(), dht.MaxHomes), view, uint64(q.key()), knownNodes)
}

// onLookupNotice answers another node's lookup.
func (n *Node) onLookupNotice(ctx context.Context, asked *askedLookup) (noticeReply, error) {
	if asked == nil {
		return noticeReply{}, errors.New("a lookup without a question")
	}
	if err := asked.check(); err != nil {
		return noticeReply{}, err
	}
	if asked.Known {
		if f := n.lastFound(asked.lookup); f != nil {
			return noticeReply{Finding: f.told()}, nil
		}
		if f := n.foundChunk(asked.lookup); f != nil {
			return noticeReply{Finding: f.told()}, nil
		}
		return noticeReply{}, &chunk.Error{Op: "look up", What: asked.Reference, Err: chunk.ErrNotFound}
	}
	f, err := n.findAsHome(ctx, asked.lookup)
	if err != nil {
		return noticeReply{}, err
	}
	return noticeReply{Finding: f.told()}, nil
}

// foundChunk answers a lookup by digest, if the manifest is among the chunks.
func (n *Node) foundChunk(q lookup) *finding {
	name, err := origin.ParseName(q.Reference)
	if err != nil || q.fixed() == "" || n.store == nil {
		return nil
	}
	id, err := chunk.ParseID(string(name.Digest))
	if err != nil {
		return nil
	}
	section, err := n.store.Section(id)
	if err != nil {
		return nil
	}
	size := section.Len()
	if err := section.Close(); err != nil {
		return nil
	}
	h, err := v1.NewHash(string(name.Digest))
	if err != nil {
		return nil
	}
	f := newFinding(q, []v1.Descriptor{{Digest: h, Size: size}})
	if f.check(q) != nil {
		return nil
	}
	return f
}
