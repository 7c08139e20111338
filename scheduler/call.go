package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// receiving is the search whose chunk is coming in; nil: none.
	receiving *search
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
		if of := sr.twinOf; of != nil {
			sr.call, sr.stage = nil, fresh
			st.endSearch(sr)
			switch {
			case !sr.raised || a.Status == StatusFailed:
			case a.Status == StatusBusy && of.stage == calling:
				st.planHedge(of) // the less urgent call is as good
			default:
				st.takeOver(of, a)
			}
			continue
		}
		st.answer(sr, a)
	}
}

// takeOver has sr, which is in a call that is less urgent than it has become, go
// on by what the peer says to the more urgent one. If its chunk comes by the old
// call first, it is taken all the same.
func (st *state) takeOver(sr *search, a *PeerAnswer) {
	if sr.stage == calling {
		sr.call.lose()
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
