package node

import (
	"sync"
	"time"
)

const (
	// quiet is how long a message about the same thing is not repeated.
	quiet = time.Minute
	// maxRepeats bounds the things that are remembered.
	maxRepeats = 1024
)

// repeats keeps messages about the same thing from being logged again and again.
// Its zero value is ready for use; it is safe for concurrent use.
type repeats struct {
	mu   sync.Mutex // guards seen
	seen map[repeatKey]*repeat
}

type repeatKey struct{ message, about string }

type repeat struct {
	said    time.Time
	skipped int
}

// allow reports whether a message about a thing may be logged now, and how often
// it was not since it was last.
func (r *repeats) allow(message, about string) (skipped int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	key := repeatKey{message, about}
	if old := r.seen[key]; old != nil {
		if now.Sub(old.said) < quiet {
			old.skipped++
			return 0, false
		}
		skipped = old.skipped
	}
	if r.seen == nil || len(r.seen) >= maxRepeats {
		r.seen = make(map[repeatKey]*repeat) // forgetting too much means to say something twice
	}
	r.seen[key] = &repeat{said: now}
	return skipped, true
}
