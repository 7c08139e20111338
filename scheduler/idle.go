package scheduler

import (
	"sync/atomic"
	"time"
)

// A demand knows how long nobody has waited for chunks. Its zero value is ready
// for use; it is safe for concurrent use.
type demand struct {
	waiting atomic.Int64
	last    atomic.Int64 // when one who waited has left, in ns since 1970; 0: never
}

// enter notes that somebody waits until the returned function is called.
func (d *demand) enter() (leave func()) {
	d.waiting.Add(1)
	return func() {
		d.last.Store(time.Now().UnixNano())
		d.waiting.Add(-1)
	}
}

// latest returns when somebody last waited: now, if one does.
func (d *demand) latest(now time.Time) time.Time {
	if d.waiting.Load() > 0 {
		return now
	}
	return time.Unix(0, d.last.Load())
}

// Idle returns how long no reader, of this node or another one that has asked it,
// has waited for chunks: 0 if one waits now.
func (s *Scheduler) Idle() time.Duration {
	now := time.Now()
	return now.Sub(s.demand.latest(now))
}
