package node

import (
	"cmp"
	"os"
	"slices"
	"time"

	"graze/chunk"
	"graze/copies"
	"graze/image"
	"graze/scheduler"
)

// Stats says what a node is doing, and what it has done since it was opened.
type Stats struct {
	PID     int           `json:"pid"`
	Uptime  time.Duration `json:"uptime_ns"`
	Mounts  []MountStats  `json:"mounts"`
	Sources []SourceStats `json:"sources"`
	Reads   ReadStats     `json:"reads"`
	Store   StoreStats    `json:"store"`
	Served  ServedStats   `json:"served"`
	Cluster ClusterStats  `json:"cluster"`

	Metadata   MetadataStats   `json:"metadata"`
	Containerd ContainerdStats `json:"containerd"`
}

// ServedStats tell what other nodes were given.
type ServedStats struct {
	Requests  int64 `json:"requests"`
	Bytes     int64 `json:"bytes"`
	Abandoned int64 `json:"abandoned_bytes"` // of them, in requests that the other node ended before it had all
	Redirects int64 `json:"redirects"`       // chunks for which they were sent to others
	Busy      int64 `json:"busy"`            // chunks for which they were asked to wait
	Absent    int64 `json:"absent"`          // chunks that are not held
}

// MountStats tell of one mount.
type MountStats struct {
	Dir       string        `json:"dir"`
	Reference string        `json:"reference"`
	Digest    chunk.Blob    `json:"digest"`
	Stale     bool          `json:"stale,omitempty"` // the registry did not answer; Digest is the last known one
	Format    string        `json:"format"`
	Layers    []LayerReport `json:"layers"`
	Files     int64         `json:"files"` // regular ones
	Bytes     int64         `json:"bytes"` // sum of the files' sizes

	Ops       int64         `json:"ops"` // requests of the kernel
	Reads     int64         `json:"reads"`
	ReadBytes int64         `json:"read_bytes"`
	Errors    int64         `json:"errors"` // reads that failed
	Chunks    int64         `json:"chunks"` // of the image
	Local     int64         `json:"local"`  // of them, those that the node has
	Safety    copies.Status `json:"safety"` // whether the image could be read without its registry
	ReadP50   time.Duration `json:"read_p50_ns"`
	ReadP99   time.Duration `json:"read_p99_ns"`
}

// The kinds of sources.
const (
	RegistrySource = "registry" // a registry host, for all kinds of content
	PeersSource    = "peers"    // nodes of one distance: rack, zone or far
)

// SourceStats tell what was asked of a source.
type SourceStats struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Bytes    int64  `json:"bytes"`
	Errors   int64  `json:"errors"`
	Retries  int64  `json:"retries"`

	Abandoned int64 `json:"abandoned_bytes"` // of peers: of Bytes, in requests that did not come to their end
	Throttled int64 `json:"throttled"`       // of registries: answers that there were too many requests
}

// ReadStats tell how reads of files were answered.
type ReadStats struct {
	Hits      int64         `json:"hits"` // by the store alone
	HitBytes  int64         `json:"hit_bytes"`
	Misses    int64         `json:"misses"` // after a fetch
	MissBytes int64         `json:"miss_bytes"`
	WaitP50   time.Duration `json:"wait_p50_ns"` // of misses
	WaitP99   time.Duration `json:"wait_p99_ns"`
	Corrupt   int64         `json:"corrupt"`      // chunks that arrived and were thrown away
	Wasted    int64         `json:"wasted_bytes"` // that arrived when they were there already
}

// StoreStats tell of the chunk store.
type StoreStats struct {
	Bytes   int64 `json:"bytes"` // on disk
	Limit   int64 `json:"limit"`
	Chunks  int64 `json:"chunks"`
	Evicted int64 `json:"evicted"`
	Corrupt int64 `json:"corrupt"` // chunks that rotted, and were dropped
	Heard   int64 `json:"heard"`   // chunks that nodes of the cluster were heard to hold
}

// Stats returns the node's figures.
func (n *Node) Stats() Stats {
	s := n.sched.Stats()
	out := Stats{
		PID:    os.Getpid(),
		Uptime: time.Since(n.started),
		Reads: ReadStats{
			Hits: s.Hits, HitBytes: s.HitBytes,
			Misses: s.Misses, MissBytes: s.MissBytes,
			WaitP50: s.Wait.Quantile(0.5),
			WaitP99: s.Wait.Quantile(0.99),
			Corrupt: s.CorruptChunks,
			Wasted:  s.Wasted,
		},
	}
	n.mu.Lock()
	for _, m := range n.mounts { // a mount that is on the list has not been closed
		out.Mounts = append(out.Mounts, m.stats())
	}
	n.mu.Unlock()
	for name, h := range n.client.Stats().Hosts {
		out.Sources = append(out.Sources, SourceStats{Kind: RegistrySource, Name: name, Requests: h.Requests, Bytes: h.Bytes, Errors: h.Errors, Retries: h.Retries, Throttled: h.Throttled})
	}
	slices.SortFunc(out.Sources, func(a, b SourceStats) int { return cmp.Compare(a.Name, b.Name) })
	if n.members != nil {
		for tier, t := range s.Cluster.Tiers {
			out.Sources = append(out.Sources, SourceStats{
				Kind: PeersSource, Name: scheduler.Tier(tier).String(), Requests: t.Requests, Bytes: t.Bytes, Errors: t.Errors, Abandoned: t.Abandoned,
			})
		}
		sent := n.members.host.Stats()
		out.Served = ServedStats{
			Requests: s.Cluster.Served, Bytes: int64(sent.BytesOut), Abandoned: int64(sent.AbandonedOut), Redirects: s.Cluster.ServedRedirects,
			Busy: s.Cluster.ServedBusy, Absent: s.Cluster.ServedAbsent,
		}
		out.Cluster = n.clusterStats(&s.Cluster)
	}
	if n.store != nil {
		st := n.store.Stats()
		out.Store = StoreStats{Bytes: st.Used, Limit: st.Limit, Chunks: st.Chunks, Evicted: st.Evicted, Corrupt: st.Corrupt}
	}
	out.Metadata = n.metadataStats()
	if n.directory != nil {
		out.Store.Heard = int64(n.directory.Known())
	}
	if n.snaps != nil {
		out.Containerd = n.snaps.stats()
	}
	return out
}

// stats returns the mount's figures.
func (m *Mount) stats() MountStats {
	s := m.server.Stats()
	return MountStats{
		Dir:       m.info.Dir,
		Reference: m.info.Reference,
		Digest:    m.info.Digest,
		Stale:     m.info.Stale,
		Format:    m.info.Format,
		Layers:    m.info.Layers,
		Files:     m.info.Files,
		Bytes:     m.info.Bytes,
		Ops:       s.Lookups + s.Getattrs + s.Readdirs + s.Readlinks + s.Xattrs + s.Statfs + s.Reads,
		Reads:     s.Reads,
		ReadBytes: s.ReadBytes,
		Errors:    s.Failed,
		Chunks:    int64(m.tree.View.NumChunks()),
		Local:     m.local(),
		Safety:    m.node.safety(m.tree.Image.byDigest()),
		ReadP50:   s.Latency.Quantile(0.5),
		ReadP99:   s.Latency.Quantile(0.99),
	}
}

// local returns how many of the image's chunks the node has.
func (m *Mount) local() (n int64) {
	if m.node.store == nil {
		return 0
	}
	for i := range m.tree.View.NumChunks() {
		if ref, _ := m.tree.View.Chunk(uint32(i)); m.node.store.Has(ref.ID) {
			n++
		}
	}
	return n
}

// reports tells of a view's layers, and names all their formats.
func reports(layers []image.LayerInfo) (list []LayerReport, formats string) {
	for _, l := range layers {
		seen := slices.ContainsFunc(list, func(r LayerReport) bool { return r.Format == l.Format })
		if !seen && formats != "" {
			formats += "+"
		}
		if !seen {
			formats += string(l.Format)
		}
		list = append(list, LayerReport{Digest: l.Digest, Size: l.Size, Format: l.Format, Index: l.Index})
	}
	return list, formats
}
