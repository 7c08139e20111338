package origin

import (
	"fmt"
	"time"

	"graze/chunk"
)

// The policy of the breaker.
const (
	breakAfter = 3                // failures in a row after which a host is only probed
	minProbe   = time.Second      // first wait between two probes, doubled for each failed one
	maxProbe   = 30 * time.Second // longest wait between two probes
)

// health says whether a host may be asked. It is state only: times are handed
// in, and the owner guards it.
type health struct {
	failures int           // in a row
	probe    time.Duration // wait before the probe after the next
	nextTry  time.Time     // while broken: when the next probe may be sent
	closed   time.Time     // the host asked to be left alone until then
	held     time.Time     // while broken: until then somebody else finds out whether it is back
	reason   error         // what broke or closed it
}

// broken reports whether the host is only probed.
func (h *health) broken() bool { return h.failures >= breakAfter }

// admit returns nil if a request may be sent now, which it takes for a probe if
// the host is broken: the next one is admitted after the back-off.
func (h *health) admit(now time.Time) *downError {
	if now.Before(h.closed) {
		return &downError{until: h.closed, asked: true, reason: h.reason}
	}
	if !h.broken() {
		return nil
	}
	if until := later(h.nextTry, h.held); now.Before(until) {
		return &downError{until: until, reason: h.reason}
	}
	h.nextTry = now.Add(h.probe)
	return nil
}

// succeed records that the host works. It reports whether it was broken.
func (h *health) succeed() bool {
	was := h.broken()
	h.failures, h.probe, h.held = 0, 0, time.Time{}
	return was
}

// revive has a broken host be asked again: it is said to be back. One failure
// breaks it anew, and its probes are then as far apart as they were.
func (h *health) revive() {
	if h.broken() {
		h.failures, h.held = breakAfter-1, time.Time{}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// fail records a failure of the host. jitter is from 0 to 1. It reports whether
// the host is broken now.
func (h *health) fail(now time.Time, reason error, jitter float64) bool {
	h.failures++
	h.reason = reason
	if !h.broken() {
		return false
	}
	h.probe = min(max(2*h.probe, minProbe), maxProbe)
	// Between half and all of the wait, so that many nodes don't probe together.
	h.nextTry = now.Add(h.probe/2 + time.Duration(jitter*float64(h.probe/2)))
	return true
}

// skip breaks a host at once. It is for mirrors: there are others to ask.
func (h *health) skip(now time.Time, reason error, jitter float64) {
	if !h.broken() {
		h.failures = breakAfter - 1
		h.fail(now, reason, jitter)
	}
}

// close keeps requests away from the host until t, unless it is closed for
// longer already.
func (h *health) close(t time.Time, reason error) {
	if t.After(h.closed) {
		h.closed, h.reason = t, reason
	}
}

// A downError says that a host was not asked, and why.
type downError struct {
	until  time.Time
	asked  bool // the host itself asked for it, by Retry-After
	reason error
}

func (e *downError) Error() string {
	if e.asked {
		return fmt.Sprintf("not asked before %s, as it wants: %v", e.until.UTC().Format(time.TimeOnly), e.reason)
	}
	return fmt.Sprintf("not asked before %s, after failures: %v", e.until.UTC().Format(time.TimeOnly), e.reason)
}

// Unwrap makes the error one that may pass.
func (e *downError) Unwrap() error { return chunk.ErrUnavailable }
