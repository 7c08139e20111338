package node

import (
	"graze/peer"
	"graze/scheduler"
)

// ClusterStats tell of a node's part in its cluster. All is zero for a node that
// works alone.
type ClusterStats struct {
	Members     int `json:"members"`     // with the node itself
	Unconfirmed int `json:"unconfirmed"` // known from before the node's start, and not heard of since
	Unready     int `json:"unready"`     // of them, those that are not ready

	// Rejected are connections that have not proven who they are, by cause: "key"
	// are those without the cluster's key.
	Rejected map[string]int64 `json:"rejected,omitempty"`
	// GossipRefused are packets and streams of gossip without the key.
	GossipRefused int64 `json:"gossip_refused"`
	// Violations are what members did that the protocol or a limit forbids, by kind.
	Violations map[string]int64 `json:"violations,omitempty"`
	// Errors are requests to other nodes that ended early, by cause.
	Errors map[string]int64 `json:"errors,omitempty"`
	// Links are the open connections to other nodes, by way.
	Links map[string]int64 `json:"links,omitempty"`

	SlowReaders    int64 `json:"slow_readers"`    // that were cut off
	Busy           int64 `json:"busy"`            // requests that were turned away because of a limit
	Fallbacks      int64 `json:"fallbacks"`       // connections that had to go by libp2p
	BadMembers     int64 `json:"bad_members"`     // times that a member was ignored: its words can't be read, or there are too many
	JoinErrors     int64 `json:"join_errors"`     // contacts that did not answer
	IgnoredHolders int64 `json:"ignored_holders"` // that a redirect named and that are no members

	HedgesFired  int64 `json:"hedges_fired"`        // chunks that were asked for at a second node
	HedgesWon    int64 `json:"hedges_won"`          // that came from there first
	HedgesWasted int64 `json:"hedges_wasted_bytes"` // bytes that came from there in vain
	Promoted     int64 `json:"promoted"`            // chunks that were asked for again as a reader's
	Redirects    int64 `json:"redirects"`           // that were followed
	Coalesced    int64 `json:"coalesced"`           // parties that joined a fetch which was under way
	Throttled    int64 `json:"throttled"`           // times that the registry's budget made a fetch wait
	Quarantined  int   `json:"quarantined"`         // nodes that are avoided for wrong bytes
	Open         int   `json:"open"`                // nodes that are avoided for failures

	Outside OutsideStats `json:"outside"`
}

// OutsideStats tell of the search for holders of images outside the gossip pool.
type OutsideStats struct {
	Enabled   bool  `json:"enabled"`
	Peers     int   `json:"peers"`     // in the table of the DHT
	Provided  int   `json:"provided"`  // images that are announced
	Announced int64 `json:"announced"` // announcements made
	Failed    int64 `json:"failed"`    // and failed
	Searches  int64 `json:"searches"`
	Found     int64 `json:"found"`   // of them, those with a holder that answered
	Holders   int   `json:"holders"` // nodes that are known to hold an image
}

// clusterStats returns the node's figures about its cluster, of which s are those
// of the scheduler.
func (n *Node) clusterStats(s *scheduler.ClusterStats) ClusterStats {
	m := n.members
	host, gossip := m.host.Stats(), m.dht.Stats()
	out := ClusterStats{
		Members: gossip.Members, Unconfirmed: gossip.Unconfirmed, Unready: gossip.Unready,
		Rejected:       byKind(host.Rejected),
		GossipRefused:  int64(gossip.Refused),
		Violations:     byKind(host.Violations),
		Errors:         byKind(host.Errors),
		SlowReaders:    int64(host.Cut),
		Busy:           int64(host.BusyOut),
		Fallbacks:      int64(host.Fallbacks),
		BadMembers:     int64(gossip.BadMetadata + gossip.TooMany),
		JoinErrors:     int64(gossip.JoinErrors),
		IgnoredHolders: s.Ignored,
		HedgesFired:    s.HedgesFired, HedgesWon: s.HedgesWon, HedgesWasted: s.HedgesWasted,
		Promoted: s.Promoted, Redirects: s.Redirects, Coalesced: s.Coalesced, Throttled: s.Throttled,
		Quarantined: s.Quarantined, Open: s.Open,
	}
	for way, links := range host.Links {
		if links > 0 {
			if out.Links == nil {
				out.Links = make(map[string]int64)
			}
			out.Links[peer.Way(way).String()] = int64(links)
		}
	}
	if m.outside != nil {
		out.Outside = m.outside.stats()
	}
	return out
}

// byKind names the counts that are not zero; it returns nil if all are.
func byKind(counts [peer.NumKinds]uint64) map[string]int64 {
	var named map[string]int64
	for kind, n := range counts {
		if n == 0 {
			continue
		}
		if named == nil {
			named = make(map[string]int64)
		}
		named[peer.Kind(kind).String()] = int64(n)
	}
	return named
}

// stats returns the figures of the search.
func (o *outside) stats() OutsideStats {
	p := o.providers.Stats()
	o.mu.Lock()
	defer o.mu.Unlock()
	return OutsideStats{
		Enabled: true, Peers: p.Peers, Provided: p.Provided,
		Announced: int64(p.Announced), Failed: int64(p.AnnounceFails),
		Searches: int64(o.finds), Found: int64(o.found), Holders: len(o.nodes),
	}
}
