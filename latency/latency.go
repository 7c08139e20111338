// Package latency counts how long things took, for quantiles: a Histogram holds
// counts, a Recorder is one that many goroutines add to. Both take about a KiB,
// whatever is counted.
package latency

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	subBuckets = 4 // for each doubling
	numBuckets = 33 * subBuckets
)

// A Histogram counts durations in buckets whose bounds rise by an eighth to a
// quarter, from 1 µs to more than an hour. Its zero value is empty.
type Histogram struct {
	Count   int64
	Sum     time.Duration
	buckets [numBuckets]int64
}

// bucketOf returns the index of d's bucket. Bucket i begins at bound(i).
func bucketOf(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 0))
	if us < subBuckets {
		return int(us)
	}
	shift := bits.Len64(us) - 3 // us>>shift has three bits: 4 to 7
	return min(shift*subBuckets+int(us>>shift), numBuckets-1)
}

// bound returns the least duration of bucket i.
func bound(i int) time.Duration {
	if i < subBuckets {
		return time.Duration(i) * time.Microsecond
	}
	shift := i/subBuckets - 1
	return time.Duration(subBuckets+i%subBuckets) << shift * time.Microsecond
}

// Add counts one duration. A Histogram has one user at a time.
func (h *Histogram) Add(d time.Duration) {
	h.Count++
	h.Sum += d
	h.buckets[bucketOf(d)]++
}

// Merge adds what other has counted.
func (h *Histogram) Merge(other *Histogram) {
	h.Count += other.Count
	h.Sum += other.Sum
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
}

// Halve takes away half of what was counted, so that what is counted from then on
// matters more.
func (h *Histogram) Halve() {
	h.Count, h.Sum = 0, h.Sum/2
	for i := range h.buckets {
		h.buckets[i] /= 2
		h.Count += h.buckets[i]
	}
}

// Quantile returns a duration that the share q of all counted ones, from 0 to 1,
// does not exceed: an upper bound that is at most a quarter too high; 0 if nothing
// was counted.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.Count == 0 {
		return 0
	}
	rank := max(int64(math.Ceil(q*float64(h.Count))), 1)
	for i, n := range h.buckets {
		if rank -= n; rank <= 0 {
			return bound(i + 1)
		}
	}
	return bound(numBuckets)
}

// Buckets calls yield for each bucket that counted anything, by rising bound, with
// its upper bound and its own count.
func (h *Histogram) Buckets(yield func(upper time.Duration, n int64) bool) {
	for i, n := range h.buckets {
		if n > 0 && !yield(bound(i+1), n) {
			return
		}
	}
}

// A Recorder counts like a Histogram, for many goroutines at once. Its zero value
// is empty.
type Recorder struct {
	sum     atomic.Int64
	buckets [numBuckets]atomic.Int64
}

// Add counts one duration.
func (r *Recorder) Add(d time.Duration) {
	r.sum.Add(int64(d))
	r.buckets[bucketOf(d)].Add(1)
}

// Snapshot returns what has been counted.
func (r *Recorder) Snapshot() Histogram {
	h := Histogram{Sum: time.Duration(r.sum.Load())}
	for i := range r.buckets {
		h.buckets[i] = r.buckets[i].Load()
		h.Count += h.buckets[i]
	}
	return h
}
