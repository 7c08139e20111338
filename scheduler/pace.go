package scheduler

import (
	"time"

	"graze/chunk"
)

const (
	// paceUnit is how many bytes the time of a run is counted for.
	paceUnit = 256 << 10
	// paceSlack is how many times as long as at its best a run may take before
	// there are too many.
	paceSlack = 3
	// maxPace is the most runs; limits of slots are lower.
	maxPace = 64
)

// A pace says how many runs that no reader waits for should be at the origin at
// a time. All nodes of a cluster ask the same registry: what one has waiting
// there delays the readers of the others. So it falls when runs take long, and
// rises slowly when they don't.
type pace struct {
	window float64
	best   time.Duration // for paceUnit bytes; it rises slowly
}

// observe notes that a run of n bytes took d.
func (p *pace) observe(n int64, d time.Duration) {
	d = time.Duration(float64(d) * paceUnit / float64(max(n, paceUnit)))
	if p.best == 0 || d < p.best {
		p.best = d
	}
	p.best += p.best / 256
	if d > paceSlack*p.best+maxRTT {
		p.window = max(1, p.window*0.7)
	} else {
		p.window = min(maxPace, p.window+1/p.window)
	}
}

// maxRTT is added to what a run may take: round trips vary.
const maxRTT = 20 * time.Millisecond

// slots returns how many of limit slots class c may use.
func (p *pace) slots(c chunk.Class, limit int) int {
	if c < chunk.Prefetch || p.window == 0 {
		return limit
	}
	return min(limit, max(1, int(p.window)))
}
