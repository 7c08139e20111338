package sim

import (
	"context"

	"graze/chunk"
	"graze/directory"
)

// keepers is how many nodes keep what is known of a chunk.
const keepers = 2

// newDirectory gives a node that starts a directory that knows nothing.
func (n *Node) newDirectory() error {
	if n.c.cfg.Blind {
		return nil
	}
	cfg := n.c.cfg.Directory
	cfg.Stored = n.store.each
	var err error
	n.directory, err = directory.New(clusterOf{n}, cfg)
	return err
}

// clusterOf is the cluster as a node's directory sees it. It implements
// directory.Cluster.
type clusterOf struct{ n *Node }

// Self implements directory.Cluster.
func (c clusterOf) Self() chunk.PeerID { return c.n.id }

// View implements directory.Cluster.
func (c clusterOf) View() directory.View {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	return &view{members: c.n.view, epoch: c.n.epoch}
}

// Tell implements directory.Cluster.
func (c clusterOf) Tell(ctx context.Context, to chunk.PeerID, m directory.Message) error {
	n, t := c.n, c.n.c.byID[to]
	if n.c.cut(n, t) {
		if err := sleep(ctx, silence); err != nil {
			return err
		}
		return errSilent
	}
	if err := sleep(ctx, 2*n.c.latency(n, t)); err != nil {
		return err
	}
	t.mu.Lock()
	d, up := t.directory, t.sched != nil
	t.mu.Unlock()
	if !up {
		return errReset
	}
	n.c.mu.Lock()
	n.c.told++
	n.c.mu.Unlock()
	d.Heard(n.id, m)
	return nil
}

// A view is the members that a node believes in. It implements directory.View.
type view struct {
	members []*Node
	epoch   uint64
}

func (v *view) Epoch() uint64 { return v.epoch }

func (v *view) Keepers(dst []chunk.PeerID, key directory.Key) []chunk.PeerID {
	return appendHomes(dst, v.members, mix(uint64(key)), keepers)
}

func (v *view) Members(dst []chunk.PeerID) []chunk.PeerID {
	for _, m := range v.members {
		dst = append(dst, m.id)
	}
	return dst
}

// nextView returns a number for a view that no other view has.
func (c *Cluster) nextView() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.views++
	return c.views
}

// each yields the chunks of a store.
func (s *store) each(yield func(chunk.ID) bool) {
	s.mu.Lock()
	var ids []chunk.ID
	for id := range s.chunks {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		if !yield(id) {
			return
		}
	}
}
