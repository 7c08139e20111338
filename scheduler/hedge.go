package scheduler

import (
	"slices"
	"time"

	"graze/chunk"
	"graze/latency"
)

const (
	// A reader's chunk is asked for at a second peer when it takes longer than
	// hedgeQuantile of the chunks from such a peer did lately, but not before
	// minHedge. Until enough is known, firstHedge is taken.
	hedgeQuantile = 0.95
	minHedge      = 5 * time.Millisecond
	firstHedge    = 50 * time.Millisecond
	hedgeSamples  = 32
	// maxRecentTimes is how many times count as lately.
	maxRecentTimes = 2048
	// promoteAfter is how long a reader waits for a chunk that was asked for as a
	// prefetch, before it is asked for as the reader's.
	promoteAfter = time.Millisecond
	// hedgeShare is how many second requests there may be for each first one,
	// and hedgeBurst how many may be saved up.
	hedgeShare = 0.05
	hedgeBurst = 10
	// maxAvoided is the part of the peers that may be avoided while there are
	// second requests: they must not load a cluster further that is in trouble.
	maxAvoided = 0.3
)

// hedging decides when a chunk is asked for a second time.
type hedging struct {
	tokens float64
	recent [numTiers]latency.Histogram // how long chunks took, from the call to their arrival

	fired, won, wasted, promoted int64
}

// observe notes how long a chunk took.
func (h *hedging) observe(t Tier, d time.Duration) {
	r := &h.recent[t]
	if r.Add(d); r.Count >= maxRecentTimes {
		r.Halve()
	}
}

// delay returns how long to wait before a second request.
func (h *hedging) delay(t Tier) time.Duration {
	r := &h.recent[t]
	if r.Count < hedgeSamples {
		return firstHedge
	}
	return max(r.Quantile(hedgeQuantile), minHedge)
}

// called earns what a first request of a reader allows.
func (h *hedging) called(n int) { h.tokens = min(h.tokens+float64(n)*hedgeShare, hedgeBurst) }

// planHedge has sr be looked at again if its call takes long.
func (st *state) planHedge(sr *search) {
	if sr.twinOf != nil || sr.twin != nil || sr.level == originLevel {
		return
	}
	d := st.hedging.delay(sr.peer.tier)
	if sr.call.class >= chunk.Prefetch {
		d = min(d, promoteAfter)
	}
	st.timers.set(sr, st.now.Add(d), timerHedge)
}

// hedge gives sr, whose call has taken long, a twin: with the same peer if that
// takes the chunk for less urgent than it has become, and with another one
// otherwise. Only holders and other rack homes are asked, never one who would
// ask the origin.
func (st *state) hedge(sr *search) {
	if sr.stage != calling || sr.class != chunk.Demand || sr.twin != nil {
		return
	}
	p, mode, raised := sr.peer, sr.mode, sr.call.class > chunk.Demand
	switch {
	case raised && sr.call.class < chunk.Prefetch && sr.call.receiving == sr:
		st.planHedge(sr) // it is coming, but the call may still break
		return
	case raised && !p.usable(st.now, true):
		return
	case raised:
		st.hedging.promoted++
	default:
		if p, mode = st.second(sr); p == nil {
			return
		}
		st.hedging.tokens--
		st.hedging.fired++
	}
	twin := st.newSearch(sr.want, sr.target, sr.part, sr.level, sr.via)
	twin.twinOf, twin.raised, twin.class = sr, raised, chunk.Demand
	sr.twin = twin
	st.send(twin, p, mode)
}

// second returns a second peer to ask, nil if there is none or the budget is
// used up.
func (st *state) second(sr *search) (*peer, Mode) {
	if st.hedging.tokens < 1 {
		return nil, 0
	}
	if avoided, all := st.open(); float64(avoided) > maxAvoided*float64(all) {
		return nil, 0
	}
	if p := st.pickHolder(sr); p != nil {
		return p, ModeHeld
	}
	if sr.level != rackLevel {
		return nil, 0
	}
	for _, id := range sr.target.route.Rack {
		if id == st.self || id == sr.peer.id || slices.Contains(sr.tried, id) || slices.Contains(sr.via, id) {
			continue
		}
		if p := st.peer(id); p != nil && p.usable(st.now, false) {
			return p, ModeHome
		}
	}
	return nil, 0
}
