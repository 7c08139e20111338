package scheduler

import (
	"time"

	"graze/chunk"
)

const (
	// paceUnit is how many bytes the time of a run is counted for.
	paceUnit = 256 << 10
	// A run may take paceSlack times as long as at its best, and paceRTT more,
	// before there are too many.
	paceSlack = 3
	paceRTT   = 20 * time.Millisecond
	// leastPace is how many runs all nodes of a cluster begin with together, and
	// begin with again after paceIdle without any: what they start at the same
	// moment, none of them can foresee.
	leastPace = 8
	paceIdle  = 2 * time.Second
	// readerPace is how many runs all nodes have together at most while readers wait,
	// each as far as it knows of some, and paceIdle longer. Where queues drop what they
	// have no room for, a few long transfers are enough to starve a short one.
	readerPace = 2
	// maxPace is the most runs; limits of slots are lower.
	maxPace = 64
)

// A pace says how many runs that no reader waits for should be at the origin at
// a time. All nodes of a cluster ask the same registry: what one has waiting
// there delays the readers of the others, and of many runs at once all come late.
// So it falls when runs take long, and rises slowly when they don't. It may be less
// than one run: then there are pauses between them. What is read ahead keeps to it
// too, but one run of it may always be under way.
type pace struct {
	window float64       // 0: no run has started yet, or the node is by itself
	best   time.Duration // for paceUnit bytes; it rises slowly
	ended  time.Time     // when the run ended, or will, that the next one waits for most
	took   time.Duration // how long it took
	latest time.Time     // when the last one started
	reader time.Time     // when this node last knew of a reader that waits
}

// observe notes that a run of n bytes has taken d. This node has the given share of
// what the cluster asks the origin for.
func (p *pace) observe(now time.Time, n int64, d time.Duration, share float64) {
	p.pause(now, now, d, share)
	d = time.Duration(float64(d) * paceUnit / float64(max(n, paceUnit)))
	if p.best == 0 || d < p.best {
		p.best = d
	}
	p.best += p.best / 256
	if p.window == 0 {
		return
	}
	if d > paceSlack*p.best+paceRTT {
		p.window = max(min(leastPace*share, 1), p.window*0.7)
	} else {
		p.window = min(maxPace, p.window+min(1/p.window, p.window/2))
	}
}

// wait returns how long it takes until a run of class c may start. Readers that come
// and go change that.
func (p *pace) wait(now time.Time, c chunk.Class, share float64) time.Duration {
	if c < chunk.Prefetch {
		return 0
	}
	return max(0, p.next(now, p.ended, p.took, share).Sub(now))
}

// next returns when a run may start after one that ended at the given time.
func (p *pace) next(now, ended time.Time, took time.Duration, share float64) time.Time {
	if w := p.most(now, share); w > 0 && w < 1 {
		return ended.Add(time.Duration(float64(took) * (1/w - 1)))
	}
	return now
}

// pause has the next run wait for one that took d until it ended, if that is longer
// than it waits already.
func (p *pace) pause(now, ended time.Time, d time.Duration, share float64) {
	if p.next(now, ended, d, share).After(p.next(now, p.ended, p.took, share)) {
		p.ended, p.took = ended, d
	}
}

// started notes that a run of n bytes of class c starts.
func (p *pace) started(now time.Time, c chunk.Class, n int64, share float64) {
	if c < chunk.Readahead {
		return
	}
	if first := min(leastPace*share, 2); p.window == 0 || p.window > first && now.Sub(p.latest) > paceIdle {
		p.window = first
	}
	p.latest = now
	if c >= chunk.Prefetch {
		took := time.Duration(float64(p.best) * float64(max(n, paceUnit)) / paceUnit)
		p.pause(now, now.Add(took), took, share)
	}
}

// most returns how many runs there may be now.
func (p *pace) most(now time.Time, share float64) float64 {
	if now.Sub(p.reader) < paceIdle {
		return min(p.window, readerPace*share)
	}
	return p.window
}

// slots returns how many of limit slots class c may use.
func (p *pace) slots(c chunk.Class, limit int) int {
	if c < chunk.Readahead || p.window == 0 {
		return limit
	}
	return min(limit, max(1, int(p.window)))
}
