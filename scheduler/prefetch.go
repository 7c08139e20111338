package scheduler

import (
	"context"
	"iter"
	"slices"

	"graze/chunk"
)

// maxBatch is how many spans Prefetch has under way at a time.
const maxBatch = 4096

// Prefetch has the spans with the given numbers fetched with the given class,
// except for those that the store has. It returns when all have arrived or were
// given up, with the first failure; or when ctx is done, with its cause, after
// it took back what is not under way for others.
//
// Neighbours in a blob are fetched in one request, however many they are.
func (r *Reader) Prefetch(ctx context.Context, spans iter.Seq[uint32], class chunk.Class) error {
	var first error
	batch := make([]chunk.Span, 0, 64)
	flush := func() bool {
		failed, err := r.s.prefetch(ctx, batch, class)
		if first == nil {
			first = failed
		}
		if err != nil {
			first = err
		}
		clear(batch)
		batch = batch[:0]
		return err == nil
	}
	for n := range spans {
		span := r.layout.Span(n)
		if !slices.ContainsFunc(span.Parts, func(p chunk.Part) bool { return !r.s.store.Has(p.ID) }) {
			continue
		}
		if batch = append(batch, span); len(batch) == maxBatch && !flush() {
			return first
		}
	}
	flush()
	return first
}

// prefetch fetches spans and waits for them. It returns the first failure of a
// span, and an error if there is no use in going on.
func (s *Scheduler) prefetch(ctx context.Context, spans []chunk.Span, class chunk.Class) (failed, err error) {
	var misses []miss
	for i := range spans {
		misses = s.missing(misses, &spans[i])
	}
	if len(misses) == 0 {
		return nil, nil
	}
	q := newRequest(class, len(misses))
	q.tolerant = true
	s.lock()
	if s.phase == phaseEnded {
		s.mu.Unlock()
		return nil, errEnded
	}
	q.pending = len(misses)
	for i := range misses {
		s.state.ask(q, &misses[i])
	}
	s.mu.Unlock()
	s.counters.prefetched.Add(int64(len(spans)))
	s.wake()
	select {
	case <-q.done:
		return q.err, nil
	case <-ctx.Done():
		s.lock()
		s.state.leave(q)
		s.mu.Unlock()
		s.wake()
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.err, context.Cause(ctx)
	}
}

// missing appends the chunks of a span that the store lacks.
func (s *Scheduler) missing(misses []miss, span *chunk.Span) []miss {
	for i, part := range span.Parts {
		if !s.store.Has(part.ID) {
			misses = append(misses, miss{span: *span, part: i})
		}
	}
	return misses
}
