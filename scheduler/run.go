package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"graze/chunk"
)

// A transfer is the work on one run: one request to the origin, decoded into
// the chunks of the run's spans. Its fields belong to the goroutine that does
// the work.
type transfer struct {
	s   *Scheduler
	run *run

	bad      map[*fetch]error // a chunk of the span failed verification
	reached  int              // index of the span that is being decoded
	culprit  *fetch           // if not nil, the span whose fault the failure is
	progress bool             // a chunk has arrived
}

// perform does run r and settles it. It returns the fetches that must pause
// before they are tried again.
func (s *Scheduler) perform(ctx context.Context, r *run) []*fetch {
	defer r.stop()
	if !s.trim(r) {
		return nil
	}
	t := &transfer{s: s, run: r, bad: make(map[*fetch]error)}
	begin := time.Now()
	info := t.info()
	err := t.fetch(ctx, info.Off, info.Len)
	parked, failed, err := s.finish(ctx, r, t, err)
	if hook := s.cfg.Trace.RunDone; hook != nil {
		info.Dur, info.Err, info.Retried, info.Failed = time.Since(begin), err, len(parked), failed
		if ctx.Err() != nil {
			info.Err = context.Cause(ctx)
		}
		hook(info)
	}
	return parked
}

// trim takes spans from both ends of the run that the store has in the
// meantime, and reports whether any are left.
func (s *Scheduler) trim(r *run) bool {
	for len(r.fetches) > 0 && s.present(r.fetches[0]) {
		s.shorten(r, 1, len(r.fetches))
	}
	for n := len(r.fetches); n > 0 && s.present(r.fetches[n-1]); n-- {
		s.shorten(r, 0, n-1)
	}
	return len(r.fetches) > 0
}

// shorten keeps the fetches from i to j in run r.
func (s *Scheduler) shorten(r *run, i, j int) {
	s.lock()
	defer s.mu.Unlock()
	r.fetches = r.fetches[i:j]
	if j > i {
		r.pos.Store(r.fetches[0].span.Off)
	}
}

// present settles f if the store has all that f has still to bring, and reports
// whether that is so. Who waits for a chunk is sent to the store.
func (s *Scheduler) present(f *fetch) bool {
	s.mu.Lock()
	wants := f.pending()
	s.mu.Unlock()
	for _, w := range wants {
		if !s.store.Has(w.part.ID) {
			return false
		}
	}
	for _, w := range wants {
		s.hand(w.part.ID, nil, true)
	}
	return true
}

func (t *transfer) info() RunInfo {
	first := &t.run.fetches[0].span
	end := first.Off
	for _, f := range t.run.fetches {
		end = max(end, f.span.Off+f.span.Len)
	}
	return RunInfo{
		Blob:  first.Blob,
		Off:   first.Off,
		Len:   end - first.Off,
		Spans: len(t.run.fetches),
		Class: chunk.Class(t.run.class.Load()),
	}
}

// fetch gets the run's n bytes from off on, and decodes them.
func (t *transfer) fetch(ctx context.Context, off, n int64) error {
	spans := make([]chunk.Span, len(t.run.fetches))
	for i, f := range t.run.fetches {
		spans[i] = f.span
	}
	var window []byte
	if w := spans[0].Window; w != nil {
		var err error
		if window, err = t.s.window(ctx, t.run, w); err != nil {
			if causeOf(err) != unavailable {
				t.culprit = t.run.fetches[0] // the others have windows of their own
			}
			return fmt.Errorf("window of the span at %d of %s: %w", off, spans[0].Blob, err)
		}
	}
	err := t.receive(ctx, spans, window, n)
	if err == nil {
		return nil
	}
	t.s.counters.origin.errors.Add(1)
	if causeOf(err) == unavailable && !errors.Is(err, chunk.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", chunk.ErrUnavailable, err)
	}
	return err
}

// receive asks the origin for n bytes and decodes them as they come.
func (t *transfer) receive(ctx context.Context, spans []chunk.Span, window []byte, n int64) error {
	s := t.s
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := fmt.Errorf("%w: no bytes for %v", chunk.ErrUnavailable, s.cfg.StallTimeout)
	src := &source{ctx: ctx, run: t.run, gate: &s.gate, intake: &s.intake, counters: &s.counters, want: n, patience: s.cfg.StallTimeout}
	src.timer = time.AfterFunc(src.patience, func() { cancel(stall) })
	defer src.timer.Stop()

	s.counters.origin.requests.Add(1)
	begin := time.Now()
	defer func() { s.counters.origin.classes[min(src.class(), chunk.Backfill)].latency.Add(time.Since(begin)) }()
	body, err := s.origin.ReadRange(ctx, spans[0].Blob, spans[0].Off, n)
	src.timer.Stop()
	if err == nil {
		defer body.Close() // nothing is lost by an error of a reader
		src.body = body
		s.gate.enter(src.class())
		err = s.dec.Decode(src, spans, window, t.emit)
		s.gate.leave()
		switch {
		case err == nil && src.want <= maxGap:
			io.Copy(io.Discard, src) // a connection that is read to its end is used again
		case err != nil && src.err != nil:
			err = src.err // what the decoder makes of it matters less
		case causeOf(err) == corrupt && t.reached < len(t.run.fetches):
			t.culprit = t.run.fetches[t.reached]
		}
	}
	if err != nil && context.Cause(ctx) == stall {
		return stall
	}
	return err
}

// emit takes one decoded part: it is verified, stored and handed to its
// readers. Bad bytes spoil only their own span.
func (t *transfer) emit(span, part int, p []byte) error {
	s := t.s
	t.reached = span
	if part == len(t.run.fetches[span].span.Parts)-1 {
		t.reached++
	}
	f := t.run.fetches[span]
	w, wanted := s.lookup(f, part)
	id := f.span.Parts[part].ID
	if w == nil || !wanted && s.store.Has(id) {
		s.counters.wasted.Add(int64(len(p)))
		if w != nil {
			s.hand(id, nil, true)
		}
		return nil
	}
	v, err := w.part.Verify(p)
	if err != nil {
		t.bad[f] = &chunk.Error{Op: "verify", What: w.part.Ref.String(), From: string(f.span.Blob), Err: err}
		s.counters.corrupt.Add(1)
		if hook := s.cfg.Trace.Corrupt; hook != nil {
			hook(f.span.Blob, w.part.Ref, err)
		}
		return nil
	}
	kept := s.keep(v)
	if kept {
		s.tell(id)
	}
	t.progress = true
	s.hand(id, p, kept)
	return nil
}

// keep puts a chunk into the store, and reports whether it is there.
func (s *Scheduler) keep(v chunk.Verified) bool {
	err := s.store.Put(v)
	if err == nil {
		return true
	}
	s.counters.storeErrors.Add(1)
	if hook := s.cfg.Trace.StoreFailed; hook != nil {
		hook(v.Ref(), err)
	}
	return false
}

// tell has the directory know of a chunk that the node keeps.
func (s *Scheduler) tell(id chunk.ID) {
	if s.cfg.Directory != nil {
		s.cfg.Directory.Got(id)
	}
}

// lookup returns the want for a part of f, nil if there is none any more, and
// whether someone waits for it.
func (s *Scheduler) lookup(f *fetch, part int) (w *want, wanted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w = f.wants[part]
	if w == nil || w.done {
		return nil, false
	}
	return w, len(w.asks) > 0
}

// hand settles a chunk with its bytes p, or, if p is nil, as one that the store
// has. kept says that the store has it too.
func (s *Scheduler) hand(id chunk.ID, p []byte, kept bool) {
	s.lock()
	asks := s.state.settle(id)
	s.mu.Unlock()
	for _, a := range asks {
		if p == nil {
			a.stored()
		} else {
			a.deliver(p, kept)
		}
	}
}

// window returns the bytes of w, which run r starts with. It fetches them in
// r's own slot if it must.
func (s *Scheduler) window(ctx context.Context, r *run, w *chunk.Slice) ([]byte, error) {
	if err := checkWindow(w); err != nil {
		return nil, err
	}
	p := make([]byte, w.Len)
	for range maxRounds {
		if s.store.ReadAt(w.Ref().ID, p, int64(w.Off)) == nil {
			return p, nil
		}
		m := &miss{span: w.Span, part: w.Part, dst: p, at: w.Off}
		err := s.fetchWindow(ctx, chunk.Class(r.class.Load()), m)
		if err != nil || m.got {
			return p, err
		}
	}
	return nil, errEvicted
}

// checkWindow returns an error unless w can be a deflate window. A window that
// needed another one could have runs wait for each other.
func checkWindow(w *chunk.Slice) error {
	if w.Span.Window == nil && w.Part >= 0 && w.Part < len(w.Span.Parts) &&
		w.Off >= 0 && w.Len > 0 && w.Len <= 32<<10 && int64(w.Off)+int64(w.Len) <= int64(w.Ref().Size) {
		return nil
	}
	return fmt.Errorf("%w: bad window of %d bytes", chunk.ErrCorrupt, w.Len)
}

// fetchWindow gets one chunk for a run that holds a slot already.
func (s *Scheduler) fetchWindow(ctx context.Context, class chunk.Class, m *miss) error {
	q := newRequest(class, 1)
	q.once = true
	s.lock()
	if s.phase == phaseEnded {
		s.mu.Unlock()
		return errEnded
	}
	s.state.ask(q, m)
	var inner *run
	var ictx context.Context
	if s.cfg.Cluster == nil {
		// In a cluster, chunks that need no window have slots of their own.
		if inner = s.state.claim(q.wants[0]); inner != nil {
			ictx, inner.stop = context.WithCancel(ctx)
		}
	}
	s.mu.Unlock()
	s.wake()
	if inner != nil {
		// Its fetches wait only if others want them; they do so in a queue.
		parked := s.perform(ictx, inner)
		s.lock()
		s.state.resume(parked)
		s.mu.Unlock()
		s.wake()
	}
	return s.await(ctx, q)
}

// await waits until q is done or ctx is, and takes q's buffers back.
func (s *Scheduler) await(ctx context.Context, q *request) error {
	var err error
	select {
	case <-q.done:
		err = q.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	q.leave()
	s.lock()
	last := s.state.leave(q)
	s.mu.Unlock()
	s.wake()
	if err == errDeadline {
		err = fmt.Errorf("%w: %w", chunk.ErrUnavailable, err)
		if last != nil {
			err = fmt.Errorf("%w; last failure: %w", err, last)
		}
	}
	return err
}

// A source counts and paces what a decoder reads of a transfer.
type source struct {
	ctx      context.Context
	body     io.Reader
	run      *run
	gate     *gate
	intake   *intake
	counters *counters
	want     int64 // bytes still to come
	patience time.Duration
	timer    *time.Timer
	err      error // the transfer's failure, if it failed
}

func (s *source) class() chunk.Class { return chunk.Class(s.run.class.Load()) }

// readPiece reads some of the body when it is its turn.
func (s *source) readPiece(p []byte) (int, error) {
	if s.intake.enter(s.ctx, s.class()) {
		defer s.intake.leave()
	}
	return s.body.Read(p)
}

// Read implements io.Reader. Others may compute while it waits.
func (s *source) Read(p []byte) (int, error) {
	if s.want == 0 {
		return 0, io.EOF
	}
	s.gate.leave()
	s.timer.Reset(s.patience)
	n, err := s.readPiece(p[:min(int64(len(p)), s.want, intakePiece)])
	s.timer.Stop()
	s.gate.enter(s.class())
	s.want -= int64(n)
	s.run.pos.Add(int64(n))
	s.counters.origin.classes[min(s.class(), chunk.Backfill)].bytes.Add(int64(n))
	if err == io.EOF && s.want > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
