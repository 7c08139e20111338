package scheduler

import (
	"context"
	"slices"
	"time"

	"graze/chunk"
)

const (
	// tooFar is how many encoded bytes ahead of a transfer's position a span may
	// lie so that an urgent reader waits for it there.
	tooFar = 4 << 20
	// maxReadahead bounds the spans that wait to be read ahead from the origin,
	// and maxAhead the chunks that are read ahead from anywhere.
	maxReadahead = 1024
	maxAhead     = 16 << 10
	// runMemory is what a transfer is taken to hold beside its largest chunk:
	// the decoder's state and the buffers of the connection.
	runMemory = 1 << 20
)

// state is what the scheduler knows and how it decides. It does no I/O, starts
// no goroutines and does not ask for the time: Scheduler.lock tells it.
// Scheduler.mu guards it.
type state struct {
	now   time.Time
	wants [numLevels]map[chunk.ID]*want
	lanes [numOriginLanes]originLane // a node by itself uses the first alone

	limit  [chunk.NumClasses]int // slots of a lane that may be in use when a run starts
	budget int64

	running    []*run // those that hold slots
	memory     int64
	memoryPeak int64

	nobody *request // who reads ahead
	ahead  int      // chunks that nobody has asked for and that were not settled

	clustered
}

// An originLane is the fetches that wait for the origin, and their slots.
type originLane struct {
	queue   queue
	running int
}

func newState(slots int, budget int64) state {
	st := state{
		limit:  limits(slots),
		budget: budget,
		nobody: &request{class: chunk.Readahead, level: ownLevel, loose: true},
	}
	for i := range st.wants {
		st.wants[i] = make(map[chunk.ID]*want)
	}
	for i := range st.lanes {
		st.lanes[i].queue.blobs = make(map[chunk.Blob][]*fetch)
	}
	return st
}

// limits returns how many of a number of slots may be in use when a transfer of
// each class starts.
func limits(slots int) [chunk.NumClasses]int {
	return [chunk.NumClasses]int{
		chunk.Demand:    slots,
		chunk.Readahead: max(1, slots*3/4),
		chunk.Prefetch:  max(1, slots/2),
		chunk.Backfill:  max(1, slots/4),
	}
}

// fullAhead reports whether no more should be read ahead.
func (st *state) fullAhead() bool {
	waiting := 0
	for i := range st.lanes {
		waiting += st.lanes[i].queue.classes[chunk.Readahead].n
	}
	return waiting >= maxReadahead || st.ahead >= maxAhead
}

// lane returns the lane that a span waits for the origin in.
func (st *state) lane(span *chunk.Span) *originLane {
	if st.cluster == nil {
		return &st.lanes[0]
	}
	return &st.lanes[originLaneOf(span)]
}

// find returns the work of more than a level that a chunk is on its way by, the
// highest; nil if there is none.
func (st *state) find(id chunk.ID, level int) *want {
	for l := originLevel; l > level; l-- {
		if w := st.wants[l][id]; w != nil {
			return w
		}
	}
	return nil
}

// add makes a fetch from the origin of all the span's chunks that are not on
// their way from there. It is queued as soon as someone is interested.
func (st *state) add(span *chunk.Span) *fetch {
	f := &fetch{span: *span, wants: make([]*want, len(span.Parts)), class: none}
	for i, part := range span.Parts {
		if st.wants[originLevel][part.ID] == nil {
			w := &want{part: part, level: originLevel, fetch: f}
			st.wants[originLevel][part.ID] = w
			f.wants[i] = w
			f.left++
		}
	}
	return f
}

// ask has request q wait for m's chunk.
func (st *state) ask(q *request, m *miss) {
	if q.loose {
		st.ahead++
	}
	w := st.join(ask{q, m}, q.level)
	if !q.loose {
		q.wants = append(q.wants, w)
	}
}

// join has an ask wait on work of more than the given level, which is begun if
// there is none.
func (st *state) join(a ask, level int) *want {
	w := st.find(a.miss.ref().ID, level)
	if w == nil {
		w = st.begin(a.miss, level+1, a.req.via)
	} else {
		if len(w.asks) > 0 {
			st.coalesced++
		}
		if f := w.fetch; f != nil && f.stage == inRun && a.req.class < f.class && f.span.Off-f.run.pos.Load() > tooFar {
			st.detour(f)
		}
	}
	w.asks = append(w.asks, a)
	st.want(w, a.req.class)
	return w
}

// begin begins work of a level for m's chunk. It starts when someone wants it.
func (st *state) begin(m *miss, level int, via []chunk.PeerID) *want {
	if st.cluster != nil && level < originLevel {
		return st.search(m, level, via)
	}
	f := st.add(&m.span)
	f.via = via
	return st.wants[originLevel][m.ref().ID]
}

// detour moves what fetch f has still to bring to a new fetch of the same span.
// f's run goes on; whichever comes to a chunk first settles it.
func (st *state) detour(f *fetch) *fetch {
	g := &fetch{span: f.span, wants: make([]*want, len(f.wants)), class: none, via: f.via, probed: true}
	for i, w := range f.wants {
		if !f.brings(w) {
			continue
		}
		w.fetch = g
		g.wants[i] = w
		g.left++
		for _, a := range w.asks {
			f.interest[a.req.class]--
			st.raise(g, a.req.class)
		}
	}
	f.end()
	return g
}

// want counts one more ask of class c for w, and makes what brings it as urgent.
func (st *state) want(w *want, c chunk.Class) {
	if w.search != nil {
		st.raiseSearch(w.search, c)
	}
	if f := w.fetch; f != nil {
		st.raise(f, c)
		if f.stage == probing && w.search == nil {
			st.probe(w, c)
		}
	}
}

// raise counts one more ask of class c for f, and raises f to it.
func (st *state) raise(f *fetch, c chunk.Class) {
	f.interest[c]++
	if c >= f.class {
		return
	}
	fresh := f.class == none
	switch {
	case f.stage == queued && fresh && st.probes(f):
		f.class = c
		f.stage = probing
	case f.stage == queued && fresh:
		f.class = c
		st.lane(&f.span).queue.push(f)
	case f.stage == queued:
		st.lane(&f.span).queue.move(f, c)
	case f.stage == inRun:
		f.class = c
		if int32(c) < f.run.class.Load() {
			f.run.class.Store(int32(c))
		}
	default:
		f.class = c
	}
}

// unwant takes back one ask of class c for w. What nobody wants any more is
// dropped; a run is stopped when nobody wants any of it.
func (st *state) unwant(w *want, c chunk.Class) {
	if sr := w.search; sr != nil {
		st.lowerSearch(sr, c)
	}
	f := w.fetch
	if f == nil || f.stage == over {
		return
	}
	f.interest[c]--
	class := f.wanted()
	if class == f.class {
		st.probedAll(f)
		return
	}
	switch {
	case f.stage == queued && class == none:
		st.lane(&f.span).queue.remove(f)
		f.class = none
		st.drop(f)
	case f.stage == queued:
		st.lane(&f.span).queue.move(f, class)
	case f.stage == probing && class != none:
		f.class = class
		st.probedAll(f)
	case class == none && f.stage != inRun:
		st.drop(f)
	default:
		f.class = class
		st.stopUnwanted(f.run)
	}
}

// stopUnwanted stops r if nobody wants what it has still to bring. Its chunks
// leave the table at once, so that nobody joins a run that is being stopped. A
// node of a cluster goes on: what it stops is what others are about to ask for,
// and the registry would have to give it twice.
func (st *state) stopUnwanted(r *run) {
	if r == nil || st.cluster != nil || r.wanted() != none {
		return
	}
	for _, f := range r.fetches {
		st.drop(f)
	}
	r.stop()
}

// leave ends all that request q still waits for, and returns the last failure
// of one of its fetches.
func (st *state) leave(q *request) (last error) {
	for _, w := range q.wants {
		w = w.last()
		if w.done {
			continue
		}
		if err := w.failure(); err != nil {
			last = err
		}
		for i := len(w.asks) - 1; i >= 0; i-- {
			if w.asks[i].req == q {
				w.asks = slices.Delete(w.asks, i, i+1)
				st.unwant(w, q.class)
			}
		}
	}
	q.wants = nil
	return last
}

// settle takes a chunk that has arrived out of the table, at all levels, and
// returns who waits for it.
func (st *state) settle(id chunk.ID) []ask {
	var asks []ask
	for level := range st.wants {
		w := st.wants[level][id]
		if w == nil {
			continue
		}
		if asks == nil {
			asks = w.asks
		} else {
			asks = append(asks, w.asks...)
		}
		st.close(w)
	}
	for _, a := range asks {
		if a.req.loose {
			st.ahead--
		}
	}
	return asks
}

// close takes w out of the table. Its asks are the caller's.
func (st *state) close(w *want) {
	asks := w.asks
	w.asks, w.done = nil, true
	delete(st.wants[w.level], w.part.ID)
	if w.search != nil {
		st.endSearch(w.search)
	}
	f := w.fetch
	if f == nil {
		return
	}
	for _, a := range asks {
		f.interest[a.req.class]--
	}
	if f.left--; f.left == 0 {
		if f.stage == queued && f.class != none {
			st.lane(&f.span).queue.remove(f) // a run from before its detour brought the last chunk
		}
		f.end()
		return
	}
	st.probedAll(f)
}

// drop forgets f and its chunks, which nobody waits for.
func (st *state) drop(f *fetch) { st.fail(f, context.Canceled) }

// fail ends f with err, for all that wait for it. f is not in the queue.
func (st *state) fail(f *fetch, err error) {
	if f.stage == over {
		return
	}
	if f.stage == probing {
		f.stage = parked // it goes nowhere any more
	}
	for _, w := range f.wants {
		if f.brings(w) {
			st.failWant(w, err)
		}
	}
	f.end()
}

// failWant ends w with err, for all that wait for it.
func (st *state) failWant(w *want, err error) {
	asks, tried := w.asks, w.span()
	st.close(w)
	for _, a := range asks {
		if st.misled(a, tried, err) {
			st.rejoin(a)
			continue
		}
		if a.req.loose {
			st.ahead--
		}
		a.fail(err)
	}
}

// end marks f as done with.
func (f *fetch) end() { f.stage, f.left = over, 0 }

// failAll ends everything with err.
func (st *state) failAll(err error) {
	for level := range st.wants {
		for _, w := range st.wants[level] {
			st.failWant(w, err)
		}
	}
}

// next takes the run out of the queue that should start now, or returns nil.
func (st *state) next() *run {
	for i := range st.lanes {
		if r := st.nextOf(i); r != nil {
			return r
		}
	}
	return nil
}

// nextOf is next for one lane.
func (st *state) nextOf(i int) *run {
	lane := &st.lanes[i]
	for c := range chunk.Class(chunk.NumClasses) {
		first := lane.queue.classes[c].head
		if first == nil {
			continue
		}
		if lane.running >= st.pace.slots(c, st.limit[c]) {
			st.makeRoom(i, c)
			return nil
		}
		if d := st.pace.wait(st.now, c, st.share()); d > 0 {
			st.timers.set(nil, st.now.Add(min(d, paceIdle)), timerWake)
			return nil
		}
		if !st.originOpen() {
			return nil
		}
		fetches := lane.queue.gather(first, st.runBytes, func(c chunk.Class) bool {
			return lane.running < st.pace.slots(c, st.limit[c])
		})
		memory := runMemory + largest(fetches)
		if lane.running > 0 && st.memory+memory > st.budget {
			st.makeRoom(i, c)
			return nil
		}
		r := st.take(fetches)
		r.memory, r.lane = memory, i
		st.running = append(st.running, r)
		lane.running++
		st.hold(memory)
		st.charge(r)
		if st.cluster != nil {
			st.pace.started(st.now, chunk.Class(r.class.Load()), r.asked, st.share())
		}
		return r
	}
	return nil
}

// hold counts memory that a transfer may take.
func (st *state) hold(memory int64) {
	st.memory += memory
	st.memoryPeak = max(st.memoryPeak, st.memory)
}

// largest returns the size of the largest chunk that is decoded for a run.
func largest(fetches []*fetch) int64 {
	var size int32
	for _, f := range fetches {
		for _, part := range f.span.Parts {
			size = max(size, part.Size)
		}
	}
	if w := fetches[0].span.Window; w != nil {
		for _, part := range w.Span.Parts {
			size = max(size, part.Size)
		}
	}
	return int64(size)
}

// take makes a run of fetches that are in the queue.
func (st *state) take(fetches []*fetch) *run {
	st.lane(&fetches[0].span).queue.remove(fetches...)
	r := &run{fetches: fetches}
	class := none
	for _, f := range fetches {
		f.stage, f.run = inRun, r
		class = min(class, f.class)
	}
	r.class.Store(int32(class))
	r.pos.Store(fetches[0].span.Off)
	return r
}

// release gives r's slot and memory back.
func (st *state) release(r *run) {
	st.running = slices.DeleteFunc(st.running, func(x *run) bool { return x == r })
	st.lanes[r.lane].running--
	if st.cluster != nil && r.asked > 0 && !r.failed {
		st.pace.observe(st.now, r.asked, st.now.Sub(r.begun), st.share())
	}
	st.memory -= r.memory
}

// makeRoom stops the least urgent run if a reader can't be served because of
// it: a prefetch may take minutes. What the run has not brought is queued again.
// In a cluster runs are short, and what they bring is for others too.
func (st *state) makeRoom(lane int, c chunk.Class) {
	if c != chunk.Demand || st.cluster != nil || slices.ContainsFunc(st.running, func(r *run) bool { return r.lane == lane && r.stopping }) {
		return
	}
	var least *run
	class := chunk.Demand
	for _, r := range st.running {
		if w := r.wanted(); r.lane == lane && w > class {
			least, class = r, w
		}
	}
	if least != nil {
		least.stopping = true
		least.stop()
	}
}

// retry has f wait for its next try, or drops it and returns false if nobody
// wants it.
func (st *state) retry(f *fetch) bool {
	f.run = nil
	f.class = f.wanted()
	if f.class == none {
		st.drop(f)
		return false
	}
	f.stage = parked
	return true
}

// resume puts fetches back into the queue that still wait for their next try.
func (st *state) resume(fetches []*fetch) {
	for _, f := range fetches {
		if f.stage != parked {
			continue
		}
		if st.demote(f); f.class == none {
			st.drop(f)
			continue
		}
		f.stage = queued
		if !st.probeAgain(f) {
			st.lane(&f.span).queue.push(f)
		}
	}
}

// claim gives the fetch that brings w to a run that needs w for its window: a
// run of it alone, to be done within the slot of the one that asks. It returns
// nil if a run that depends on no other is at it.
func (st *state) claim(w *want) *run {
	f := w.fetch
	switch f.stage {
	case inRun:
		if !f.run.windowed() {
			return nil
		}
		// That run may wait for a window itself, even for one that the asking
		// run is to bring.
		f = st.detour(f)
	case parked:
		f.stage = queued
		st.lane(&f.span).queue.push(f)
	}
	// Indexes have no windows of windows; one that claims to shall not have runs
	// wait for each other in a circle.
	f.span.Window = nil
	r := st.take([]*fetch{f})
	return r
}

// failOnce ends the requests for f's chunks that do not wait for a further try.
func (st *state) failOnce(f *fetch, err error) {
	for _, w := range f.wants {
		if !f.brings(w) {
			continue
		}
		w.asks = slices.DeleteFunc(w.asks, func(a ask) bool {
			if !a.req.once && !f.tellPeers(a, err) {
				return false
			}
			a.fail(err)
			f.interest[a.req.class]--
			return true
		})
	}
}
