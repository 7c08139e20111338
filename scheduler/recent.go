package scheduler

import (
	"errors"
	"sync"
	"time"

	"graze/chunk"
)

const (
	// recently is how long a read that met its deadline answers further reads of
	// the same chunk. The kernel asks for a page again, by itself and at once, when the read-ahead
	// that should have brought it has failed: its reader would wait out two
	// deadlines in place of one.
	recently = time.Second
	// maxRecent bounds the failures that are remembered.
	maxRecent = 256
)

// recent remembers for a moment which chunks could not be had. Its zero value is
// ready for use; it is safe for concurrent use.
type recent struct {
	mu       sync.Mutex // guards failures
	failures map[chunk.ID]recentFailure
}

type recentFailure struct {
	at  time.Time
	err error
}

// note remembers that misses could not be had until the read deadline. Other
// failures come sooner, and are worth another try.
func (r *recent) note(misses []miss, err error) {
	if !errors.Is(err, errDeadline) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures == nil || len(r.failures)+len(misses) > maxRecent {
		r.failures = make(map[chunk.ID]recentFailure)
	}
	now := time.Now()
	for i := range misses[:min(len(misses), maxRecent)] {
		r.failures[misses[i].ref().ID] = recentFailure{now, err}
	}
}

// check returns the failure of one of misses, if there was one just now.
func (r *recent) check(misses []miss) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) == 0 {
		return nil
	}
	for i := range misses {
		if f, ok := r.failures[misses[i].ref().ID]; ok && time.Since(f.at) < recently {
			return f.err
		}
	}
	return nil
}
