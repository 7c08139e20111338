package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/dht"
)

// When a registry fails, not every node shall find out by itself whether it is
// back. Each registry has a home, like a span: nodes for which it has failed tell
// its home, and hold back. The home probes it, and tells them when it answers.

const (
	// probePause is the mean time between two probes of a registry, and
	// probeTimeout the longest time that one may take.
	probePause   = time.Second
	probeTimeout = 5 * time.Second
	// holdRenewal is how often a node tells a registry's home that the registry is
	// still down for it, and holdLease how long it holds back after it has.
	holdRenewal = 4 * time.Second
	holdLease   = 12 * time.Second
	// backFor is how long after a probe has succeeded the home does not probe again
	// for nodes for which the registry is down all the same: they probe themselves.
	backFor = 15 * time.Second
	// maxLookout bounds the registries that a node knows to be down, and that it
	// probes for others.
	maxLookout = 64
)

// A lookout is a node's part of finding out whether registries are back.
type lookout struct {
	down chan string   // registries that have failed for this node
	kick chan struct{} // has a value when there is another registry to probe

	mu     sync.Mutex           // guards what follows
	failed map[string]bool      // registries whose home is being told
	probed map[string]*sufferer // registries that this node probes for others
}

// A sufferer is what is known of a registry that this node probes.
type sufferer struct {
	nodes map[chunk.PeerID]time.Time // for which it is down, and until when that counts
	next  time.Time                  // of the next probe
	back  time.Time                  // when it last answered
}

func newLookout() *lookout {
	return &lookout{
		down: make(chan string, maxLookout), kick: make(chan struct{}, 1),
		failed: make(map[string]bool), probed: make(map[string]*sufferer),
	}
}

// fail notes that a registry has failed. It does not wait.
func (l *lookout) fail(registry string) {
	select {
	case l.down <- registry:
	default: // so many fail that each is probed by itself
	}
}

// keepLookout does the node's part until ctx is done.
func (n *Node) keepLookout(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		n.probeRegistries(ctx)
		return nil
	})
	for {
		select {
		case registry := <-n.lookout.down:
			if n.lookout.begin(registry) {
				g.Go(func() error {
					defer n.lookout.end(registry)
					n.holdBack(ctx, registry)
					return nil
				})
			}
		case <-ctx.Done():
			return g.Wait()
		}
	}
}

// begin reports whether nobody is telling a registry's home yet.
func (l *lookout) begin(registry string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed[registry] || len(l.failed) >= maxLookout {
		return false
	}
	l.failed[registry] = true
	return true
}

func (l *lookout) end(registry string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.failed, registry)
}

// holdBack tells the home of a registry that it is down, until it is not any more.
func (n *Node) holdBack(ctx context.Context, registry string) {
	tick := time.NewTicker(holdRenewal)
	defer tick.Stop()
	for n.client.Down(registry) {
		msg := notice{Kind: downNotice, Registry: registry}
		key := dht.HomeKey(&chunk.Span{Blob: chunk.Blob("registry " + registry)})
		for _, home := range n.members.dht.View().ClusterHomes(key, lookupHomes) {
			reply, err := n.tellOrDo(ctx, home, msg)
			if err == nil && reply.Watched {
				n.client.Hold(registry, time.Now().Add(holdLease))
			}
			if err == nil || ctx.Err() != nil {
				break
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// onDownNotice is called when a registry has failed for a node, of which this one
// is taken for the registry's home.
func (n *Node) onDownNotice(from chunk.PeerID, registry string) (noticeReply, error) {
	l := n.lookout
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.probed[registry]
	if s == nil {
		if len(l.probed) >= maxLookout || len(registry) > 256 {
			return noticeReply{}, errors.New("too many registries are probed already")
		}
		s = &sufferer{nodes: make(map[chunk.PeerID]time.Time)}
		l.probed[registry] = s
	}
	if time.Since(s.back) < backFor {
		return noticeReply{}, nil
	}
	s.nodes[from] = time.Now().Add(holdLease)
	select {
	case l.kick <- struct{}{}:
	default: // it will look anyway
	}
	return noticeReply{Watched: true}, nil
}

// probeRegistries probes registries for those for whom they are down.
func (n *Node) probeRegistries(ctx context.Context) {
	for ctx.Err() == nil {
		registry, pause := n.lookout.due(time.Now())
		if registry == "" {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-n.lookout.kick:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		probe, cancel := context.WithTimeout(ctx, probeTimeout)
		err := n.client.Probe(probe, registry)
		cancel()
		if err == nil {
			n.tellUp(ctx, registry, n.lookout.up(registry))
		}
	}
}

// due returns a registry that is to be probed now, or how long to wait for one. Of
// those that nobody has told of lately it forgets all but when they came back.
func (l *lookout) due(now time.Time) (registry string, pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pause = time.Minute
	for name, s := range l.probed {
		for id, until := range s.nodes {
			if now.After(until) {
				delete(s.nodes, id)
			}
		}
		wait := s.next.Sub(now)
		switch {
		case len(s.nodes) == 0 && now.Sub(s.back) > backFor:
			delete(l.probed, name)
		case len(s.nodes) == 0:
		case wait <= 0 && registry == "":
			registry = name
			// Never the same pause twice, so that probes of many clusters spread.
			s.next = now.Add(time.Duration(float64(probePause) * (0.75 + rand.Float64()/2)))
		default:
			pause = min(pause, wait)
		}
	}
	return registry, pause
}

// up notes that a registry answers, and returns whom to tell.
func (l *lookout) up(registry string) (nodes []chunk.PeerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.probed[registry]
	if s == nil {
		return nil
	}
	s.back = time.Now()
	for id := range s.nodes {
		nodes = append(nodes, id)
	}
	clear(s.nodes)
	return nodes
}

// tellUp tells nodes that a registry answers. One that can't be told finds out by
// itself when it has held back for long enough.
func (n *Node) tellUp(ctx context.Context, registry string, nodes []chunk.PeerID) {
	n.log.Info("registry answers again", "registry", registry)
	view := n.members.dht.View()
	var g errgroup.Group
	g.SetLimit(maxAsked)
	for _, id := range nodes {
		m := view.Member(id)
		if m == nil {
			continue
		}
		g.Go(func() error {
			if _, err := n.tellOrDo(ctx, m, notice{Kind: upNotice, Registry: registry}); err != nil {
				n.log.Debug("node could not be told that a registry is back", "peer", id, "err", err)
			}
			return nil
		})
	}
	_ = g.Wait()
}

// onUpNotice is called when a registry's home has found it to be back.
func (n *Node) onUpNotice(registry string) { n.client.Revive(registry) }
