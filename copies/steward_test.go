package copies

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// held returns the spans of the given numbers, of n.
func held(n int, list ...uint32) Bits {
	b := NewBits(n)
	for _, i := range list {
		b.set(i, true)
	}
	return b
}

func TestJudge(t *testing.T) {
	good := func(node string, list ...uint32) Answer {
		return Answer{Node: node, Report: Report{View: "v", Spans: 4, Held: held(4, list...)}}
	}
	fullAnswer := good("full", 0)
	fullAnswer.Report.Full = true
	for _, tt := range []struct {
		name    string
		answers []Answer
		safe    bool
		copies  int
		one     float64
		why     string
	}{
		{"two copies", []Answer{good("a", 0, 1), good("b", 2, 3), good("c", 0, 1, 2, 3)}, true, 2, 1, "all of it is on 2 nodes at least"},
		{"alone", []Answer{good("a", 0, 1, 2, 3)}, true, 1, 1, "all of it is on one node at least"},
		{"one copy of some", []Answer{good("a", 0, 1), good("b", 0, 1, 2, 3)}, false, 1, 1, "50.0 % of it is on fewer than 2 nodes"},
		{"no copy of some", []Answer{good("a", 0), good("b", 0)}, false, 0, 0.25, "75.0 % of it has no copy yet"},
		{"not opened", []Answer{{Node: "a"}, {Node: "b"}}, false, 0, 0, "no node has opened it yet"},
		{"full", []Answer{good("a", 0, 1, 2, 3), fullAnswer}, false, 1, 1, "75.0 % of it is on fewer than 2 nodes; full has no room"},
		{"gone", []Answer{good("a", 0, 1, 2, 3), {Node: "b", Err: errors.New("x")}}, false, 1, 1, "100.0 % of it is on fewer than 2 nodes; b has no answer"},
		{"broken", []Answer{good("a", 0, 1, 2, 3), {Node: "b", Report: Report{Error: "no manifest"}}}, false, 1, 1, "100.0 % of it is on fewer than 2 nodes; b: no manifest"},
		{"other view", []Answer{good("a", 0, 1, 2, 3), good("c", 0, 1, 2), {Node: "b", Report: Report{View: "w", Spans: 4, Held: held(4, 3)}}}, false, 1, 1, "25.0 % of it is on fewer than 2 nodes; b has another view of it"},
		{"nothing in it", []Answer{{Node: "a", Report: Report{View: "v"}}, {Node: "b", Report: Report{View: "v"}}}, true, 2, 1, "all of it is on 2 nodes at least"},
		{"short set", []Answer{good("a", 0, 1, 2, 3), {Node: "b", Report: Report{View: "v", Spans: 4}}}, false, 1, 1, "100.0 % of it is on fewer than 2 nodes"},
		{"absurd", []Answer{good("a", 0, 1, 2, 3), {Node: "b", Report: Report{View: "v", Spans: 1 << 60}}}, false, 1, 1, "100.0 % of it is on fewer than 2 nodes; b has another view of it"},
		{"nobody", nil, false, 0, 0, "no node has opened it yet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := judge(tt.answers, 2, time.Now())
			if s.Safe != tt.safe || s.Copies != tt.copies || s.One != tt.one || s.Why != tt.why {
				t.Errorf("got %+v", s)
			}
		})
	}
}

func TestSteward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards what follows
		rounds := make(map[string]int)
		safe := false
		s := NewSteward(StewardConfig{Copies: 1, Ask: func(_ context.Context, ref string, _ int) []Answer {
			mu.Lock()
			defer mu.Unlock()
			rounds[ref]++
			r := Report{View: "v", Spans: 1, Held: NewBits(1)}
			r.Held.set(0, safe)
			return []Answer{{Node: "a", Report: r}}
		}})
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return rounds["a@1"]
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		status := func() Status {
			st, err := s.Mounted("a@1", "node")
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
		if st := status(); st.Safe || st.Why == "" {
			t.Errorf("before anybody was asked: %+v", st)
		}
		time.Sleep(busyRound + time.Second)
		if st := status(); st.Safe || count() != 2 {
			t.Errorf("after %d rounds: %+v", count(), st)
		}
		mu.Lock()
		safe = true
		mu.Unlock()
		s.Refresh()
		time.Sleep(time.Second)
		if st := status(); !st.Safe || count() != 3 {
			t.Errorf("after %d rounds: %+v", count(), st)
		}
		// Nobody has it mounted any more.
		time.Sleep(2 * UseLease)
		before := count()
		time.Sleep(10 * idleRound)
		if count() != before {
			t.Errorf("%d rounds for an image that nobody has mounted", count()-before)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
