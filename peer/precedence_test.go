package peer

import (
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// A body lets those that a reader waits for go first, but not for ever.
func TestPrecedence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p precedence
		yielded := func(class chunk.Class) time.Duration {
			begin := time.Now()
			p.yield(t.Context(), class)
			return time.Since(begin)
		}
		if d := yielded(chunk.Backfill); d != 0 {
			t.Errorf("a body has waited %v for none", d)
		}
		p.begin(chunk.Prefetch)
		if d := yielded(chunk.Backfill); d != 0 {
			t.Errorf("a body has waited %v for one that no reader waits for", d)
		}
		p.begin(chunk.Demand)
		p.begin(chunk.Demand)
		if d := yielded(chunk.Demand); d != 0 {
			t.Errorf("a reader's body has waited %v", d)
		}
		if d := yielded(chunk.Readahead); d != maxYield {
			t.Errorf("a body has waited %v, want %v", d, maxYield)
		}
		p.end(chunk.Demand)
		time.AfterFunc(maxYield/4, func() { p.end(chunk.Demand) })
		if d := yielded(chunk.Prefetch); d != maxYield/4 {
			t.Errorf("a body has waited %v for one that took %v", d, maxYield/4)
		}
		p.end(chunk.Prefetch)
		if d := yielded(chunk.Prefetch); d != 0 {
			t.Errorf("a body has waited %v after the last one", d)
		}
	})
}

// A reader takes any idle connection, others only those with short buffers.
func TestIdleByClass(t *testing.T) {
	mk := func(lower bool) *link {
		l := newLink(nil, Plain, "x")
		l.addr, l.lower = "a", lower
		return l
	}
	q := &portion{idle: []*link{mk(true), mk(false), mk(true)}}
	for i, row := range []struct{ ask, found, lower bool }{
		{false, true, false}, // its own
		{true, true, true},
		{false, true, true}, // what there is
		{false, false, false},
	} {
		l := q.popIdleLocked("a", row.ask)
		if (l != nil) != row.found || l != nil && l.lower != row.lower {
			t.Errorf("%d: got %v", i, l)
		}
	}
	q.idle = []*link{mk(false)}
	if l := q.popIdleLocked("a", true); l != nil {
		t.Error("a connection for readers was given away")
	}
}
