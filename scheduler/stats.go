package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"graze/chunk"
	"graze/latency"
)

// Stats counts what a Scheduler has done since New, and says what it is doing.
type Stats struct {
	Hits     int64 // reads that the store answered in full
	Misses   int64 // reads that had to wait for a fetch
	HitBytes int64 // bytes of reads that came from the store, and holes
	// MissBytes are bytes of reads that had to be fetched.
	MissBytes int64
	// Wait is how long the reads in Misses waited.
	Wait latency.Histogram

	Origin SourceStats

	// Failed tries of spans, by kind.
	Unavailable int64
	Refused     int64 // not found, or access denied
	Corrupt     int64

	CorruptChunks   int64 // chunks that arrived and were not what their digest says
	Retries         int64 // spans that were put back into the queue
	Wasted          int64 // decoded bytes that nobody needed: another source or run was first
	StoreErrors     int64 // chunks that the store did not keep
	ReadaheadSpans  int64 // spans that read-ahead asked for
	PrefetchedSpans int64 // spans that Prefetch asked for

	Cluster ClusterStats

	Running    int                   // slots in use
	Queued     [chunk.NumClasses]int // spans that wait for a slot, by class
	Wanted     int                   // chunks on their way
	Memory     int64                 // bytes that running transfers may hold
	MemoryPeak int64                 // the most that Memory has been
}

// SourceStats counts what one kind of source has delivered.
type SourceStats struct {
	Requests int64
	Bytes    int64 // from the origin encoded; from peers those of bodies, whole or not
	Errors   int64 // requests that failed
	// Abandoned are the bytes of requests to peers that did not come to their end,
	// as they broke, or nobody needed the rest. What was whole of them was used.
	Abandoned int64
	// Latency is how long it took until the bytes were there: of each request to
	// the origin, and of each chunk from a peer.
	Latency latency.Histogram
	// Classes tells Bytes and Latency apart by the class of the request.
	Classes [chunk.NumClasses]ClassStats
}

// ClassStats are the part of a class in [SourceStats].
type ClassStats struct {
	Bytes   int64
	Latency latency.Histogram
}

// ClusterStats counts what was had from other nodes, and given to them. All is
// zero for a node by itself.
type ClusterStats struct {
	Tiers [numTiers]SourceStats // by Tier

	HedgesFired  int64              // chunks that were asked for at a second peer
	HedgesWon    int64              // that came from there first
	HedgesWasted int64              // bytes that came from there too late
	Promoted     int64              // chunks that were asked for again as more urgent
	Redirects    int64              // redirects that were followed
	Ignored      int64              // holders that were named and that are no members
	Coalesced    int64              // parties that joined a fetch that was under way
	Throttled    int64              // times that the registry's budget made a run wait
	Quarantined  int                // peers that are avoided for wrong bytes
	Open         int                // peers that are avoided for failures
	States       [NumPeerStates]int // peers that are known, by state

	// What other nodes were given.
	Served          int64 // requests
	ServedBytes     int64
	ServedRedirects int64 // chunks for which others were named
	ServedBusy      int64 // chunks for which there was no time, and no one to name
	ServedAbsent    int64 // chunks, or requests, that were not held
	ServedFailed    int64 // chunks that could not be fetched

	// Peers are those that were asked most lately, MaxPeerStats at most.
	Peers []PeerStats
}

// MaxPeerStats is the most peers that Stats describes.
const MaxPeerStats = 256

// A PeerState says whether a peer is asked.
type PeerState int

// The states of peers.
const (
	PeerGood        PeerState = iota
	PeerSlow                  // much slower than the rack: others serve as homes in its place
	PeerOpen                  // its calls break: not asked for a while
	PeerHalfOpen              // one call may find out whether it is back
	PeerQuarantined           // it sent wrong bytes
	NumPeerStates   = iota
)

// String returns the state's name.
func (s PeerState) String() string {
	switch s {
	case PeerSlow:
		return "slow"
	case PeerOpen:
		return "open"
	case PeerHalfOpen:
		return "half-open"
	case PeerQuarantined:
		return "quarantined"
	}
	return "good"
}

// PeerStats describes one other node as this one has seen it.
type PeerStats struct {
	ID       chunk.PeerID
	Tier     Tier
	State    PeerState
	Requests int64
	Bytes    int64
	Errors   int64         // requests that broke
	Corrupt  int64         // chunks that were not what their digest says
	Reason   string        // why it is in its state; "" if that is good. By a stranger in part
	Calls    int           // under way
	PerMiB   time.Duration // mean time that a MiB of a body takes
}

// counters are the parts of Stats that are counted without a lock.
type counters struct {
	hits, misses, hitBytes, missBytes atomic.Int64
	wait                              latency.Recorder
	origin                            sourceCounters
	tiers                             [numTiers]sourceCounters
	errors                            [numCauses]atomic.Int64
	corrupt, retries, wasted          atomic.Int64
	storeErrors                       atomic.Int64
	readahead, prefetched             atomic.Int64
	serve                             struct{ requests, bytes, redirects, busy, absent, failed atomic.Int64 }
}

type sourceCounters struct {
	requests, errors, abandoned atomic.Int64
	classes                     [chunk.NumClasses]classCounters
}

type classCounters struct {
	bytes   atomic.Int64
	latency latency.Recorder
}

func (c *sourceCounters) snapshot() SourceStats {
	s := SourceStats{
		Requests:  c.requests.Load(),
		Errors:    c.errors.Load(),
		Abandoned: c.abandoned.Load(),
	}
	for i := range c.classes {
		one := ClassStats{Bytes: c.classes[i].bytes.Load(), Latency: c.classes[i].latency.Snapshot()}
		s.Classes[i] = one
		s.Bytes += one.Bytes
		s.Latency.Merge(&one.Latency)
	}
	return s
}

func (c *counters) snapshot() Stats {
	return Stats{
		Hits:            c.hits.Load(),
		Misses:          c.misses.Load(),
		HitBytes:        c.hitBytes.Load(),
		MissBytes:       c.missBytes.Load(),
		Wait:            c.wait.Snapshot(),
		Origin:          c.origin.snapshot(),
		Unavailable:     c.errors[unavailable].Load(),
		Refused:         c.errors[refused].Load(),
		Corrupt:         c.errors[corrupt].Load(),
		CorruptChunks:   c.corrupt.Load(),
		Retries:         c.retries.Load(),
		Wasted:          c.wasted.Load(),
		StoreErrors:     c.storeErrors.Load(),
		ReadaheadSpans:  c.readahead.Load(),
		PrefetchedSpans: c.prefetched.Load(),
		Cluster:         c.cluster(),
	}
}

func (c *counters) cluster() ClusterStats {
	s := ClusterStats{
		Served:          c.serve.requests.Load(),
		ServedBytes:     c.serve.bytes.Load(),
		ServedRedirects: c.serve.redirects.Load(),
		ServedBusy:      c.serve.busy.Load(),
		ServedAbsent:    c.serve.absent.Load(),
		ServedFailed:    c.serve.failed.Load(),
	}
	for i := range c.tiers {
		s.Tiers[i] = c.tiers[i].snapshot()
	}
	return s
}

// Stats returns a snapshot of the counters.
func (s *Scheduler) Stats() Stats {
	st := s.counters.snapshot()
	s.lock()
	defer s.mu.Unlock()
	st.Running = len(s.state.running)
	for i := range s.state.lanes {
		for c, n := range s.state.lanes[i].queue.counts() {
			st.Queued[c] += n
		}
	}
	for level := range s.state.wants {
		st.Wanted += len(s.state.wants[level])
	}
	st.Memory = s.state.memory
	st.MemoryPeak = s.state.memoryPeak
	s.state.describe(&st.Cluster)
	return st
}

// describe adds to c what the state knows.
func (st *state) describe(c *ClusterStats) {
	h := &st.hedging
	c.HedgesFired, c.HedgesWon, c.HedgesWasted, c.Promoted = h.fired, h.won, h.wasted, h.promoted
	c.Redirects, c.Ignored = st.followed, st.ignored
	c.Coalesced, c.Throttled = st.coalesced, st.throttled
	all := slices.Collect(maps.Values(st.peers.all))
	slices.SortFunc(all, func(a, b *peer) int {
		return cmp.Or(b.used.Compare(a.used), cmp.Compare(a.id, b.id))
	})
	for i, p := range all {
		ps := p.stats
		ps.ID, ps.Tier, ps.State, ps.Calls, ps.PerMiB = p.id, p.tier, p.state(st.now), len(p.calls), p.mean
		ps.Reason = p.reason(st.now)
		c.States[ps.State]++
		switch ps.State {
		case PeerQuarantined:
			c.Quarantined++
		case PeerOpen:
			c.Open++
		}
		if i < MaxPeerStats {
			c.Peers = append(c.Peers, ps)
		}
	}
}
