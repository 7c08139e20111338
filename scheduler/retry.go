package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"graze/chunk"
)

const (
	// maxTries is how often a span is asked for that the origin refuses or sends
	// corrupt, or that no reader is blocked on.
	maxTries = 3
	// The pauses between tries double from minPause to maxPause.
	minPause = 200 * time.Millisecond
	maxPause = 5 * time.Second
	// tellAfter is how many tries other nodes are kept waiting for.
	tellAfter = 2
	// refusedPause is the shortest pause after the origin refused: it takes
	// registries and credentials seconds, not milliseconds, to change their mind.
	refusedPause = time.Second
)

// A cause says what kind of failure ended a try.
type cause int

const (
	unavailable cause = iota // the origin can't be reached, or the transfer broke
	refused                  // there is no such blob, or not for us
	corrupt                  // the bytes are bad
	numCauses
)

func causeOf(err error) cause {
	switch {
	case errors.Is(err, chunk.ErrCorrupt):
		return corrupt
	case errors.Is(err, chunk.ErrNotFound), errors.Is(err, chunk.ErrDenied):
		return refused
	}
	return unavailable
}

// failures counts the failed tries of a fetch.
type failures struct {
	tries [numCauses]int
	last  error
}

// count adds one failure. A try that brought other spans of its run shows that
// the origin is there, and so starts the count of unavailability anew.
func (f *failures) count(err error, progress bool) {
	c := causeOf(err)
	if c == unavailable && progress {
		f.tries[c] = 0
	}
	f.tries[c]++
	f.last = err
}

// exhausted reports whether there shall be no further try for class c. Demand
// reads outlast an outage up to their own deadline.
func (f *failures) exhausted(c chunk.Class) bool {
	return f.tries[corrupt] >= maxTries || f.tries[refused] >= maxTries ||
		c != chunk.Demand && f.tries[unavailable] >= maxTries
}

// pause returns how long to wait before the next try; jitter is from 0 to 1.
func (f *failures) pause(jitter float64) time.Duration {
	most := 0
	for _, n := range f.tries {
		most = max(most, n)
	}
	d := min(minPause<<min(most-1, 10), maxPause)
	if causeOf(f.last) == refused {
		d = max(d, refusedPause)
	}
	return d/2 + time.Duration(jitter*float64(d))
}

// tellPeers reports whether who asked is another node that should hear of the
// failure now: of an origin that refuses at once, so that a node with other
// credentials is asked; of one that is unavailable when it goes on.
func (f *fetch) tellPeers(a ask, err error) bool {
	return a.req.notify != nil && (causeOf(err) != unavailable || f.failures.tries[unavailable] >= tellAfter)
}

// finish settles a run that has ended with err: chunks that did not come are
// tried again, or fail. It returns the fetches that have to pause before that,
// how many were given up, and the first failure.
func (s *Scheduler) finish(ctx context.Context, r *run, t *transfer, err error) (parked []*fetch, failed int, first error) {
	s.lock()
	defer s.mu.Unlock()
	var again []*fetch
	first = err
	r.failed = err != nil
	for _, f := range r.fetches {
		if f.stage != inRun || f.run != r {
			continue
		}
		why := t.blame(f, err)
		if ctx.Err() != nil {
			s.state.failOnce(f, errStopped) // the others get another run
			why = nil
		}
		if why == nil {
			again = append(again, f)
			continue
		}
		first = cmp.Or(first, why)
		s.counters.errors[causeOf(why)].Add(1)
		f.failures.count(why, t.progress)
		f.alone = f.alone || t.bad[f] != nil || f == t.culprit
		s.state.failOnce(f, why)
		if f.failures.exhausted(f.wanted()) {
			s.state.fail(f, why)
			failed++
		} else if s.state.retry(f) {
			parked = append(parked, f)
		}
	}
	again = slices.DeleteFunc(again, func(f *fetch) bool { return !s.state.retry(f) })
	s.state.resume(again)
	s.counters.retries.Add(int64(len(again) + len(parked)))
	return parked, failed, first
}

// blame returns the failure of a span that a transfer which ended with err did
// not bring; nil if the fault is not the span's own.
func (t *transfer) blame(f *fetch, err error) error {
	if bad := t.bad[f]; bad != nil {
		return bad
	}
	if err == nil {
		return fmt.Errorf("%w: the span at %d of %s decodes to less than its chunks", chunk.ErrCorrupt, f.span.Off, f.span.Blob)
	}
	if t.culprit != nil && t.culprit != f {
		return nil // nothing is known of it; it goes on without the culprit
	}
	return err
}

// resume waits for the pause that the fetches' failures ask for, then puts them
// back into the queue.
func (s *Scheduler) resume(ctx context.Context, fetches []*fetch) {
	if len(fetches) == 0 {
		return
	}
	var pause time.Duration
	s.mu.Lock()
	jitter := rand.Float64()
	for _, f := range fetches {
		pause = max(pause, f.failures.pause(jitter))
	}
	s.mu.Unlock()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	s.lock()
	s.state.resume(fetches)
	s.mu.Unlock()
	s.wake()
}
