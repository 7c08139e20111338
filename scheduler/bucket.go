package scheduler

import "time"

// A bucket limits a rate. What is taken may exceed what is there: the debt is
// waited for by the next one.
type bucket struct {
	tokens float64
	at     time.Time
}

// burst is how long a bucket that is not used fills.
const burst = time.Second

// wait returns how long it takes until something may be taken, at rate tokens a
// second. A rate of 0 is no limit.
func (b *bucket) wait(now time.Time, rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	full := rate * burst.Seconds()
	if b.at.IsZero() {
		b.tokens = full
	} else {
		b.tokens = min(full, b.tokens+rate*now.Sub(b.at).Seconds())
	}
	b.at = now
	if b.tokens > 0 {
		return 0
	}
	return time.Duration(-b.tokens/rate*float64(time.Second)) + time.Millisecond
}

// take takes n tokens.
func (b *bucket) take(n float64) { b.tokens -= n }

// originOpen reports whether the registry's budget lets a run start, and has it
// be asked again when it does.
func (st *state) originOpen() bool {
	share := st.share()
	d := max(st.bytesBucket.wait(st.now, st.rate*share), st.countBucket.wait(st.now, st.requests*share))
	if d > 0 {
		st.timers.set(nil, st.now.Add(d), timerWake)
		st.throttled++
	}
	return d == 0
}

// share returns this node's part of the registry's budget.
func (st *state) share() float64 {
	if st.cluster == nil {
		return 1
	}
	return min(max(st.cluster.Share(), 1e-6), 1)
}

// charge takes what r asks the origin for from the budget.
func (st *state) charge(r *run) {
	first, last := &r.fetches[0].span, &r.fetches[len(r.fetches)-1].span
	r.asked, r.begun = last.Off+last.Len-first.Off, st.now
	st.bytesBucket.take(float64(r.asked))
	st.countBucket.take(1)
}
