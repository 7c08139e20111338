package node

import (
	"slices"

	"graze/chunk"
	"graze/copies"
	"graze/peer"
	"graze/scheduler"
	"graze/snapshotter"
)

// families are all metrics of a node. docs/operations.md lists them too; a test
// compares the two.
var families = slices.Concat(readFamilies, sourceFamilies, storeFamilies, servingFamilies, clusterFamilies, strangerFamilies, containerdFamilies)

// one returns a reader of a family that has no labels.
func one(read func(s *sample) int64) func(*sample, emitter) {
	return func(s *sample, e emitter) { e.value(read(s)) }
}

// readFamilies are about what the kernel and its processes ask for.
var readFamilies = []family{
	{"graze_mounts", gauge, "Images that are mounted.", nil, one(func(s *sample) int64 { return int64(s.mounts) })},
	{"graze_mounts_stale", gauge, "Of them, those whose tag stands for what it stood for last, as no registry answered.", nil, one(func(s *sample) int64 { return int64(s.stale) })},
	{"graze_images_safe", gauge, "Images that are mounted here, by whether they could be read without a registry.", []string{"answer"}, func(s *sample, e emitter) {
		safe := int64(0)
		for _, one := range s.safety {
			if one.Safe {
				safe++
			}
		}
		e.value(safe, "yes")
		e.value(int64(len(s.safety))-safe, "no")
	}},
	{"graze_images_copied_percent", gauge, "Of the mounted image that is least complete in the cluster: how much has a copy, or all copies that are wanted.", []string{"state"}, func(s *sample, e emitter) {
		least := copies.Status{One: 1, All: 1}
		for _, one := range s.safety {
			least.One, least.All = min(least.One, one.One), min(least.All, one.All)
		}
		e.value(int64(100*least.One), "one")
		e.value(int64(100*least.All), "wanted")
	}},
	{"graze_fuse_requests_total", counter, "Requests of the kernel that were answered.", []string{"op"}, func(s *sample, e emitter) {
		e.value(s.fuse.Lookups, "lookup")
		e.value(s.fuse.Getattrs, "getattr")
		e.value(s.fuse.Readdirs, "readdir")
		e.value(s.fuse.Readlinks, "readlink")
		e.value(s.fuse.Xattrs, "xattr")
		e.value(s.fuse.Statfs, "statfs")
		e.value(s.fuse.Reads, "read")
	}},
	{"graze_read_seconds", histogram, "How long READ requests of the kernel took.", nil, func(s *sample, e emitter) { e.durations(&s.fuse.Latency) }},
	{"graze_read_bytes_total", counter, "Bytes that READ requests were answered with.", nil, one(func(s *sample) int64 { return s.fuse.ReadBytes })},
	{"graze_read_errors_total", counter, "READ requests that were answered with EIO.", nil, one(func(s *sample) int64 { return s.fuse.Failed })},
	{"graze_reads_in_flight", gauge, "READ requests that wait for an answer.", nil, one(func(s *sample) int64 { return s.fuse.InFlight })},
	{"graze_cache_reads_total", counter, "Reads that the chunk store answered alone (hit), or that waited for a fetch (miss).", []string{"result"}, func(s *sample, e emitter) {
		e.value(s.sched.Hits, "hit")
		e.value(s.sched.Misses, "miss")
	}},
	{"graze_cache_read_bytes_total", counter, "Bytes of those reads.", []string{"result"}, func(s *sample, e emitter) {
		e.value(s.sched.HitBytes, "hit")
		e.value(s.sched.MissBytes, "miss")
	}},
	{"graze_miss_wait_seconds", histogram, "How long reads waited for a fetch.", nil, func(s *sample, e emitter) { e.durations(&s.sched.Wait) }},
}

// eachSource calls f for each source of chunks.
func eachSource(s *sample, f func(name string, st *scheduler.SourceStats)) {
	f("registry", &s.sched.Origin)
	for t := range s.sched.Cluster.Tiers {
		f(scheduler.Tier(t).String(), &s.sched.Cluster.Tiers[t])
	}
}

// sourceFamilies are about where chunks come from.
var sourceFamilies = []family{
	{"graze_source_bytes_total", counter, "Bytes of chunks that came: encoded from the registry, as they are from other nodes.", []string{"source", "class"}, func(s *sample, e emitter) {
		eachSource(s, func(name string, st *scheduler.SourceStats) {
			for c := range st.Classes {
				e.value(st.Classes[c].Bytes, name, chunk.Class(c).String())
			}
		})
	}},
	{"graze_source_seconds", histogram, "How long it took until a request to the registry was done, or a chunk from a node was there.", []string{"source", "class"}, func(s *sample, e emitter) {
		eachSource(s, func(name string, st *scheduler.SourceStats) {
			for c := range st.Classes {
				e.durations(&st.Classes[c].Latency, name, chunk.Class(c).String())
			}
		})
	}},
	{"graze_source_requests_total", counter, "Requests for chunks.", []string{"source"}, func(s *sample, e emitter) {
		eachSource(s, func(name string, st *scheduler.SourceStats) { e.value(st.Requests, name) })
	}},
	{"graze_source_errors_total", counter, "Requests for chunks that failed.", []string{"source"}, func(s *sample, e emitter) {
		eachSource(s, func(name string, st *scheduler.SourceStats) { e.value(st.Errors, name) })
	}},
	{"graze_source_abandoned_bytes_total", counter, "Bytes of chunks from nodes in requests that did not come to their end.", []string{"source"}, func(s *sample, e emitter) {
		for t := range s.sched.Cluster.Tiers {
			e.value(s.sched.Cluster.Tiers[t].Abandoned, scheduler.Tier(t).String())
		}
	}},
	{"graze_registry_requests_total", counter, "Requests to registries, for all kinds of content.", nil, one(func(s *sample) int64 { return s.registry.Requests })},
	{"graze_registry_bytes_total", counter, "Bytes of registries' answers, of all kinds.", nil, one(func(s *sample) int64 { return s.registry.Bytes })},
	{"graze_registry_errors_total", counter, "Requests to registries that failed.", nil, one(func(s *sample) int64 { return s.registry.Errors })},
	{"graze_registry_retries_total", counter, "Requests to registries that were made again, and transfers that were resumed.", nil, one(func(s *sample) int64 { return s.registry.Retries })},
	{"graze_registry_throttled_total", counter, "Answers of registries that there were too many requests.", nil, one(func(s *sample) int64 { return s.registry.Throttled })},
	{"graze_registry_reresolved_total", counter, "Redirects of registries that were asked for again as their target had expired.", nil, one(func(s *sample) int64 { return s.registry.Reresolved })},
	{"graze_span_failures_total", counter, "Tries of spans at the registry that failed.", []string{"cause"}, func(s *sample, e emitter) {
		e.value(s.sched.Unavailable, "unavailable")
		e.value(s.sched.Refused, "refused")
		e.value(s.sched.Corrupt, "corrupt")
	}},
	{"graze_chunks_corrupt_total", counter, "Chunks that came and were not what their digest says.", nil, one(func(s *sample) int64 { return s.sched.CorruptChunks })},
	{"graze_wasted_bytes_total", counter, "Bytes of chunks that came when they were there already.", nil, one(func(s *sample) int64 { return s.sched.Wasted })},
	{"graze_registry_transfers", gauge, "Transfers from the registry that are under way.", nil, one(func(s *sample) int64 { return int64(s.sched.Running) })},
	{"graze_chunks_wanted", gauge, "Chunks that are on their way.", nil, one(func(s *sample) int64 { return int64(s.sched.Wanted) })},
	{"graze_spans_queued", gauge, "Spans that wait for a transfer from the registry.", []string{"class"}, func(s *sample, e emitter) {
		for c, n := range s.sched.Queued {
			e.value(int64(n), chunk.Class(c).String())
		}
	}},
	{"graze_transfer_memory_bytes", gauge, "What transfers may hold in memory now.", nil, one(func(s *sample) int64 { return s.sched.Memory })},
}

// storeFamilies are about the chunk store, and images that are held whole.
var storeFamilies = []family{
	{"graze_store_bytes", gauge, "Bytes of the chunk store's files.", nil, one(func(s *sample) int64 { return s.store.Used })},
	{"graze_store_limit_bytes", gauge, "The most bytes that the chunk store's files may have.", nil, one(func(s *sample) int64 { return s.store.Limit })},
	{"graze_store_chunks", gauge, "Chunks in the store.", nil, one(func(s *sample) int64 { return s.store.Chunks })},
	{"graze_store_pinned_chunks", gauge, "Chunks that are not to be evicted, there or not.", nil, one(func(s *sample) int64 { return int64(s.store.Pinned) })},
	{"graze_store_evicted_chunks_total", counter, "Chunks that were dropped for room.", nil, one(func(s *sample) int64 { return s.store.Evicted })},
	{"graze_store_evicted_bytes_total", counter, "Bytes of those.", nil, one(func(s *sample) int64 { return s.store.EvictedBytes })},
	{"graze_store_corrupt_chunks_total", counter, "Chunks that rotted on this disk, and were dropped.", nil, one(func(s *sample) int64 { return s.store.Corrupt })},
	{"graze_store_errors_total", counter, "Chunks that the disk did not take, and failures to sync.", nil, one(func(s *sample) int64 { return s.store.WriteErrors + s.store.SyncErrors })},
	{"graze_metadata_bytes", gauge, "Bytes of manifests, configs, indexes and views of images, by whether an image in use needs them.", []string{"state"}, func(s *sample, e emitter) {
		e.value(s.metadata.InUse, "used")
		e.value(s.metadata.Bytes-s.metadata.InUse, "unused")
	}},
	{"graze_metadata_limit_bytes", gauge, "The most bytes of those that are kept without need.", nil, one(func(s *sample) int64 { return s.metadata.Limit })},
	{"graze_metadata_removed_files_total", counter, "Files of those that were removed for room.", nil, one(func(s *sample) int64 { return s.metadata.Removed })},
	{"graze_seed_images", gauge, "Images that the node holds whole, or is to.", nil, one(func(s *sample) int64 { return s.seeds.images })},
	{"graze_seed_spans", gauge, "Spans of those images.", []string{"state"}, func(s *sample, e emitter) {
		e.value(s.seeds.have, "here")
		e.value(s.seeds.spans-s.seeds.have, "missing")
	}},
}

// servingFamilies are about what other nodes get.
var servingFamilies = []family{
	{"graze_served_requests_total", counter, "Requests of other nodes for chunks.", nil, one(func(s *sample) int64 { return s.sched.Cluster.Served })},
	{"graze_served_bytes_total", counter, "Bytes of chunks that were handed to the system for other nodes.", nil, one(func(s *sample) int64 { return int64(s.host.BytesOut) })},
	{"graze_served_abandoned_bytes_total", counter, "Those of them in requests that the other node ended before it had all.", nil, one(func(s *sample) int64 { return int64(s.host.AbandonedOut) })},
	{"graze_served_refused_total", counter, "Chunks that other nodes asked for and did not get.", []string{"answer"}, func(s *sample, e emitter) {
		e.value(s.sched.Cluster.ServedRedirects, "redirect")
		e.value(s.sched.Cluster.ServedBusy, "busy")
		e.value(s.sched.Cluster.ServedAbsent, "absent")
		e.value(s.sched.Cluster.ServedFailed, "failed")
	}},
	{"graze_serving", gauge, "Requests of other nodes that are being served.", nil, one(func(s *sample) int64 { return int64(s.host.Serving) })},
	{"graze_slow_readers_total", counter, "Nodes that read too slowly and were cut off.", nil, one(func(s *sample) int64 { return int64(s.host.Cut) })},
	{"graze_served_over_limit_total", counter, "Requests of other nodes that were turned away because of a limit.", nil, one(func(s *sample) int64 { return int64(s.host.BusyOut) })},
}

// clusterFamilies are about the other nodes, and how they are chosen.
var clusterFamilies = []family{
	{"graze_members", gauge, "Members of the cluster, with this node.", []string{"state"}, func(s *sample, e emitter) {
		e.value(int64(s.gossip.Members-s.gossip.Unready), "ready")
		e.value(int64(s.gossip.Unready), "unready")
	}},
	{"graze_peers", gauge, "Nodes that this one has asked, by what it thinks of them.", []string{"state"}, func(s *sample, e emitter) {
		for state, n := range s.sched.Cluster.States {
			e.value(int64(n), scheduler.PeerState(state).String())
		}
	}},
	{"graze_links", gauge, "Open connections to other nodes, in both directions.", []string{"way"}, func(s *sample, e emitter) {
		for way, n := range s.host.Links {
			e.value(int64(n), peer.Way(way).String())
		}
	}},
	{"graze_peer_errors_total", counter, "Requests to other nodes that ended early.", []string{"cause"}, func(s *sample, e emitter) {
		for kind, n := range s.host.Errors {
			e.value(int64(n), peer.Kind(kind).String())
		}
	}},
	{"graze_fallbacks_total", counter, "Connections to other nodes that had to go by libp2p.", nil, one(func(s *sample) int64 { return int64(s.host.Fallbacks) })},
	{"graze_hedges_total", counter, "Chunks that were asked for at a second node (fired), and that came from there first (won).", []string{"result"}, func(s *sample, e emitter) {
		e.value(s.sched.Cluster.HedgesFired, "fired")
		e.value(s.sched.Cluster.HedgesWon, "won")
	}},
	{"graze_hedges_wasted_bytes_total", counter, "Bytes that came from a second node too late.", nil, one(func(s *sample) int64 { return s.sched.Cluster.HedgesWasted })},
	{"graze_promoted_chunks_total", counter, "Chunks that were asked for again as more urgent.", nil, one(func(s *sample) int64 { return s.sched.Cluster.Promoted })},
	{"graze_redirects_total", counter, "Redirects of busy nodes that were followed.", nil, one(func(s *sample) int64 { return s.sched.Cluster.Redirects })},
	{"graze_coalesced_total", counter, "Parties that joined a fetch which was under way.", nil, one(func(s *sample) int64 { return s.sched.Cluster.Coalesced })},
	{"graze_registry_budget_waits_total", counter, "Times that the cluster's budget for registries made a transfer wait.", nil, one(func(s *sample) int64 { return s.sched.Cluster.Throttled })},
	{"graze_join_errors_total", counter, "First contacts that did not answer.", nil, one(func(s *sample) int64 { return int64(s.gossip.JoinErrors) })},
	{"graze_dht_peers", gauge, "Nodes in the table of the DHT of images.", nil, one(func(s *sample) int64 { return int64(s.outside.Peers) })},
	{"graze_dht_images", gauge, "Images that the node announces there.", nil, one(func(s *sample) int64 { return int64(s.outside.Provided) })},
	{"graze_dht_announcements_total", counter, "Announcements of images.", []string{"result"}, func(s *sample, e emitter) {
		e.value(s.outside.Announced-s.outside.Failed, "done")
		e.value(s.outside.Failed, "failed")
	}},
	{"graze_dht_searches_total", counter, "Searches for holders of an image outside the pool.", []string{"result"}, func(s *sample, e emitter) {
		e.value(s.outside.Found, "found")
		e.value(s.outside.Searches-s.outside.Found, "none")
	}},
	{"graze_dht_holders", gauge, "Nodes outside the pool that are known to hold an image.", nil, one(func(s *sample) int64 { return int64(s.outside.Holders) })},
}

// strangerFamilies are about those who lack the key, and members that do what they
// must not.
var strangerFamilies = []family{
	{"graze_connections_rejected_total", counter, "Connections that have not proven who they are.", []string{"cause"}, func(s *sample, e emitter) {
		for kind, n := range s.host.Rejected {
			e.value(int64(n), peer.Kind(kind).String())
		}
	}},
	{"graze_gossip_refused_total", counter, "Packets and streams of gossip without the cluster's key.", nil, one(func(s *sample) int64 { return int64(s.gossip.Refused) })},
	{"graze_violations_total", counter, "What members did that the protocol or a limit forbids.", []string{"kind"}, func(s *sample, e emitter) {
		for kind, n := range s.host.Violations {
			e.value(int64(n), peer.Kind(kind).String())
		}
	}},
	{"graze_members_ignored_total", counter, "Times that a member was ignored: its words can't be read, or there are too many.", nil, one(func(s *sample) int64 { return int64(s.gossip.BadMetadata + s.gossip.TooMany) })},
	{"graze_holders_ignored_total", counter, "Holders that a redirect named and that are no members.", nil, one(func(s *sample) int64 { return s.sched.Cluster.Ignored })},
}

// containerdFamilies are about what containerd was answered.
var containerdFamilies = []family{
	{"graze_containerd_layers_total", counter, "Layers that containerd asked for, by why they are served lazily or pulled.", []string{"reason"}, func(s *sample, e emitter) {
		for _, reason := range snapshotter.Reasons() {
			e.value(s.snaps.Layers[reason], string(reason))
		}
	}},
	{"graze_containerd_views", gauge, "Views of images that containers use, each of which is a mount.", nil, one(func(s *sample) int64 { return int64(s.snaps.Views) })},
}
