package node

import "graze/node/adminpb"

// clusterToPB and clusterFromPB translate the figures of a cluster.
func clusterToPB(c *ClusterStats) *adminpb.Cluster {
	return &adminpb.Cluster{
		Members: int64(c.Members), Unconfirmed: int64(c.Unconfirmed), Unready: int64(c.Unready),
		Rejected: c.Rejected, GossipRefused: c.GossipRefused, Violations: c.Violations, Errors: c.Errors, Links: c.Links,
		SlowReaders: c.SlowReaders, Busy: c.Busy, Fallbacks: c.Fallbacks,
		BadMembers: c.BadMembers, JoinErrors: c.JoinErrors, IgnoredHolders: c.IgnoredHolders,
		HedgesFired: c.HedgesFired, HedgesWon: c.HedgesWon, HedgesWasted: c.HedgesWasted,
		Promoted: c.Promoted, Redirects: c.Redirects, Coalesced: c.Coalesced, Throttled: c.Throttled,
		Quarantined: int64(c.Quarantined), Open: int64(c.Open),
		Outside: &adminpb.Outside{
			Enabled: c.Outside.Enabled, Peers: int64(c.Outside.Peers), Provided: int64(c.Outside.Provided),
			Announced: c.Outside.Announced, Failed: c.Outside.Failed,
			Searches: c.Outside.Searches, Found: c.Outside.Found, Holders: int64(c.Outside.Holders),
		},
	}
}

func clusterFromPB(p *adminpb.Cluster) ClusterStats {
	o := p.GetOutside()
	return ClusterStats{
		Members: int(p.GetMembers()), Unconfirmed: int(p.GetUnconfirmed()), Unready: int(p.GetUnready()),
		Rejected: p.GetRejected(), GossipRefused: p.GetGossipRefused(), Violations: p.GetViolations(), Errors: p.GetErrors(), Links: p.GetLinks(),
		SlowReaders: p.GetSlowReaders(), Busy: p.GetBusy(), Fallbacks: p.GetFallbacks(),
		BadMembers: p.GetBadMembers(), JoinErrors: p.GetJoinErrors(), IgnoredHolders: p.GetIgnoredHolders(),
		HedgesFired: p.GetHedgesFired(), HedgesWon: p.GetHedgesWon(), HedgesWasted: p.GetHedgesWasted(),
		Promoted: p.GetPromoted(), Redirects: p.GetRedirects(), Coalesced: p.GetCoalesced(), Throttled: p.GetThrottled(),
		Quarantined: int(p.GetQuarantined()), Open: int(p.GetOpen()),
		Outside: OutsideStats{
			Enabled: o.GetEnabled(), Peers: int(o.GetPeers()), Provided: int(o.GetProvided()),
			Announced: o.GetAnnounced(), Failed: o.GetFailed(),
			Searches: o.GetSearches(), Found: o.GetFound(), Holders: int(o.GetHolders()),
		},
	}
}
