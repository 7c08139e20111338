package peer

import (
	"container/list"
	"sync"

	"graze/chunk"
)

// A Traffic counts what went between this node and others.
type Traffic struct {
	RequestsOut uint64 // asked of others
	RequestsIn  uint64 // asked by others
	ChunksIn    uint64 // whole bodies received
	ChunksOut   uint64 // whole bodies sent
	BytesIn     uint64 // body bytes received
	BytesOut    uint64 // body bytes handed to the system
	// AbandonedOut are those of BytesOut in requests that the client ended, or
	// lost, before it had all: it has got all, some or none of them.
	AbandonedOut uint64

	Errors     [NumKinds]uint64 // requests to others that ended early, by cause
	Violations [NumKinds]uint64 // what others did to this server, by kind
	BusyOut    uint64           // requests turned away because of a limit
	Cut        uint64           // readers that were too slow
	Fallbacks  uint64           // connections that had to go by libp2p
}

// Stats are what a Host has done since it was made.
type Stats struct {
	Traffic
	Serving  int                      // requests being served now
	Rejected [NumKinds]uint64         // connections without a proven identity, by cause
	Links    [NumWays]int             // open connections, both ways
	Peers    map[chunk.PeerID]Traffic // the nodes that had to do with this one most recently
}

// A Trace is a set of optional hooks. They are called while a request waits and
// must not block.
type Trace struct {
	// Rejected: a connection to this node's listeners was turned away.
	Rejected func(addr string, err error)
	// Violation: a node that has the cluster key broke a rule or a limit.
	Violation func(peer chunk.PeerID, err error)
	// Cut: a node read its answers too slowly, and was disconnected.
	Cut func(peer chunk.PeerID, err error)
	// Fallback: a node's bulk listener can't be reached; libp2p is used.
	Fallback func(peer chunk.PeerID, err error)
}

// maxPeerStats bounds the nodes whose traffic is remembered.
const maxPeerStats = 1024

// A tally is the Stats in the making.
type tally struct {
	mu    sync.Mutex
	total Stats                          // guarded by mu; without Peers
	peers map[chunk.PeerID]*list.Element // guarded by mu
	order list.List                      // guarded by mu; of *peerTally, the latest first
}

type peerTally struct {
	id chunk.PeerID
	Traffic
}

// add lets f change the counts in total and those of one peer.
func (t *tally) add(id chunk.PeerID, f func(*Traffic)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.total.Traffic)
	e := t.peers[id]
	if e == nil {
		if t.order.Len() >= maxPeerStats {
			last := t.order.Back()
			delete(t.peers, last.Value.(*peerTally).id)
			t.order.Remove(last)
		}
		e = t.order.PushFront(&peerTally{id: id})
		t.peers[id] = e
	} else {
		t.order.MoveToFront(e)
	}
	f(&e.Value.(*peerTally).Traffic)
}

// change lets f change the counts that belong to no peer.
func (t *tally) change(f func(*Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.total)
}

// Stats returns what the Host has done.
func (h *Host) Stats() Stats {
	t := &h.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.total
	s.Serving = h.gate.serving()
	s.Peers = make(map[chunk.PeerID]Traffic, len(t.peers))
	for id, e := range t.peers {
		s.Peers[id] = e.Value.(*peerTally).Traffic
	}
	return s
}

// reject notes that a connection was turned away before it had an identity.
func (h *Host) reject(addr string, err error) {
	h.tally.change(func(s *Stats) { s.Rejected[kindOf(err)]++ })
	if f := h.cfg.Trace.Rejected; f != nil {
		f(addr, err)
	}
}

// violation notes that a node broke a rule (ErrProtocol) or a limit.
func (h *Host) violation(id chunk.PeerID, kind Kind, err error) {
	h.tally.add(id, func(t *Traffic) { t.Violations[kind]++ })
	if f := h.cfg.Trace.Violation; f != nil {
		f(id, err)
	}
}
