package scheduler

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"graze/chunk"
)

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
	s.intake.begin(c.class)
	err := s.cfg.Peers.Fetch(fctx, c.peer.id, req, func(a *PeerAnswer, body io.Reader) error {
		return t.got(fctx, a, body)
	})
	s.intake.end(c.class)
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
func (t *talk) got(ctx context.Context, a *PeerAnswer, body io.Reader) error {
	t.answer.Reset(t.patience)
	slots, err := t.scope(a)
	if err != nil {
		return err
	}
	if a.Status == StatusBytes {
		if len(slots) != 1 || a.Part == All {
			return fmt.Errorf("%w: bytes for several parts", errProtocol)
		}
		return t.receive(ctx, slots[0], a, body)
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
func (t *talk) receive(ctx context.Context, slot int, a *PeerAnswer, body io.Reader) error {
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
	s.receiving(c, sr)
	defer s.receiving(c, nil)
	if err := t.read(ctx, body, p); err != nil {
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
	if !first && s.store.Has(part.ID) {
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

// receiving notes which search's chunk is coming in by call c; nil: none.
func (s *Scheduler) receiving(c *call, sr *search) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.receiving = sr
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
func (t *talk) read(ctx context.Context, body io.Reader, p []byte) error {
	patience := otherStall
	if t.call.class == chunk.Demand {
		patience = readerStall
	}
	timer := time.AfterFunc(patience, func() { t.cancel(errSlowBody) })
	defer timer.Stop()
	for n := 0; n < len(p); {
		m, err := t.readPiece(ctx, body, p[n:min(n+intakePiece, len(p))])
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

// readPiece reads some of a body when it is its turn.
func (t *talk) readPiece(ctx context.Context, body io.Reader, p []byte) (int, error) {
	if t.s.intake.enter(ctx, t.call.class) {
		defer t.s.intake.leave()
	}
	return body.Read(p)
}

// lied has a peer be avoided that sent wrong bytes.
func (t *talk) lied(ref chunk.Ref, err error) {
	s, p := t.s, t.call.peer
	s.counters.corrupt.Add(1)
	s.lock()
	p.banUntil = s.state.now.Add(s.cfg.Quarantine)
	p.stats.Corrupt++
	s.state.scatter(p)
	s.mu.Unlock()
	if hook := s.cfg.Trace.PeerLied; hook != nil {
		hook(p.id, ref, err)
	}
}
