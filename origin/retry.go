package origin

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// backoff returns the wait before attempt number n, counted from 1, for a
// jitter from 0 to 1.
func (r Retry) backoff(n int, jitter float64) time.Duration {
	d := r.MinBackoff
	for i := 1; i < n && d < r.MaxBackoff; i++ {
		d *= 2
	}
	return time.Duration(jitter * float64(min(d, r.MaxBackoff)))
}

// retryAfter returns the wait that a Retry-After header asks for, in seconds or
// as a date, at most limit. It reports false if the header has neither.
func retryAfter(h http.Header, now time.Time, limit time.Duration) (time.Duration, bool) {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0, false
	}
	if isDigits(v) {
		// More digits than fit are more than any limit.
		s, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return limit, true
		}
		return min(time.Duration(s)*time.Second, limit), true
	}
	t, err := http.ParseTime(v)
	if err != nil {
		return 0, false
	}
	return min(max(t.Sub(now), 0), limit), true
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// sleep waits for d or until ctx is done, whose cause it then returns.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// jitter returns a random number from 0 to 1.
func jitter() float64 { return rand.Float64() }
