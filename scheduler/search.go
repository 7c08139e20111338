package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"graze/chunk"
)

const (
	// maxHolderTries bounds the holders that one search asks, whatever redirects
	// say.
	maxHolderTries = 24
	// maxRedirects is how many redirects a search follows between two pauses.
	maxRedirects = 6
	// maxWaits is how often a home may say that it is busy before the next one is
	// asked: that costs bytes across racks, or even from the origin. A rack home
	// may say so maxRackWaits times to a reader. The pauses double from minWait to
	// maxWait.
	maxWaits     = 9
	maxRackWaits = 2
	minWait      = 5 * time.Millisecond
	maxWait      = 5 * time.Second
	// maxRackWait is the longest pause of a reader for a rack home.
	maxRackWait = 500 * time.Millisecond
	// maxRefusals is how many cluster homes may say that the origin refuses.
	maxRefusals = 2
)

// clustered is the part of the state that deals with other nodes.
type clustered struct {
	cluster   Cluster   // nil: the node is by itself
	directory Directory // nil: there is none
	settling  settling
	self      chunk.PeerID
	at        Place

	peers     peerTable
	probing   []*peer           // those to be asked whether they are back
	served    [numCallLanes]int // chunks that other nodes wait for
	callLimit [chunk.NumClasses]int
	timers    timers
	target    *target // the last one made

	hedging hedging

	rate, requests           float64 // the cluster's budget; 0: no limit
	bytesBucket, countBucket bucket
	pace                     pace
	runBytes                 int64 // most bytes of a run; 0: no limit

	patience time.Duration // how long a request may take whose deadline is not known

	coalesced, followed, ignored, throttled int64
}

func newClustered(cfg *Config) clustered {
	c := clustered{
		cluster:   cfg.Cluster,
		directory: cfg.Directory,
		rate:      float64(cfg.OriginRate),
		requests:  cfg.OriginRequests,
		patience:  cfg.ReadDeadline,
	}
	if c.rate > 0 || c.cluster != nil {
		c.runBytes = maxRun
	}
	if c.cluster == nil {
		return c
	}
	c.self = c.cluster.Self()
	c.at, _ = c.cluster.Place(c.self)
	c.peers.all = make(map[chunk.PeerID]*peer)
	c.callLimit = limits(cfg.Calls)
	c.hedging.tokens = 1
	return c
}

// tick does what is due.
func (st *state) tick() {
	st.timers.due(st.now, func(sr *search, kind timerKind) {
		switch {
		case kind == timerHedge:
			st.hedge(sr)
		case kind == timerProbe:
			st.probing = append(st.probing, sr.peer)
		case kind == timerPause && sr.stage == paused:
			sr.stage = fresh
			st.seek(sr)
		}
	})
}

// A target is a span that is looked for at peers, and who to ask. Searches for
// its chunks share it.
type target struct {
	span  chunk.Span
	route Route
	at    time.Time
}

// A search looks for one chunk at peers. There is one for each want of level 0
// and 1, and for wants of level 2 while former homes are asked.
type search struct {
	want   *want
	target *target
	span   *chunk.Span // of the target
	part   int
	level  int
	lane   int
	via    []chunk.PeerID

	interest [chunk.NumClasses]int
	class    chunk.Class

	stage searchStage
	peer  *peer // with stage waiting and calling
	mode  Mode
	call  *call // with stage calling
	slot  int   // in the call
	timer int   // number of the last timer; others are void

	prev, next *search // neighbours in the peer's queue

	hints     []*peer        // said to hold the chunk, and not asked yet
	asked     []chunk.PeerID // as holders
	outside   bool           // nodes outside the cluster are among the hints, or were asked
	later     []chunk.PeerID // holders, of level 2, that were busy
	peerWait  time.Duration  // for how long they said
	tried     []chunk.PeerID // as homes, without success
	failed    []chunk.PeerID // whose calls broke: they are not asked at a higher level either
	redirects int
	waits     int
	refusals  int
	last      error // failure

	// Of level 2.
	looked bool  // in this node's part of the directory
	found  bool  // no more keepers are to be asked
	namer  *peer // who named the hints; nil: this node

	twin   *search // asks a second peer, or the same one more urgently
	twinOf *search
	raised bool // a twin that asks the same peer
}

type searchStage int

const (
	fresh   searchStage = iota
	waiting             // in a peer's queue
	calling
	paused
	ended
)

// A searchList is a list of searches, linked through them.
type searchList struct{ head, tail *search }

func (l *searchList) push(sr *search) {
	sr.prev, sr.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = sr
	} else {
		l.head = sr
	}
	l.tail = sr
}

func (l *searchList) remove(sr *search) {
	if sr.prev != nil {
		sr.prev.next = sr.next
	} else {
		l.head = sr.next
	}
	if sr.next != nil {
		sr.next.prev = sr.prev
	} else {
		l.tail = sr.prev
	}
	sr.prev, sr.next = nil, nil
}

// aim returns the target for a span. Chunks of one span that are asked for
// together share it.
func (st *state) aim(span *chunk.Span) *target {
	if t := st.target; t != nil && t.at.Equal(st.now) && sameSpan(&t.span, span) {
		return t
	}
	t := &target{span: *span, at: st.now}
	st.cluster.Route(&t.span, &t.route)
	st.settling.observe(t.route.Epoch, st.now)
	st.target = t
	return t
}

// sameSpan reports whether a and b are the same bytes of the same blob.
func sameSpan(a, b *chunk.Span) bool {
	return a.Blob == b.Blob && a.Off == b.Off && a.Len == b.Len && a.Start == b.Start && a.Bits == b.Bits &&
		a.Codec == b.Codec && len(a.Parts) == len(b.Parts) && &a.Parts[0] == &b.Parts[0]
}

// search makes a search of a level for m's chunk, and its want. It starts when
// someone is interested.
func (st *state) search(m *miss, level int, via []chunk.PeerID) *want {
	w := &want{part: m.span.Parts[m.part], level: level}
	w.search = st.newSearch(w, st.aim(&m.span), m.part, level, via)
	st.wants[level][w.part.ID] = w
	return w
}

func (st *state) newSearch(w *want, t *target, part, level int, via []chunk.PeerID) *search {
	return &search{
		want: w, target: t, span: &t.span, part: part, via: via,
		level: level, lane: laneOf(level, &t.span), class: none,
	}
}

// copy returns a search for the same chunk that nobody waits for. It has ended.
func (sr *search) copy() *search {
	return &search{
		want: sr.want, target: sr.target, span: sr.span, part: sr.part, level: sr.level, lane: sr.lane, stage: ended,
	}
}

// raiseSearch counts one more ask of class c for sr, and raises sr to it.
func (st *state) raiseSearch(sr *search, c chunk.Class) {
	sr.interest[c]++
	if c < sr.class {
		st.setClass(sr, c)
	}
}

// lowerSearch takes back one ask of class c. A search that nobody wants ends.
func (st *state) lowerSearch(sr *search, c chunk.Class) {
	sr.interest[c]--
	class := none
	for i, n := range sr.interest {
		if n > 0 {
			class = min(class, chunk.Class(i))
		}
	}
	switch {
	case class == sr.class:
	case class != none:
		st.setClass(sr, class)
	case sr.level == originLevel:
		st.endSearch(sr)
	default:
		st.close(sr.want)
	}
}

func (st *state) setClass(sr *search, c chunk.Class) {
	switch sr.stage {
	case waiting:
		lane := &sr.peer.lanes[sr.lane]
		lane.queue[sr.class].remove(sr)
		sr.class = c
		lane.queue[c].push(sr)
	case fresh:
		sr.class = c
		st.seek(sr)
	case calling:
		sr.class = c
		if c == chunk.Demand {
			st.planHedge(sr)
		}
	case paused:
		sr.class = c
		if c == chunk.Demand {
			// A home that has no time for a prefetch may have some for a reader.
			sr.stage, sr.waits = fresh, 0
			sr.timer++
			st.seek(sr)
		}
	}
}

// seek has sr ask whoever is next: a known holder, then the homes of its level
// by rank. When there is nobody left to ask, or the node itself is next in line,
// the search goes on a level higher.
func (st *state) seek(sr *search) {
	if p := st.pickHolder(sr); p != nil {
		st.send(sr, p, ModeHeld)
		return
	}
	route := &sr.target.route
	switch sr.level {
	case rackLevel:
		if p := st.pickHome(sr, route.Rack); p != nil {
			st.send(sr, p, ModeHome)
			return
		}
	case clusterLevel:
		if p := st.pickHome(sr, route.Cluster); p != nil {
			st.send(sr, p, ModeHome)
			return
		}
	case originLevel:
		st.seekAnywhere(sr)
		return
	}
	st.escalate(sr, sr.level+1)
}

// pickHome returns the first of homes that can be asked, nil if that is this
// node or there is none.
func (st *state) pickHome(sr *search, homes []chunk.PeerID) *peer {
	for _, id := range homes {
		if id == st.self {
			if sr.level == originLevel {
				continue
			}
			return nil
		}
		if slices.Contains(sr.tried, id) || slices.Contains(sr.via, id) {
			continue
		}
		// A slow rack home is as good as none; to pass over a slow cluster home
		// would cost the origin.
		if p := st.peer(id); p != nil && p.usable(st.now, sr.level != rackLevel) {
			return p
		}
	}
	return nil
}

// pickHolder takes one of the hints: of two of the nearest at random the cheaper
// one.
func (st *state) pickHolder(sr *search) *peer {
	sr.hints = slices.DeleteFunc(sr.hints, func(p *peer) bool { return !p.usable(st.now, true) })
	if len(sr.hints) == 0 || len(sr.asked) >= maxHolderTries || sr.level == originLevel && len(sr.asked) >= maxFoundTries {
		return nil
	}
	tier := numTiers
	for _, p := range sr.hints {
		tier = min(tier, p.tier)
	}
	var best *peer
	for tries, i := 0, rand.IntN(len(sr.hints)); tries < 2; i = (i + 1) % len(sr.hints) {
		p := sr.hints[i]
		if p == best {
			break
		}
		if p.tier != tier {
			continue
		}
		if tries++; best == nil || p.cost(st.now) < best.cost(st.now) {
			best = p
		}
	}
	sr.hints = slices.DeleteFunc(sr.hints, func(p *peer) bool { return p == best })
	sr.asked = append(sr.asked, best.id)
	return best
}

// hint notes holders that a redirect has named. Strangers, this node, those that were
// asked already and those that wait for the search themselves are left out.
func (st *state) hint(sr *search, holders []chunk.PeerID) {
	for _, id := range holders[:min(len(holders), MaxHolders)] {
		if id == st.self || slices.Contains(sr.asked, id) || slices.Contains(sr.via, id) {
			continue
		}
		p := st.peer(id)
		if p == nil {
			st.ignored++
		}
		if p != nil && !slices.Contains(sr.hints, p) && len(sr.hints) < MaxHolders && !st.doubts(sr, p) {
			sr.hints = append(sr.hints, p)
		}
	}
}

// send puts sr into p's queue.
func (st *state) send(sr *search, p *peer, mode Mode) {
	sr.stage, sr.peer, sr.mode = waiting, p, mode
	p.lanes[sr.lane].queue[sr.class].push(sr)
	st.ready(p, sr.lane)
}

// ready lists p if it can be called in a lane.
func (st *state) ready(p *peer, lane int) {
	l := &p.lanes[lane]
	if !l.ready && !l.empty() && (l.room() || l.queue[chunk.Demand].head != nil && l.calls < int(l.window)+spareWindow) {
		l.ready = true
		st.peers.lanes[lane].ready = append(st.peers.lanes[lane].ready, p)
	}
}

// escalate has those who wait for sr's chunk wait on work of a higher level.
func (st *state) escalate(sr *search, level int) {
	w := sr.want
	asks := w.asks
	st.close(w)
	m := &miss{span: *sr.span, part: sr.part}
	for _, a := range asks {
		up := st.find(w.part.ID, level-1)
		if up == nil {
			up = st.begin(m, level, sr.via)
			if up.search != nil {
				up.search.tried = append(up.search.tried, sr.failed...)
			}
		} else {
			st.coalesced++
		}
		up.asks = append(up.asks, a)
		w.moved = up
		st.want(up, a.req.class)
	}
}

// pause has sr wait before it asks its home again.
func (st *state) pause(sr *search, d time.Duration) {
	sr.waits++
	most := maxWait
	if sr.level == rackLevel && sr.class == chunk.Demand {
		most = maxRackWait
	}
	d = min(max(d, minWait<<min(sr.waits, 10)), most)
	d = time.Duration(float64(d) * (0.75 + rand.Float64()/2))
	sr.stage, sr.redirects = paused, 0
	st.timers.set(sr, st.now.Add(d), timerPause)
}

// endSearch ends sr, and its twin. Who waits for the chunk is the caller's care.
func (st *state) endSearch(sr *search) {
	if sr.stage == ended {
		return
	}
	switch sr.stage {
	case waiting:
		sr.peer.lanes[sr.lane].queue[sr.class].remove(sr)
	case calling:
		sr.call.lose()
	}
	sr.stage, sr.call = ended, nil
	if of := sr.twinOf; of != nil {
		of.twin = nil
		return
	}
	sr.want.search = nil
	if sr.level == originLevel {
		sr.want.fetch.probes--
	}
	if sr.twin != nil {
		st.endSearch(sr.twin)
	}
}

// scatter has all that waits for p look elsewhere.
func (st *state) scatter(p *peer) {
	var all []*search
	for i := range p.lanes {
		for c := range p.lanes[i].queue {
			list := &p.lanes[i].queue[c]
			for sr := list.head; sr != nil; sr = list.head {
				list.remove(sr)
				sr.stage = fresh
				all = append(all, sr)
			}
		}
	}
	for _, sr := range all {
		if sr.twinOf != nil {
			st.endSearch(sr)
		} else {
			st.seek(sr)
		}
	}
}

// failure returns the last failure of what brings w.
func (w *want) failure() error {
	if w.fetch != nil {
		return w.fetch.failures.last
	}
	return w.search.last
}

// refused deals with a home that says that the origin refuses: other nodes may
// have other credentials, but not all of them are to try.
func (st *state) refused(sr *search, reason string) {
	sr.last = fmt.Errorf("%w: %s says %.100q", chunk.ErrDenied, sr.peer.id, reason)
	sr.tried = append(sr.tried, sr.peer.id)
	sr.refusals++
	if sr.level == clusterLevel && sr.refusals < maxRefusals {
		st.seek(sr)
		return
	}
	w := sr.want
	own := false
	asks := w.asks
	w.asks = nil
	for _, a := range asks {
		if a.req.notify == nil {
			w.asks = append(w.asks, a)
			own = true
			continue
		}
		sr.interest[a.req.class]--
		a.fail(sr.last)
	}
	if own {
		st.escalate(sr, originLevel)
	} else {
		st.close(w)
	}
}
