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
	// maxServed bounds the chunks that other nodes wait for, in each lane.
	maxServed = 32 << 10
	// originWait is what a node is told to wait whose home can't reach the
	// origin.
	originWait = time.Second
)

var errBadRequest = errors.New("bad request")

// Serve answers a request of another node. It returns when the last answer was
// sent, or with an error if the request is malformed, cannot be answered any
// more, or ctx ends. The bytes of held chunks are sent at once, the others' as
// each is verified.
func (s *Scheduler) Serve(ctx context.Context, from chunk.PeerID, req *PeerRequest, w Responder) error {
	if s.cfg.Cluster == nil {
		return fmt.Errorf("%w: the node is in no cluster", errBadRequest)
	}
	if err := req.check(); err != nil {
		return err
	}
	s.counters.serve.requests.Add(1)
	self := s.cfg.Cluster.Self()
	if from == self || slices.Contains(req.Via, self) || len(req.Via) > maxVia {
		s.counters.serve.absent.Add(1)
		return w.Answer(&PeerAnswer{Item: All, Part: All, Status: StatusAbsent})
	}
	if req.Class == chunk.Demand {
		defer s.demand.enter()()
	}
	if req.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, req.Deadline, errDeadline)
		defer cancel()
	}
	sv := &serving{s: s, from: from, req: req, w: w, flow: flowOf(req), asked: time.Now()}
	return sv.run(ctx)
}

// check returns an error unless the request can be served.
func (q *PeerRequest) check() error {
	if q.Class >= chunk.NumClasses || q.Mode < ModeHeld || q.Mode > ModeFind || q.Level > clusterLevel {
		return fmt.Errorf("%w: class %d, mode %d, level %d", errBadRequest, q.Class, q.Mode, q.Level)
	}
	wanted := 0
	for i := range q.Items {
		it := &q.Items[i]
		if len(it.Span.Parts) == 0 || len(it.Span.Parts) > maxRequestParts {
			return fmt.Errorf("%w: item %d has %d parts", errBadRequest, i, len(it.Span.Parts))
		}
		for _, part := range it.Span.Parts {
			if err := part.Check(); err != nil {
				return fmt.Errorf("%w: item %d: %w", errBadRequest, i, err)
			}
		}
		if w := it.Span.Window; w != nil {
			if err := checkWindow(w); err != nil {
				return fmt.Errorf("%w: item %d: %w", errBadRequest, i, err)
			}
		}
		for j, p := range it.Parts {
			if p < 0 || p >= len(it.Span.Parts) || j > 0 && p <= it.Parts[j-1] {
				return fmt.Errorf("%w: item %d wants part %d", errBadRequest, i, p)
			}
		}
		wanted += it.wanted()
	}
	if wanted == 0 || wanted > maxRequestParts {
		return fmt.Errorf("%w: %d chunks wanted", errBadRequest, wanted)
	}
	return nil
}

func (it *PeerItem) wanted() int {
	if it.Parts == nil {
		return len(it.Span.Parts)
	}
	return len(it.Parts)
}

// each calls f for each wanted part.
func (it *PeerItem) each(f func(part int)) {
	if it.Parts == nil {
		for i := range it.Span.Parts {
			f(i)
		}
		return
	}
	for _, p := range it.Parts {
		f(p)
	}
}

// A serving is one request that is being answered. It belongs to the goroutine
// that does it.
type serving struct {
	s     *Scheduler
	from  chunk.PeerID
	req   *PeerRequest
	w     Responder
	flow  int
	asked time.Time

	misses []servedMiss // what is waited for
	q      *request     // that waits for them; nil if none does
	events chan servedEvent
	left   int              // misses that were not settled
	enough <-chan time.Time // until when what is being received is waited for; nil: to the end
	outbox []outgoing
	line   []*turn     // what waits for its turn to be sent
	called chan *turn  // has room for all that are wanted
	late   *time.Timer // when the first of the line has waited too long
}

// An outgoing is a chunk that waits to be sent.
type outgoing struct {
	item, part int
	ref        chunk.Ref
	p          []byte // nil: the store has it
	since      time.Time
}

// A servedMiss is a wanted chunk that this node lacks.
type servedMiss struct {
	miss
	item    int
	settled bool
}

// A servedEvent says what has become of a chunk.
type servedEvent struct {
	m   *servedMiss
	p   []byte // nil: the store has it
	err error
}

func (sv *serving) run(ctx context.Context) error {
	defer sv.giveUp()
	sv.called = make(chan *turn, sv.wanted())
	type held struct{ item, part int }
	var have []held
	for i := range sv.req.Items {
		it := &sv.req.Items[i]
		it.each(func(part int) {
			if sv.s.store.Has(it.Span.Parts[part].ID) {
				have = append(have, held{i, part})
			} else {
				sv.misses = append(sv.misses, servedMiss{miss: miss{span: it.Span, part: part}, item: i})
			}
		})
	}
	lacking, err := sv.join(ctx)
	if err != nil {
		return err
	}
	defer sv.leave()
	for _, h := range have {
		if err := sv.admit(h.item, h.part, nil); err != nil {
			return err
		}
	}
	if err := sv.lack(lacking); err != nil {
		return err
	}
	return sv.answer(ctx)
}

// wanted returns how many chunks are wanted.
func (sv *serving) wanted() (n int) {
	for i := range sv.req.Items {
		n += sv.req.Items[i].wanted()
	}
	return n
}

// lack answers for what this node does not hold and will not fetch.
func (sv *serving) lack(misses []servedMiss) error {
	for i := range misses {
		if err := sv.lackOne(misses[i].item, misses[i].part, misses[i].ref().ID); err != nil {
			return err
		}
	}
	return nil
}

func (sv *serving) lackOne(item, part int, id chunk.ID) error {
	a := &PeerAnswer{Item: item, Part: part, Status: StatusAbsent}
	switch {
	case sv.req.Mode == ModeHome:
		a.Status, a.Wait = StatusBusy, originWait
	case sv.s.store.Has(id):
		return sv.admit(item, part, nil) // it has come in the meantime
	case sv.req.Mode == ModeFind && sv.name(a, id):
	default:
		sv.s.counters.serve.absent.Add(1)
	}
	return sv.w.Answer(a)
}

// name makes a the names of those who are said to hold a chunk, if there are any.
func (sv *serving) name(a *PeerAnswer, id chunk.ID) bool {
	if sv.s.cfg.Directory == nil {
		return false
	}
	for _, holder := range sv.s.cfg.Directory.Holders(nil, id) {
		_, ok := sv.s.cfg.Cluster.Place(holder)
		if ok && holder != sv.from && holder != sv.s.cfg.Cluster.Self() && len(a.Holders) < MaxHolders {
			a.Holders = append(a.Holders, holder)
		}
	}
	if len(a.Holders) == 0 {
		return false
	}
	a.Status = StatusRedirect
	sv.s.counters.serve.redirects.Add(1)
	return true
}

// join has the request wait for what is missing. It returns what the request does
// not wait for: all of it if too many wait already; and, if it is for what this node
// holds, what the node has not asked for itself. Who is sent here by a home is often
// sooner than the chunk that the home has just sent. He waits for a moment only, as
// nothing else keeps nodes from waiting for each other here.
func (sv *serving) join(ctx context.Context) (lacking []servedMiss, err error) {
	if len(sv.misses) == 0 {
		return nil, nil
	}
	s := sv.s
	if sv.req.Mode != ModeHome {
		sv.enough = time.After(s.uploads.patience(sv.flow))
	}
	q := newRequest(sv.req.Class, len(sv.misses))
	q.level = int(sv.req.Level)
	q.deadline, _ = ctx.Deadline()
	q.via = sv.req.Via
	s.lock()
	defer s.mu.Unlock()
	if s.phase == phaseEnded {
		return nil, errEnded
	}
	if sv.req.Mode != ModeHome {
		q.level = ownLevel
		sv.misses, lacking = s.state.underWay(sv.misses, int(sv.req.Level))
	}
	if len(sv.misses) == 0 {
		return lacking, nil
	}
	lane := laneOf(int(sv.req.Level), &sv.misses[0].span)
	if s.state.served[lane]+len(sv.misses) > maxServed {
		lacking, sv.misses = append(lacking, sv.misses...), nil
		return lacking, nil
	}
	s.state.served[lane] += len(sv.misses)
	events := make(chan servedEvent, len(sv.misses)) // room for all, also when nobody waits any more
	sv.events = events
	byMiss := make(map[*miss]*servedMiss, len(sv.misses))
	for i := range sv.misses {
		byMiss[&sv.misses[i].miss] = &sv.misses[i]
	}
	q.notify = func(m *miss, p []byte, err error) { events <- servedEvent{byMiss[m], p, err} }
	for i := range sv.misses {
		s.state.ask(q, &sv.misses[i].miss)
	}
	sv.q, sv.left = q, len(sv.misses)
	s.wake()
	return lacking, nil
}

// underWay tells misses that a request of a level may wait for from the others.
// Those who ask before they ask the origin must not be kept waiting.
func (st *state) underWay(misses []servedMiss, level int) (coming, lacking []servedMiss) {
	for _, m := range misses {
		if level == rackLevel && st.find(m.ref().ID, ownLevel) != nil {
			coming = append(coming, m)
		} else {
			lacking = append(lacking, m)
		}
	}
	return coming, lacking
}

// leave has the request wait no longer.
func (sv *serving) leave() {
	s, q := sv.s, sv.q
	if q == nil {
		return
	}
	sv.q = nil
	s.lock()
	s.state.served[laneOf(int(sv.req.Level), &sv.misses[0].span)] -= len(sv.misses)
	s.state.leave(q)
	s.mu.Unlock()
	s.wake()
}

// stopWaiting answers for what was being received, but did not come.
func (sv *serving) stopWaiting() error {
	sv.leave()
	sv.left, sv.events = 0, nil
	for i := range sv.misses {
		if m := &sv.misses[i]; !m.settled {
			if err := sv.lackOne(m.item, m.part, m.ref().ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// answer sends what was admitted, and answers for each missing chunk as it is
// settled. What can't be sent soon is refused before anything else is sent.
func (sv *serving) answer(ctx context.Context) error {
	sv.late = time.NewTimer(maxTurn)
	defer sv.late.Stop()
	now := make(chan struct{})
	close(now)
	for sv.left > 0 || len(sv.outbox) > 0 || len(sv.line) > 0 {
		var quiet <-chan struct{}
		if len(sv.outbox) > 0 && len(sv.events)+len(sv.called) == 0 {
			quiet = now
		}
		if heard, err := sv.hear(ctx, quiet); err != nil {
			return err
		} else if heard {
			continue
		}
		o := sv.outbox[0]
		sv.outbox = sv.outbox[1:]
		if err := sv.send(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// hear deals with one thing that has happened, unless nothing does until quiet is
// closed.
func (sv *serving) hear(ctx context.Context, quiet <-chan struct{}) (heard bool, err error) {
	if len(sv.line) > 0 {
		sv.late.Reset(time.Until(sv.line[0].until))
	}
	select {
	case e := <-sv.events:
		sv.left--
		return true, sv.event(e)
	case t := <-sv.called:
		return true, sv.turned(t)
	case <-sv.late.C:
		return true, sv.lateTurns()
	case <-sv.enough:
		return true, sv.stopWaiting()
	case <-ctx.Done():
		return true, context.Cause(ctx)
	case <-quiet:
		return false, nil
	}
}

func (sv *serving) event(e servedEvent) error {
	m := e.m
	m.settled = true
	a := &PeerAnswer{Item: m.item, Part: m.part}
	switch {
	case e.err == nil:
		return sv.admit(m.item, m.part, e.p)
	case sv.req.Mode != ModeHome:
		return sv.lackOne(m.item, m.part, m.ref().ID)
	case causeOf(e.err) == unavailable:
		a.Status, a.Wait = StatusBusy, originWait
	default:
		a.Status, a.Reason = StatusFailed, "the origin refuses, or has other bytes"
	}
	sv.s.counters.serve.failed.Add(1)
	return sv.w.Answer(a)
}

// admit has a chunk be sent: p, or what the store has. If too much is being sent
// already, it names others who have the chunk. Whoever is being sent the chunk for
// another request is not sent it again.
func (sv *serving) admit(item, part int, p []byte) error {
	ref := sv.req.Items[item].Span.Parts[part].Ref
	now := time.Now()
	o := outgoing{item, part, ref, p, now}
	switch up := sv.upload(ref); {
	case sv.s.uploads.doubles(up):
		return sv.busy(o, uploadTime)
	case sv.s.uploads.enter(up, now):
		sv.outbox = append(sv.outbox, o)
		return nil
	}
	return sv.redirect(o)
}

// upload says that a chunk is to be sent to the one who asks.
func (sv *serving) upload(ref chunk.Ref) upload {
	return upload{ref: ref, to: sv.from, class: sv.req.Class, flow: sv.flow}
}

// giveUp takes back what was admitted and will not be sent.
func (sv *serving) giveUp() {
	for _, t := range sv.line {
		if !sv.s.uploads.quit(t) && t.granted {
			sv.outbox = append(sv.outbox, t.outgoing)
		}
	}
	for _, o := range sv.outbox {
		sv.s.uploads.leave(sv.upload(o.ref), o.since, time.Now(), false)
	}
}

// send sends a chunk that was admitted.
func (sv *serving) send(ctx context.Context, o outgoing) error {
	s, up := sv.s, sv.upload(o.ref)
	if s.uploads.repeats(up, sv.asked, time.Now()) {
		s.uploads.leave(up, o.since, time.Now(), false)
		return sv.busy(o, uploadTime)
	}
	sent, err := sv.bytes(o.item, o.part, o.ref, o.p)
	s.uploads.leave(up, o.since, time.Now(), sent && err == nil)
	switch {
	case err != nil:
		return err
	case sent:
		s.counters.serve.bytes.Add(int64(o.ref.Size))
		return nil
	}
	// It was evicted in the meantime.
	a := &PeerAnswer{Item: o.item, Part: o.part, Status: StatusAbsent}
	if sv.req.Mode == ModeHome {
		if p, err := sv.fetchAgain(ctx, o); err == nil {
			return sv.admit(o.item, o.part, p)
		}
		a.Status, a.Wait = StatusBusy, minWait
	}
	s.counters.serve.absent.Add(1)
	return sv.w.Answer(a)
}

// fetchAgain returns a chunk that the store had and has no more. A store that has
// hardly any room may evict each chunk before it can be sent, as often as it comes.
func (sv *serving) fetchAgain(ctx context.Context, o outgoing) ([]byte, error) {
	s := sv.s
	m := &miss{span: sv.req.Items[o.item].Span, part: o.part, dst: make([]byte, o.ref.Size)}
	q := newRequest(sv.req.Class, 1)
	q.level, q.via = int(sv.req.Level), sv.req.Via
	q.deadline, _ = ctx.Deadline()
	s.lock()
	if s.phase == phaseEnded {
		s.mu.Unlock()
		return nil, errEnded
	}
	s.state.ask(q, m)
	s.mu.Unlock()
	s.wake()
	if err := s.await(ctx, q); err != nil {
		return nil, err
	}
	if !m.got && s.store.ReadAt(o.ref.ID, m.dst, 0) != nil {
		return nil, errEvicted
	}
	return m.dst, nil
}

// bytes sends a chunk if there still is one.
func (sv *serving) bytes(item, part int, ref chunk.Ref, p []byte) (sent bool, err error) {
	s := sv.s
	if p != nil {
		return true, sv.w.Bytes(item, part, p)
	}
	if s.sections != nil {
		sec, err := s.sections.Section(ref.ID)
		if err != nil {
			return false, nil
		}
		err = sv.w.Section(item, part, sec)
		return true, errors.Join(err, sec.Close())
	}
	p = make([]byte, ref.Size)
	if s.store.ReadAt(ref.ID, p, 0) != nil {
		return false, nil
	}
	return true, sv.w.Bytes(item, part, p)
}

// redirect names others who have the chunk. If there are none, the chunk waits for
// its turn, or the one who asks does.
func (sv *serving) redirect(o outgoing) error {
	a := &PeerAnswer{Item: o.item, Part: o.part, Status: StatusRedirect}
	a.Holders, a.Wait = sv.s.uploads.holders(sv.upload(o.ref))
	if len(a.Holders) > 0 {
		sv.s.counters.serve.redirects.Add(1)
		return sv.w.Answer(a)
	}
	t := &turn{outgoing: o, up: sv.upload(o.ref), called: sv.called}
	if sv.s.uploads.wait(t) {
		sv.line = append(sv.line, t)
		return nil
	}
	return sv.busy(o, a.Wait)
}

// busy asks for patience.
func (sv *serving) busy(o outgoing, wait time.Duration) error {
	sv.s.counters.serve.busy.Add(1)
	return sv.w.Answer(&PeerAnswer{Item: o.item, Part: o.part, Status: StatusBusy, Wait: wait})
}

// turned goes on with a chunk whose turn has come, or that others have by now.
func (sv *serving) turned(t *turn) error {
	sv.line = slices.DeleteFunc(sv.line, func(other *turn) bool { return other == t })
	if !t.granted {
		return sv.redirect(t.outgoing)
	}
	sv.outbox = append(sv.outbox, t.outgoing)
	return nil
}

// lateTurns answers for what has waited too long for its turn.
func (sv *serving) lateTurns() error {
	for now := time.Now(); len(sv.line) > 0 && !now.Before(sv.line[0].until); {
		t := sv.line[0]
		if !sv.s.uploads.quit(t) {
			return sv.turned(<-sv.called) // it, or one that was called before it
		}
		sv.line = sv.line[1:]
		if err := sv.busy(t.outgoing, minWait); err != nil {
			return err
		}
	}
	return nil
}
