package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"graze/chunk"
)

const (
	// maxCallParts and maxCallBytes bound what one call asks for.
	maxCallParts = 64
	maxCallBytes = 4 << 20
	// A body that does not move for so long breaks the call: a reader may wait
	// for it, or nobody.
	readerStall = time.Second
	otherStall  = 5 * time.Second
	// probeTimeout is how long those that are asked before the origin may take for
	// the next answer, and homeTimeout how long a home may if a reader waits: it
	// may wait for a busy registry, but not for ever. A reader must have the time
	// to ask all homes, of which there are less than homeTries.
	probeTimeout = time.Second
	homeTimeout  = time.Minute
	homeTries    = 10
	// otherPatience is the same where nobody waits: what is urgent goes first.
	otherPatience = 10 * time.Minute
)

var (
	// errLied is what ends a call to a peer that sent wrong bytes.
	errLied = errors.New("the peer sent wrong bytes")
	// errSlowBody is what ends a call whose body does not move, and errNoAnswer one
	// whose peer works on it without an answer.
	errSlowBody = fmt.Errorf("%w: a body did not move", chunk.ErrUnavailable)
	errNoAnswer = fmt.Errorf("%w: no answer came", chunk.ErrUnavailable)
	// errProtocol is what ends a call to a peer that answers what was not asked.
	errProtocol = errors.New("unexpected answer")
)

// A call is one request to a peer, for the chunks of several searches.
type call struct {
	peer   *peer
	lane   int
	mode   Mode
	level  int
	class  chunk.Class
	memory int64
	begun  time.Time
	full   bool // the peer's window was used up
	stop   context.CancelFunc

	slots    []*search
	answered []bool
	open     int // slots without an answer
	left     int // slots whose search is not over
}

// lose notes that a search that c is for is over. A call that nobody needs any
// more is stopped.
func (c *call) lose() {
	if c.left--; c.left == 0 && c.open > 0 {
		c.stop()
	}
}

// nextCall makes the call that should start now, or returns nil. Lanes that
// others may wait for come first.
func (st *state) nextCall() *call {
	if st.cluster == nil {
		return nil
	}
	st.judge()
	if c := st.nextProbe(); c != nil {
		return c
	}
	for lane := numCallLanes - 1; lane >= 0; lane-- {
		cl := &st.peers.lanes[lane]
		for class := range chunk.Class(chunk.NumClasses) {
			if cl.calls >= st.callLimit[class] {
				break
			}
			for i, p := range cl.ready {
				head := p.lanes[lane].queue[class].head
				if head == nil || class != chunk.Demand && !p.lanes[lane].room() {
					continue
				}
				memory := int64(head.want.part.Size)
				if cl.calls > 0 && st.memory+memory > st.budget {
					break
				}
				return st.dial(p, lane, class, i)
			}
		}
	}
	return nil
}

// dial takes a call out of the queue of p, which is at position i of the lane's
// list.
func (st *state) dial(p *peer, lane int, class chunk.Class, i int) *call {
	l := &p.lanes[lane]
	first := l.queue[class].head
	c := &call{peer: p, lane: lane, class: class, mode: first.mode, level: first.level, begun: st.now}
	bytes := int64(0)
	for sr := l.queue[class].head; sr != nil && len(c.slots) < maxCallParts; {
		next := sr.next
		size := int64(sr.want.part.Size)
		if len(c.slots) > 0 && bytes+size > maxCallBytes {
			break
		}
		if sr.mode == c.mode && (c.level == originLevel || sameVia(sr.via, first.via)) {
			l.queue[class].remove(sr)
			bytes += size
			c.memory = max(c.memory, size)
			sr.stage, sr.call, sr.slot = calling, c, len(c.slots)
			c.slots = append(c.slots, sr)
		}
		sr = next
	}
	c.open, c.left = len(c.slots), len(c.slots)
	c.answered = make([]bool, len(c.slots))
	st.dialled(c)
	cl := &st.peers.lanes[lane]
	c.full = !l.room()
	cl.ready = append(cl.ready[:i], cl.ready[i+1:]...)
	l.ready = false
	st.ready(p, lane) // behind the others
	if class == chunk.Demand {
		if c.level < originLevel {
			st.hedging.called(len(c.slots))
		}
	}
	for _, sr := range c.slots {
		if sr.class == chunk.Demand {
			st.planHedge(sr)
		}
	}
	return c
}

// avoid has p not be asked for d. Then one call finds out whether it is back,
// with what it was last asked for.
func (st *state) avoid(p *peer, d time.Duration) {
	if p.sample == nil {
		return
	}
	p.sample.peer = p
	st.timers.set(p.sample, st.now.Add(d), timerProbe)
	st.scatter(p)
}

// nextProbe makes the call that finds out whether a peer is back, or returns
// nil.
func (st *state) nextProbe() *call {
	for n := len(st.probing); n > 0; n = len(st.probing) {
		p := st.probing[n-1]
		st.probing = st.probing[:n-1]
		if _, ok := st.cluster.Place(p.id); !ok || p.opened == 0 {
			p.opened, p.errors = 0, 0
			continue
		}
		sr := p.sample
		p.probing = true
		c := &call{
			peer: p, lane: sr.lane, class: chunk.Demand, mode: ModeHeld, level: originLevel, begun: st.now,
			slots: []*search{sr}, answered: make([]bool, 1), open: 1, left: 1,
		}
		sr.mode = ModeHeld
		st.dialled(c)
		return c
	}
	return nil
}

// dialled counts a call that starts.
func (st *state) dialled(c *call) {
	c.peer.calls = append(c.peer.calls, c)
	c.peer.lanes[c.lane].calls++
	c.peer.stats.Requests++
	st.peers.lanes[c.lane].calls++
	st.hold(c.memory)
}

func sameVia(a, b []chunk.PeerID) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// hangUp ends call c. What it has not answered is looked for elsewhere.
func (st *state) hangUp(c *call, err error, stopped bool) {
	p := c.peer
	p.calls = slices.DeleteFunc(p.calls, func(x *call) bool { return x == c })
	p.lanes[c.lane].calls--
	st.peers.lanes[c.lane].calls--
	st.memory -= c.memory
	switch {
	case err == nil:
		p.succeeded(c.lane, c.full)
	case stopped:
	case errors.Is(err, errLied):
		p.opened, p.errors, p.probing = 0, 0, false // it is there
	default:
		p.broken = err
		if errors.Is(err, errProtocol) || errors.Is(err, chunk.ErrCorrupt) {
			p.errors = max(p.errors, maxErrors-1) // once is enough
		}
		if avoid, d := p.broke(c.lane); avoid {
			if p.sample == nil {
				p.sample = c.slots[0].copy()
			}
			st.avoid(p, d)
		}
	}
	for i, sr := range c.slots {
		if c.answered[i] || sr.stage != calling || sr.call != c {
			continue
		}
		c.answered[i] = true
		if err != nil {
			sr.last = fmt.Errorf("%w: ask %s: %w", chunk.ErrUnavailable, p.id, err)
			sr.failed = append(sr.failed, p.id)
		}
		st.elsewhere(sr)
	}
	st.ready(p, c.lane)
}

// elsewhere has sr ask others than the peer that it has asked.
func (st *state) elsewhere(sr *search) {
	sr.call, sr.stage = nil, fresh
	if sr.twinOf != nil {
		st.endSearch(sr)
		return
	}
	if sr.mode == ModeHome {
		sr.tried = append(sr.tried, sr.peer.id)
	}
	st.seek(sr)
}

// told takes an answer without bytes.
func (st *state) told(c *call, slots []int, a *PeerAnswer) {
	for _, i := range slots {
		sr := c.slots[i]
		if c.answered[i] {
			continue
		}
		c.answered[i] = true
		c.open--
		if sr.stage != calling || sr.call != c {
			continue
		}
		c.left--
		if sr.twinOf != nil {
			sr.call, sr.stage = nil, fresh
			st.endSearch(sr)
			continue
		}
		st.answer(sr, a)
	}
}

// answer has sr go on after an answer without bytes.
func (st *state) answer(sr *search, a *PeerAnswer) {
	sr.call, sr.stage = nil, fresh
	if sr.level == originLevel {
		st.answerAnywhere(sr, a)
		return
	}
	switch a.Status {
	case StatusRedirect:
		st.hint(sr, a.Holders)
		sr.redirects++
		if len(sr.hints) == 0 || sr.redirects > maxRedirects {
			st.busy(sr, a.Wait)
			return
		}
		st.followed++
		st.seek(sr)
	case StatusBusy:
		st.busy(sr, a.Wait)
	case StatusFailed:
		st.refused(sr, a.Reason)
	default:
		st.elsewhere(sr)
	}
}

// busy has sr wait for a home that has no time, or ask others than a holder.
func (st *state) busy(sr *search, wait time.Duration) {
	most := maxWaits
	if sr.level == rackLevel && sr.class == chunk.Demand {
		most = maxRackWaits
	}
	switch {
	case sr.mode == ModeHeld:
		st.seek(sr)
	case sr.waits < most:
		st.pause(sr, wait)
	default:
		sr.waits = 0
		st.elsewhere(sr)
	}
}

// converse does call c.
func (s *Scheduler) converse(ctx context.Context, c *call) {
	defer c.stop()
	t := &talk{s: s, call: c}
	req := t.request()
	fctx, cancel := context.WithCancelCause(ctx)
	t.cancel = cancel
	defer cancel(nil)
	t.patience = otherPatience
	switch {
	case c.level == originLevel:
		t.patience = probeTimeout
	case c.class == chunk.Demand:
		t.patience = min(homeTimeout, s.cfg.ReadDeadline/homeTries)
	}
	t.answer = time.AfterFunc(t.patience, func() { cancel(errNoAnswer) })
	defer t.answer.Stop()
	err := s.cfg.Peers.Fetch(fctx, c.peer.id, req, t.got)
	if cause := context.Cause(fctx); err != nil && (cause == errSlowBody || cause == errNoAnswer) {
		err = cause
	}
	tier := &s.counters.tiers[t.tier]
	tier.requests.Add(1)
	if err != nil {
		tier.abandoned.Add(t.bytes)
	}
	if err != nil && ctx.Err() == nil {
		tier.errors.Add(1)
	}
	s.lock()
	s.state.hangUp(c, err, ctx.Err() != nil)
	s.mu.Unlock()
}

// A talk is the work on a call. It belongs to the goroutine that does it.
type talk struct {
	s      *Scheduler
	call   *call
	tier   Tier
	items  []talkItem
	bytes  int64 // of bodies, whole or not
	cancel context.CancelCauseFunc

	patience time.Duration // until the next answer
	answer   *time.Timer   // ends the call when that is over
}

// A talkItem is an item of the request, and the slots of its parts.
type talkItem struct {
	parts []int
	slots []int
}

// request makes the request of the call. Chunks of one span go into one item.
func (t *talk) request() *PeerRequest {
	c := t.call
	req := &PeerRequest{Class: c.class, Mode: c.mode, Level: uint8(min(c.level, clusterLevel))}
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.tier = c.peer.tier
	first := c.slots[0]
	req.Epoch = first.target.route.Epoch
	if c.level == originLevel {
		req.Via = []chunk.PeerID{t.s.state.self} // nobody waits on it for anyone
		t.each(req)
		return req
	}
	req.Via = append(append(req.Via, first.via...), t.s.state.self)
	index := make(map[*target]int)
	for slot, sr := range c.slots {
		i, ok := index[sr.target]
		if !ok {
			i = len(req.Items)
			index[sr.target] = i
			req.Items = append(req.Items, PeerItem{Span: *sr.span})
			t.items = append(t.items, talkItem{})
		}
		it := &t.items[i]
		at := len(it.parts)
		for at > 0 && it.parts[at-1] > sr.part {
			at--
		}
		it.parts = insert(it.parts, at, sr.part)
		it.slots = insert(it.slots, at, slot)
	}
	for i := range req.Items {
		req.Items[i].Parts = t.items[i].parts
	}
	req.Deadline = t.s.state.deadline(c)
	if c.mode == ModeHeld {
		req.Deadline = otherStall
	}
	return req
}

// each makes an item of each chunk, by itself: whoever is asked before the origin
// needs to know nothing of spans.
func (t *talk) each(req *PeerRequest) {
	for slot, sr := range t.call.slots {
		part := sr.want.part
		part.At = 0
		req.Items = append(req.Items, PeerItem{Span: chunk.Span{Parts: []chunk.Part{part}}, Parts: []int{0}})
		t.items = append(t.items, talkItem{parts: []int{0}, slots: []int{slot}})
	}
	req.Deadline = otherStall
}

func insert(s []int, at, v int) []int {
	s = append(s, 0)
	copy(s[at+1:], s[at:])
	s[at] = v
	return s
}

// deadline returns how much time is left to those who wait for c's chunks the
// longest.
func (st *state) deadline(c *call) time.Duration {
	var last time.Time
	for _, sr := range c.slots {
		for _, a := range sr.want.asks {
			if a.req.deadline.IsZero() {
				return st.patience
			}
			if a.req.deadline.After(last) {
				last = a.req.deadline
			}
		}
	}
	return min(max(last.Sub(st.now), time.Millisecond), st.patience)
}

// scope returns the slots that an answer speaks of.
func (t *talk) scope(a *PeerAnswer) ([]int, error) {
	switch {
	case a.Item == All:
		all := make([]int, len(t.call.slots))
		for i := range all {
			all[i] = i
		}
		return all, nil
	case a.Item < 0 || a.Item >= len(t.items):
	case a.Part == All:
		return t.items[a.Item].slots, nil
	default:
		for i, p := range t.items[a.Item].parts {
			if p == a.Part {
				return t.items[a.Item].slots[i : i+1], nil
			}
		}
	}
	return nil, fmt.Errorf("%w: for item %d, part %d", errProtocol, a.Item, a.Part)
}

// got takes one answer.
func (t *talk) got(a *PeerAnswer, body io.Reader) error {
	t.answer.Reset(t.patience)
	slots, err := t.scope(a)
	if err != nil {
		return err
	}
	if a.Status == StatusBytes {
		if len(slots) != 1 || a.Part == All {
			return fmt.Errorf("%w: bytes for several parts", errProtocol)
		}
		return t.receive(slots[0], a, body)
	}
	s := t.s
	if slices.Contains(a.Holders, t.call.peer.id) {
		return fmt.Errorf("%w: it names itself as another holder", errProtocol)
	}
	s.lock()
	s.state.told(t.call, slots, a)
	s.mu.Unlock()
	s.wake()
	return nil
}

// bodies are buffers for chunks that arrive.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

// receive takes the bytes of one chunk.
func (t *talk) receive(slot int, a *PeerAnswer, body io.Reader) error {
	s, c := t.s, t.call
	sr := c.slots[slot]
	part := sr.want.part
	if a.Size != part.Size || body == nil {
		return fmt.Errorf("%w: %d bytes for a chunk of %d", errProtocol, a.Size, part.Size)
	}
	buf := bodies.Get().(*[]byte)
	defer bodies.Put(buf)
	if cap(*buf) < int(part.Size) {
		*buf = make([]byte, part.Size)
	}
	p := (*buf)[:part.Size]
	begin := time.Now()
	if err := t.read(body, p); err != nil {
		return err
	}
	now := time.Now()
	s.counters.tiers[t.tier].classes[c.class].latency.Add(now.Sub(c.begun))

	s.gate.enter(c.class)
	v, err := part.Verify(p)
	s.gate.leave()
	if err != nil {
		t.lied(part.Ref, err)
		return fmt.Errorf("%w: %w", errLied, err)
	}
	s.lock()
	first := !c.answered[slot] && sr.stage == calling && sr.call == c
	if !c.answered[slot] {
		c.answered[slot] = true
		c.open--
	}
	s.state.arrived(c, sr, first, now.Sub(begin), len(p))
	s.mu.Unlock()
	if !first {
		s.counters.wasted.Add(int64(len(p)))
		return nil
	}
	kept := s.keep(v)
	if kept && c.level >= clusterLevel {
		s.tell(part.ID)
	}
	s.hand(part.ID, p, kept)
	return nil
}

// arrived notes what a chunk that has come says about the peer.
func (st *state) arrived(c *call, sr *search, first bool, body time.Duration, n int) {
	p := c.peer
	p.observe(st.now, body, n)
	p.stats.Bytes += int64(n)
	if c.class == chunk.Demand && c.level < originLevel {
		st.hedging.observe(p.tier, st.now.Sub(c.begun))
	}
	if first {
		st.judgeHint(sr, true)
	}
	switch {
	case first && sr.twinOf != nil && !sr.raised:
		st.hedging.won++
	case !first && sr.twinOf != nil && !sr.raised:
		st.hedging.wasted += int64(n)
	}
}

// read fills p, or fails if the body does not move.
func (t *talk) read(body io.Reader, p []byte) error {
	patience := otherStall
	if t.call.class == chunk.Demand {
		patience = readerStall
	}
	timer := time.AfterFunc(patience, func() { t.cancel(errSlowBody) })
	defer timer.Stop()
	for n := 0; n < len(p); {
		m, err := body.Read(p[n:])
		t.bytes += int64(m)
		t.s.counters.tiers[t.tier].classes[t.call.class].bytes.Add(int64(m))
		if n += m; n == len(p) {
			return nil
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("read a chunk: %w", err)
		}
		timer.Reset(patience)
		t.answer.Reset(t.patience)
	}
	return nil
}

// lied has a peer be avoided that sent wrong bytes.
func (t *talk) lied(ref chunk.Ref, err error) {
	s, p := t.s, t.call.peer
	s.counters.corrupt.Add(1)
	s.lock()
	p.banUntil = s.state.now.Add(quarantine)
	p.stats.Corrupt++
	s.state.scatter(p)
	s.mu.Unlock()
	if hook := s.cfg.Trace.PeerLied; hook != nil {
		hook(p.id, ref, err)
	}
}
