package node

import (
	"context"
	"slices"

	"graze/chunk"
)

// introduce keeps the peer package told where the members' libp2p hosts are, until
// ctx is done. Links without encryption begin there, and so do those to nodes
// whose bulk listener can't be reached.
func (m *members) introduce(ctx context.Context) {
	known := make(map[chunk.PeerID][]string)
	for {
		changed := m.dht.Changed()
		members := m.dht.View().Members()
		gone := make(map[chunk.PeerID]bool, len(known))
		for id := range known {
			gone[id] = true
		}
		for i := range members {
			id, addrs := members[i].ID, members[i].P2P
			delete(gone, id)
			if old, ok := known[id]; id == m.host.ID() || ok && slices.Equal(old, addrs) {
				continue
			}
			if err := m.host.Learn(id, addrs); err != nil {
				m.log.Warn("addresses of a member are ignored", "peer", id, "err", err)
			}
			known[id] = addrs
		}
		for id := range gone {
			m.host.Forget(id)
			delete(known, id)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
