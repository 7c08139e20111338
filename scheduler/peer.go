package scheduler

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"graze/chunk"
)

const (
	// The window of a peer is how many calls of one lane may be under way to it.
	firstWindow = 4
	maxWindow   = 32
	// spareWindow is how many more there may be for readers.
	spareWindow = 4
	// maxErrors is how many calls in a row may break before the peer is avoided
	// for a while, which doubles from minOpen to maxOpen.
	maxErrors = 3
	minOpen   = time.Second
	maxOpen   = 30 * time.Second
	// A peer that needs slowFactor times as long as the middle one of the rack,
	// and slowFloor more, is slow. It takes slowSamples chunks to tell.
	slowFactor  = 3
	slowFloor   = 50 * time.Millisecond
	slowSamples = 6
	// peakDecay is how fast a peak of a peer's time is forgotten.
	peakDecay = 10 * time.Second
	// maxPeers bounds the table of peers. Members in use are never dropped.
	maxPeers = 8192
)

// The lanes of calls. What waits in one lane never depends on a lower one, and
// each has slots of its own, so that who waits can't take the slots of those he
// waits for. Spans that need a window wait for chunks that need none.
const (
	numCallLanes   = numLevels * 2
	numOriginLanes = 2
)

// laneOf returns the lane of calls of a level for a span.
func laneOf(level int, span *chunk.Span) int { return 2*level + originLaneOf(span) }

// originLaneOf returns 0 for spans that need a window, 1 for those that need
// nothing.
func originLaneOf(span *chunk.Span) int {
	if span.Window != nil {
		return 0
	}
	return 1
}

// A peer is what the scheduler knows of another node. It is part of the state.
type peer struct {
	id   chunk.PeerID
	tier Tier

	lanes [numCallLanes]peerLane
	calls []*call // under way

	// peak and mean are how long a MiB of a body takes: at its worst lately, and
	// on average.
	peak, mean time.Duration
	best       time.Duration // the least mean, which rises again slowly
	peakAt     time.Time
	samples    int

	errors    int     // broken calls in a row
	opened    int     // times that the breaker opened since it was last closed
	probing   bool    // half open: the one call that finds out is under way
	sample    *search // what that call asks for
	slowUntil time.Time
	slowTimes int
	banUntil  time.Time

	broken error // what ended the last call that broke

	wrong      int       // hints about it, or by it, that were wrong lately
	doubtUntil time.Time // such hints are not followed

	used  time.Time
	stats PeerStats
}

// A peerLane is the searches that wait to be sent to a peer in one lane.
type peerLane struct {
	queue  [chunk.NumClasses]searchList
	calls  int
	window float64
	ready  bool // in the lane's list of peers that have something to send
}

// room reports whether the window lets another call start.
func (l *peerLane) room() bool { return l.calls < max(1, int(l.window)) }

func (l *peerLane) empty() bool {
	for c := range l.queue {
		if l.queue[c].head != nil {
			return false
		}
	}
	return true
}

// usable reports whether p may be asked. A slow peer is one only for work that
// other peers can do as well.
func (p *peer) usable(now time.Time, slowToo bool) bool {
	if p.opened > 0 || now.Before(p.banUntil) {
		return false
	}
	return slowToo || !now.Before(p.slowUntil)
}

// cost is how long p is expected to take for another chunk of a MiB.
func (p *peer) cost(now time.Time) time.Duration {
	svc := max(p.decayed(now), p.mean, time.Millisecond)
	return time.Duration(len(p.calls)+1)*svc + p.tier.penalty()
}

func (p *peer) decayed(now time.Time) time.Duration {
	if p.peak == 0 {
		return 0
	}
	return time.Duration(float64(p.peak) * math.Exp(-now.Sub(p.peakAt).Seconds()/peakDecay.Seconds()))
}

// observe notes that n bytes of a body took d.
func (p *peer) observe(now time.Time, d time.Duration, n int) {
	d = time.Duration(float64(d) * (1 << 20) / float64(max(n, 16<<10)))
	if old := p.decayed(now); d > old {
		p.peak, p.peakAt = d, now
	} else {
		p.peak, p.peakAt = old, now
	}
	if p.samples++; p.samples == 1 {
		p.mean, p.best = d, d
		return
	}
	p.mean += (d - p.mean) / 8
	p.best = min(p.mean, p.best+p.best/256+time.Microsecond)
}

// succeeded notes a call that ended well, of which grown says that the window
// was what limited the peer's calls.
func (p *peer) succeeded(lane int, grown bool) {
	p.errors, p.opened, p.probing = 0, 0, false
	l := &p.lanes[lane]
	switch {
	case p.mean > 2*p.best+slowFloor:
		l.window = max(1, l.window*0.7)
	case grown:
		l.window = min(maxWindow, l.window+1/l.window)
	}
}

// broke notes a call that broke, and reports whether the peer is to be avoided
// from now on, and for how long until it is tried again.
func (p *peer) broke(lane int) (avoid bool, d time.Duration) {
	p.stats.Errors++
	l := &p.lanes[lane]
	l.window = max(1, l.window*0.7)
	if p.errors++; p.errors < maxErrors || p.opened > 0 && !p.probing {
		return false, 0
	}
	p.probing = false
	p.opened++
	return true, min(minOpen<<min(p.opened-1, 10), maxOpen)
}

// state returns the peer's state for [PeerStats].
func (p *peer) state(now time.Time) PeerState {
	switch {
	case now.Before(p.banUntil):
		return PeerQuarantined
	case p.probing:
		return PeerHalfOpen
	case p.opened > 0:
		return PeerOpen
	case now.Before(p.slowUntil):
		return PeerSlow
	}
	return PeerGood
}

// reason returns in words why the peer is in its state.
func (p *peer) reason(now time.Time) string {
	switch p.state(now) {
	case PeerQuarantined:
		return fmt.Sprintf("it sent wrong bytes; not asked for %v", p.banUntil.Sub(now).Round(time.Second))
	case PeerOpen, PeerHalfOpen:
		text := strings.Join(strings.Fields(p.broken.Error()), " ")
		return fmt.Sprintf("%d requests to it broke, the last one: %.300s", p.stats.Errors, text)
	case PeerSlow:
		return fmt.Sprintf("much slower than the rack; others are home in its place for %v", p.slowUntil.Sub(now).Round(time.Second))
	}
	return ""
}

// peerTable holds the peers that were asked or heard of, and the lanes.
type peerTable struct {
	all    map[chunk.PeerID]*peer
	lanes  [numCallLanes]callLane
	judged time.Time // when slow peers were last looked for
}

// A callLane is the calls of one lane to all peers.
type callLane struct {
	ready []*peer // those with searches that wait and room in their window
	calls int
}

// peer returns the peer with the given name, nil if it is no member.
func (st *state) peer(id chunk.PeerID) *peer {
	place, ok := st.cluster.Place(id)
	if !ok {
		return nil
	}
	p := st.peers.all[id]
	if p == nil {
		if len(st.peers.all) >= maxPeers && !st.forgetPeer() {
			return nil
		}
		p = &peer{id: id}
		for i := range p.lanes {
			p.lanes[i].window = firstWindow
		}
		st.peers.all[id] = p
	}
	p.tier = tierOf(st.at, place)
	p.used = st.now
	return p
}

// forgetPeer makes room for a peer, by forgetting the one used longest ago of a
// few.
func (st *state) forgetPeer() bool {
	var oldest *peer
	looked := 0
	for _, p := range st.peers.all {
		if looked++; looked > 64 {
			break
		}
		idle := len(p.calls) == 0 && p.opened == 0 && !st.now.Before(p.banUntil)
		for i := range p.lanes {
			idle = idle && p.lanes[i].empty()
		}
		if idle && (oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	delete(st.peers.all, oldest.id)
	return true
}

// judge finds peers that are much slower than the rack's middle one. It does so
// once a second at most.
func (st *state) judge() {
	if st.now.Sub(st.peers.judged) < time.Second {
		return
	}
	st.peers.judged = st.now
	var means []time.Duration
	for _, p := range st.peers.all {
		if p.tier == TierRack && p.samples >= slowSamples {
			means = append(means, p.mean)
		}
	}
	if len(means) < 3 {
		return
	}
	slices.Sort(means)
	bound := slowFactor*means[(len(means)-1)/2] + slowFloor
	for _, p := range st.peers.all {
		if p.tier != TierRack || p.samples < slowSamples || st.now.Before(p.slowUntil) {
			continue
		}
		if p.mean <= bound {
			p.slowTimes = 0
			continue
		}
		p.slowUntil = st.now.Add(min(minOpen<<min(p.slowTimes, 10), maxOpen))
		p.slowTimes++
		// It takes new evidence to be called slow again.
		p.samples, p.mean = slowSamples/2, p.mean/2
		st.scatter(p)
		for _, c := range p.calls {
			if c.level == rackLevel {
				c.stop() // others can do as well
			}
		}
	}
}

// open returns the number of peers that are avoided, and of all.
func (st *state) open() (avoided, all int) {
	for _, p := range st.peers.all {
		if p.stats.Requests == 0 && p.stats.Errors == 0 {
			continue
		}
		all++
		if !p.usable(st.now, true) {
			avoided++
		}
	}
	return avoided, all
}
