package scheduler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"graze/chunk"
)

// maxRounds bounds how often a read goes back to fetch what was evicted from
// the store between its arrival and the read.
const maxRounds = 8

// errEvicted: a chunk was evicted maxRounds times before it could be read.
var errEvicted = fmt.Errorf("%w: the store evicts chunks before they can be read", chunk.ErrUnavailable)

// A Reader reads the files of one image. It is safe for concurrent use.
type Reader struct {
	s      *Scheduler
	layout Layout

	mu        sync.Mutex
	streams   streams   // guarded by mu
	crossings crossings // guarded by mu
}

// Reader returns a Reader of the files that l lays out. It has no resources to
// be closed, but l must stay usable until the last call of its methods ended.
func (s *Scheduler) Reader(l Layout) *Reader {
	return &Reader{
		s:      s,
		layout: l,
		streams: streams{
			limit: s.cfg.Readahead,
			table: lru[streamKey, stream]{limit: maxStreams},
		},
		crossings: crossings{
			limit: s.cfg.Readahead,
			table: lru[uint32, crossing]{limit: maxStreams},
		},
	}
}

// ReadAt fills p with the bytes of file ino from off on, where holes and all
// that lies behind the last extent read as zeros: the caller knows the file's
// size. It returns len(p), or 0 and an error: the cause of ctx's end, or one
// that wraps chunk.ErrUnavailable, chunk.ErrNotFound, chunk.ErrDenied or
// chunk.ErrCorrupt. After it returned p is not written to.
func (r *Reader) ReadAt(ctx context.Context, ino uint64, p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) < off {
		return 0, fmt.Errorf("read of %d bytes at %d: offset out of range", len(p), off)
	}
	if len(p) == 0 {
		return 0, nil
	}
	sc := scans.Get().(*scan)
	defer sc.free()
	sc.begin(r, p, off)
	r.layout.Extents(ino, off, int64(len(p)))(sc.yieldExtent)
	if sc.err != nil {
		return 0, sc.err
	}
	clear(p[sc.pos-off:])
	r.readAhead(sc, ino, off, int64(len(p)))

	c := &r.s.counters
	missed := int64(0)
	for i := range sc.misses {
		missed += int64(len(sc.misses[i].dst))
	}
	c.hitBytes.Add(int64(len(p)) - missed)
	c.missBytes.Add(missed)
	if missed == 0 {
		c.hits.Add(1)
		if len(sc.ahead) > 0 {
			r.s.readAhead(sc.ahead)
		}
		return len(p), nil
	}
	c.misses.Add(1)
	if err := r.s.recent.check(sc.misses); err != nil {
		return 0, err
	}
	if err := r.s.fill(ctx, sc.misses, sc.ahead); err != nil {
		r.s.recent.note(sc.misses, err)
		return 0, err
	}
	return len(p), nil
}

// readAhead collects in sc.ahead the spans that should be asked for ahead of the
// read that sc describes.
func (r *Reader) readAhead(sc *scan, ino uint64, off, n int64) {
	if sc.chunks == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if from, to := r.streams.observe(ino, off, n); from < to {
		r.layout.Extents(ino, from, to-from)(sc.yieldAhead)
	}
	from, window, ok := r.crossings.observe(sc.first, sc.last, off == 0)
	if !ok {
		return
	}
	ahead, end := from, uint32(r.layout.NumSpans())
	blob := r.layout.Span(sc.last).Blob
	for ; ahead < end && window > 0; ahead++ {
		span := r.layout.Span(ahead)
		if span.Blob != blob {
			break
		}
		window -= span.Len
		if slices.ContainsFunc(span.Parts, func(p chunk.Part) bool { return !r.s.store.Has(p.ID) }) {
			sc.ahead = append(sc.ahead, span)
		}
	}
	r.crossings.asked(sc.last, from, ahead)
}

// A scan is the state of one read while it goes through the file's extents.
type scan struct {
	r   *Reader
	p   []byte
	off int64 // of p in the file
	pos int64 // in the file; what lies before it is filled or missing
	err error

	chunks      int    // how many the read has touched
	first, last uint32 // spans of the first and of the last of them
	misses      []miss
	ahead       []chunk.Span
	aheadLast   uint32 // number of the last span in ahead, if it is not empty

	// The methods extent and extentAhead, bound once: to bind them anew would
	// allocate for each read.
	yieldExtent func(chunk.Extent) bool
	yieldAhead  func(chunk.Extent) bool
}

var scans = sync.Pool{New: func() any {
	sc := &scan{}
	sc.yieldExtent, sc.yieldAhead = sc.extent, sc.extentAhead
	return sc
}}

func (sc *scan) begin(r *Reader, p []byte, off int64) {
	sc.r, sc.p, sc.off, sc.pos = r, p, off, off
}

// free makes sc ready for another read.
func (sc *scan) free() {
	clear(sc.misses)
	clear(sc.ahead)
	*sc = scan{
		misses: sc.misses[:0], ahead: sc.ahead[:0],
		yieldExtent: sc.yieldExtent, yieldAhead: sc.yieldAhead,
	}
	scans.Put(sc)
}

// extent reads one extent from the store, or notes that it is missing.
func (sc *scan) extent(e chunk.Extent) bool {
	end := sc.off + int64(len(sc.p))
	lo, hi := max(e.Off, sc.pos), min(e.Off+e.Len, end)
	if lo >= hi {
		return lo < end
	}
	clear(sc.p[sc.pos-sc.off : lo-sc.off])
	sc.pos = hi
	ref, span := sc.r.layout.Chunk(e.Chunk)
	at := int64(e.At) + lo - e.Off
	if e.At < 0 || at+hi-lo > int64(ref.Size) {
		sc.err = fmt.Errorf("%w: extent at %d of a file ends behind its chunk %s", chunk.ErrCorrupt, e.Off, ref)
		return false
	}
	if sc.chunks == 0 {
		sc.first = span
	}
	sc.last = span
	sc.chunks++
	dst := sc.p[lo-sc.off : hi-sc.off]
	if err := sc.r.s.store.ReadAt(ref.ID, dst, at); err != nil {
		sc.miss(ref, span, dst, int32(at))
	}
	return sc.err == nil
}

// miss notes that a stretch of chunk ref has to be fetched.
func (sc *scan) miss(ref chunk.Ref, number uint32, dst []byte, at int32) {
	m := miss{dst: dst, at: at}
	if n := len(sc.misses); n > 0 && sc.last == number && sc.misses[n-1].number == number {
		m.span = sc.misses[n-1].span
	} else {
		m.span = sc.r.layout.Span(number)
	}
	m.number = number
	m.part = slices.IndexFunc(m.span.Parts, func(p chunk.Part) bool { return p.Ref == ref })
	if m.part < 0 {
		sc.err = fmt.Errorf("%w: span %d of the image lacks chunk %s", chunk.ErrCorrupt, number, ref)
		return
	}
	sc.misses = append(sc.misses, m)
}

// extentAhead notes the span of an extent that the store lacks.
func (sc *scan) extentAhead(e chunk.Extent) bool {
	ref, number := sc.r.layout.Chunk(e.Chunk)
	if len(sc.ahead) > 0 && number == sc.aheadLast || sc.r.s.store.Has(ref.ID) {
		return true
	}
	sc.aheadLast = number
	sc.ahead = append(sc.ahead, sc.r.layout.Span(number))
	return true
}

// fill gets all misses, and has the spans in ahead fetched too.
func (s *Scheduler) fill(ctx context.Context, misses []miss, ahead []chunk.Span) error {
	defer s.demand.enter()()
	begin := time.Now()
	defer func() { s.counters.wait.Add(time.Since(begin)) }()
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.ReadDeadline, errDeadline)
	defer cancel()
	left := make([]*miss, len(misses))
	for i := range misses {
		left[i] = &misses[i]
	}
	for range maxRounds {
		q := newRequest(chunk.Demand, len(left))
		q.deadline, _ = ctx.Deadline()
		s.lock()
		if s.phase == phaseEnded {
			s.mu.Unlock()
			return errEnded
		}
		for _, m := range left {
			s.state.ask(q, m)
		}
		s.aheadLocked(ahead)
		s.mu.Unlock()
		s.wake()
		if err := s.await(ctx, q); err != nil {
			return err
		}
		ahead = nil
		left = slices.DeleteFunc(left, func(m *miss) bool {
			return m.got || s.store.ReadAt(m.ref().ID, m.dst, int64(m.at)) == nil
		})
		if len(left) == 0 {
			return nil
		}
	}
	return errEvicted
}

// readAhead has spans fetched that nobody waits for yet.
func (s *Scheduler) readAhead(spans []chunk.Span) {
	s.lock()
	if s.phase != phaseEnded {
		s.aheadLocked(spans)
	}
	s.mu.Unlock()
	s.wake()
}

// aheadLocked adds spans to those that are on their way, as far as there is
// room. What it leaves out is fetched when it is read.
func (s *Scheduler) aheadLocked(spans []chunk.Span) {
	for i := range spans {
		if s.state.fullAhead() {
			return
		}
		s.counters.readahead.Add(1)
		misses := s.missing(nil, &spans[i])
		for j := range misses {
			s.state.ask(s.state.nobody, &misses[j])
		}
	}
}
