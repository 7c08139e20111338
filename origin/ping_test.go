package origin

import (
	"net/http"
	"testing"
	"time"
)

func TestPing(t *testing.T) {
	date := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	own := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.Header().Set("Date", date.Format(http.TimeFormat))
		w.WriteHeader(http.StatusUnauthorized)
	})
	c, host := mirrored(t, own, answerWith(200), answerWith(502))
	list, err := c.Ping(t.Context(), host)
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	if m := list[0]; m.Own || m.Err != nil || m.Date.IsZero() {
		t.Errorf("a good mirror: %+v", m)
	}
	if m := list[1]; m.Own || m.Err == nil {
		t.Errorf("a mirror in trouble: %+v", m)
	}
	if m := list[2]; !m.Own || m.Err != nil || !m.Date.Equal(date) || time.Since(m.Sent) > time.Minute {
		t.Errorf("the registry: %+v", m)
	}
}
