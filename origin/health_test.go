package origin

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func TestHealth(t *testing.T) {
	fault := errors.New("refused")
	fail := func(h *health, at time.Duration) { h.fail(t0.Add(at), fault, 1) }
	tests := []struct {
		name  string
		do    func(h *health)
		at    time.Duration
		until time.Duration // 0 if a request is admitted
	}{
		{"new", func(*health) {}, 0, 0},
		{"two failures", func(h *health) { fail(h, 0); fail(h, 0) }, 0, 0},
		{"three failures", func(h *health) { fail(h, 0); fail(h, 0); fail(h, 0) }, 0, time.Second},
		{"success between", func(h *health) { fail(h, 0); fail(h, 0); h.succeed(); fail(h, 0) }, 0, 0},
		{"probe is due", func(h *health) { fail(h, 0); fail(h, 0); fail(h, 0) }, time.Second, 0},
		{"one probe at a time", func(h *health) {
			fail(h, 0)
			fail(h, 0)
			fail(h, 0)
			h.admit(t0.Add(time.Second))
		}, time.Second, 2 * time.Second},
		{"probe fails", func(h *health) {
			fail(h, 0)
			fail(h, 0)
			fail(h, 0)
			h.admit(t0.Add(time.Second))
			fail(h, time.Second)
		}, time.Second, 3 * time.Second},
		{"probe works", func(h *health) {
			fail(h, 0)
			fail(h, 0)
			fail(h, 0)
			h.admit(t0.Add(time.Second))
			h.succeed()
		}, time.Second, 0},
		{"back-off is bounded", func(h *health) {
			for range 1000 {
				fail(h, 0)
			}
		}, 0, maxProbe},
		{"closed", func(h *health) { h.close(t0.Add(time.Minute), fault) }, 59 * time.Second, time.Minute},
		{"opens again", func(h *health) { h.close(t0.Add(time.Minute), fault) }, time.Minute, 0},
		{"stays closed after a success", func(h *health) { h.close(t0.Add(time.Minute), fault); h.succeed() }, 0, time.Minute},
		{"is not closed for less", func(h *health) {
			h.close(t0.Add(time.Minute), fault)
			h.close(t0.Add(time.Second), fault)
		}, 30 * time.Second, time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h health
			tt.do(&h)
			down := h.admit(t0.Add(tt.at))
			switch {
			case tt.until == 0 && down != nil:
				t.Errorf("not admitted: %v", down)
			case tt.until != 0 && down == nil:
				t.Error("admitted")
			case tt.until != 0 && !down.until.Equal(t0.Add(tt.until)):
				t.Errorf("closed for %v, want %v", down.until.Sub(t0), tt.until)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	tests := []struct {
		name, header string
		want         time.Duration
		ok           bool
	}{
		{"none", "", 0, false},
		{"seconds", "7", 7 * time.Second, true},
		{"zero", "0", 0, true},
		{"over the limit", "3600", time.Minute, true},
		{"more digits than fit", "99999999999999999999", time.Minute, true},
		{"date", "Wed, 04 Mar 2026 05:06:27 GMT", 20 * time.Second, true},
		{"date that is past", "Wed, 04 Mar 2026 05:06:00 GMT", 0, true},
		{"date over the limit", "Wed, 04 Mar 2099 05:06:00 GMT", time.Minute, true},
		{"negative", "-1", 0, false},
		{"fraction", "1.5", 0, false},
		{"nonsense", "soon", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{}
			if tt.header != "" {
				h.Set("Retry-After", tt.header)
			}
			got, ok := retryAfter(h, t0, time.Minute)
			if got != tt.want || ok != tt.ok {
				t.Errorf("got %v, %v; want %v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	r := Retry{MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second}
	for n, want := range []time.Duration{1: 100, 2: 200, 3: 400, 4: 800, 5: 1000, 6: 1000} {
		if n == 0 {
			continue
		}
		if got := r.backoff(n, 1); got != want*time.Millisecond {
			t.Errorf("attempt %d: %v, want %v", n, got, want*time.Millisecond)
		}
		if got := r.backoff(n, 0); got != 0 {
			t.Errorf("attempt %d without jitter: %v", n, got)
		}
	}
	if got := r.backoff(1<<30, 0.5); got != 500*time.Millisecond {
		t.Errorf("a late attempt: %v", got)
	}
}
