package fusefs

import (
	"sync"
	"sync/atomic"
	"time"

	"graze/latency"
)

// Stats counts what the kernel asked of a mount since it was made. What the
// kernel answers from its own caches is not in it.
type Stats struct {
	Lookups   int64
	Getattrs  int64
	Readdirs  int64
	Readlinks int64
	Xattrs    int64 // values and lists of extended attributes
	Statfs    int64
	Reads     int64 // that have been answered

	ReadBytes   int64
	InFlight    int64 // reads that wait for an answer now
	Failed      int64 // reads that were answered with EIO
	Interrupted int64 // reads that ended with their process or with the mount
	Latency     latency.Histogram
}

// Add adds what other has counted, for figures of several mounts.
func (s *Stats) Add(other *Stats) {
	s.Lookups += other.Lookups
	s.Getattrs += other.Getattrs
	s.Readdirs += other.Readdirs
	s.Readlinks += other.Readlinks
	s.Xattrs += other.Xattrs
	s.Statfs += other.Statfs
	s.Reads += other.Reads
	s.ReadBytes += other.ReadBytes
	s.InFlight += other.InFlight
	s.Failed += other.Failed
	s.Interrupted += other.Interrupted
	s.Latency.Merge(&other.Latency)
}

// counters are what Stats is made of.
type counters struct {
	lookups, getattrs, readdirs, readlinks, xattrs, statfs atomic.Int64
	readBytes, inFlight, failed, interrupted               atomic.Int64
	latency                                                latency.Recorder
}

func (c *counters) stats() Stats {
	s := Stats{
		Lookups:     c.lookups.Load(),
		Getattrs:    c.getattrs.Load(),
		Readdirs:    c.readdirs.Load(),
		Readlinks:   c.readlinks.Load(),
		Xattrs:      c.xattrs.Load(),
		Statfs:      c.statfs.Load(),
		ReadBytes:   c.readBytes.Load(),
		InFlight:    c.inFlight.Load(),
		Failed:      c.failed.Load(),
		Interrupted: c.interrupted.Load(),
	}
	s.Latency = c.latency.Snapshot()
	s.Reads = s.Latency.Count
	return s
}

// reportWindow and reportLimit bound what a reporter passes on.
const (
	reportWindow = time.Minute
	reportLimit  = 32
)

// A reporter passes each distinct failure to its hook once in a window of time.
type reporter struct {
	hook func(Failure)

	mu      sync.Mutex // guards the fields below
	started time.Time  // of the window
	seen    map[string]struct{}
	skipped int64
}

func (r *reporter) failed(f Failure) {
	if r.hook != nil && r.pass(&f) {
		r.hook(f)
	}
}

func (r *reporter) pass(f *Failure) bool {
	text := f.Err.Error()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.seen == nil || now.Sub(r.started) >= reportWindow {
		r.started, r.seen = now, make(map[string]struct{})
	}
	if _, ok := r.seen[text]; ok || len(r.seen) >= reportLimit {
		r.skipped++
		return false
	}
	r.seen[text] = struct{}{}
	f.Skipped, r.skipped = r.skipped, 0
	return true
}
