package node

import (
	"time"

	"graze/chunk"
	"graze/scheduler"
)

// A PeerInfo says what is known of a member of the cluster, or of a node outside
// its gossip pool that holds an image of interest.
type PeerInfo struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Addr    string `json:"addr"` // at which it serves chunks
	Rack    string `json:"rack"`
	Zone    string `json:"zone"`
	Role    string `json:"role"` // node, seed, or outside
	Weight  int    `json:"weight"`
	Ready   bool   `json:"ready"`
	Self    bool   `json:"self"`
	Tier    string `json:"tier"`    // how far away it is: rack, zone, far or outside
	State   string `json:"state"`   // whether it is asked for chunks
	Reason  string `json:"reason"`  // and why not
	In      int64  `json:"in"`      // bytes of chunks that came from it
	Out     int64  `json:"out"`     // that went to it
	Errors  int64  `json:"errors"`  // requests to it that broke
	Corrupt int64  `json:"corrupt"` // chunks from it that were not what their digest says

	Violations int64         `json:"violations"` // times that it did what the protocol or a limit forbids
	SlowReads  int64         `json:"slow_reads"` // times that it was cut off as it read too slowly
	PerMiB     time.Duration `json:"per_mib_ns"`
}

// Peers returns what is known of the members of the cluster, the node itself among
// them, and of the holders of images outside it; none, if it works alone.
func (n *Node) Peers() []PeerInfo {
	if n.members == nil {
		return nil
	}
	asked := make(map[chunk.PeerID]scheduler.PeerStats)
	for _, p := range n.sched.Stats().Cluster.Peers {
		asked[p.ID] = p
	}
	traffic := n.members.host.Stats().Peers
	describe := func(id chunk.PeerID, info PeerInfo) PeerInfo {
		t := traffic[id]
		info.ID = string(id)
		info.In, info.Out = int64(t.BytesIn), int64(t.BytesOut)
		info.SlowReads = int64(t.Cut)
		for _, count := range t.Violations {
			info.Violations += int64(count)
		}
		if p, ok := asked[id]; ok {
			info.Tier, info.State, info.Reason = p.Tier.String(), p.State.String(), p.Reason
			info.Errors, info.Corrupt, info.PerMiB = p.Errors, p.Corrupt, p.PerMiB
		}
		return info
	}
	var list []PeerInfo
	for _, m := range n.members.dht.View().Members() {
		list = append(list, describe(m.ID, PeerInfo{
			Name: m.Name, Addr: m.Bulk, Rack: m.Rack, Zone: m.Zone,
			Role: m.Role.String(), Weight: int(weight(&m)), Ready: m.Ready,
			Self: m.ID == n.members.host.ID(),
		}))
	}
	if n.members.outside != nil {
		for id, h := range n.members.outside.known() {
			list = append(list, describe(id, PeerInfo{
				Name: h.name, Addr: h.bulk, Rack: h.rack, Zone: h.zone, Role: "outside", Ready: true,
			}))
		}
	}
	return list
}
