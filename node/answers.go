package node

import (
	"sync"
	"time"
)

const (
	// failedFresh is how long a lookup that has failed is not made again: those who
	// wait for it share the failure.
	failedFresh = time.Second
	// maxAnswers bounds the answers that are remembered.
	maxAnswers = 4096
)

// answers remembers for a moment how lookups were answered. It is safe for
// concurrent use.
type answers struct {
	fresh time.Duration // how long an answer is used; set before first use

	locks keyLocks[lookup]

	mu   sync.Mutex // guards what follows
	list map[lookup]answer
}

type answer struct {
	found *finding
	err   error
	until time.Time
}

// get returns the answer to a lookup, if there was one just now.
func (a *answers) get(q lookup) (answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one, ok := a.list[q]
	return one, ok && time.Now().Before(one.until)
}

// put remembers an answer: one of a registry until that is too old, one that is
// stale, or a failure, for a moment.
func (a *answers) put(q lookup, found *finding, err error) {
	one := answer{found, err, time.Now().Add(failedFresh)}
	if err == nil && !found.stale {
		one.until = found.Checked.Add(a.fresh)
	}
	if a.fresh < 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.list == nil || len(a.list) >= maxAnswers {
		a.list = make(map[lookup]answer) // what is still of use is asked for again
	}
	a.list[q] = one
}
