package scheduler

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"graze/chunk"
)

var t0 = time.Unix(1e9, 0)

func TestBucket(t *testing.T) {
	var b bucket
	if d := b.wait(t0, 0); d != 0 {
		t.Errorf("no limit, and a wait of %v", d)
	}
	if d := b.wait(t0, 100); d != 0 {
		t.Errorf("a new bucket has a wait of %v", d)
	}
	b.take(300) // 200 more than there are
	if d := b.wait(t0, 100); d < 2*time.Second || d > 2100*time.Millisecond {
		t.Errorf("a debt of 200 at 100/s has a wait of %v", d)
	}
	if d := b.wait(t0.Add(2100*time.Millisecond), 100); d != 0 {
		t.Errorf("a wait of %v after the debt was paid", d)
	}
	b.wait(t0.Add(time.Hour), 100)
	if b.tokens != 100 {
		t.Errorf("an hour has saved up %v", b.tokens)
	}
}

func TestPace(t *testing.T) {
	p := pace{best: 30 * time.Millisecond}
	p.started(t0, chunk.Prefetch, paceUnit, 1)
	for range 100 {
		p.observe(t0, paceUnit, 30*time.Millisecond, 1)
	}
	if n := p.slots(chunk.Prefetch, 8); n != 8 {
		t.Errorf("a fast origin gives %d slots", n)
	}
	for range 40 {
		p.observe(t0, 2*paceUnit, time.Second, 1.0/16)
	}
	if n := p.slots(chunk.Backfill, 8); n != 1 {
		t.Errorf("a slow origin gives %d slots", n)
	}
	if n := p.slots(chunk.Demand, 8); n != 8 {
		t.Errorf("readers get %d slots", n)
	}
	if d := p.wait(t0, chunk.Demand, 1); d != 0 {
		t.Errorf("readers wait %v", d)
	}
}

// Less than one run at a time is one run and a pause after it.
func TestPauses(t *testing.T) {
	const took = 100 * time.Millisecond
	for _, tt := range []struct {
		name   string
		window float64
		reader time.Time
		pause  time.Duration
	}{
		{"half a run", 0.5, time.Time{}, took},
		{"a reader waits", 0.5, t0, 7 * took}, // an eighth: this node is one of 16
		{"whole runs, a reader waits", 4, t0, 7 * took},
		{"whole runs", 4, time.Time{}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := pace{best: took, window: tt.window, latest: t0, reader: tt.reader}
			p.started(t0, chunk.Backfill, paceUnit, 1.0/16)
			if d := p.wait(t0.Add(took), chunk.Prefetch, 1.0/16); d != tt.pause {
				t.Errorf("after a run that took %v as usual there is a pause of %v, want %v", took, d, tt.pause)
			}
			p.observe(t0.Add(5*took), paceUnit, 5*took, 1.0/16)
			if d := p.wait(t0.Add(5*took), chunk.Prefetch, 1.0/16); d != 5*tt.pause {
				t.Errorf("after a run that took %v there is a pause of %v, want %v", 5*took, d, 5*tt.pause)
			}
		})
	}
}

// The pause that a reader was given is not waited for when he has left.
func TestPauseEndsWithReader(t *testing.T) {
	const took = 10 * time.Second
	p := pace{best: took, window: 0.5, latest: t0, reader: t0}
	p.observe(t0, paceUnit, took, 1.0/16)
	if d := p.wait(t0, chunk.Prefetch, 1.0/16); d != 7*took {
		t.Errorf("a pause of %v while a reader waits", d)
	}
	if d := p.wait(t0.Add(2*paceIdle), chunk.Prefetch, 1.0/16); d > took {
		t.Errorf("a pause of %v when nobody waits any more", d)
	}
}

func TestPeerCost(t *testing.T) {
	var p peer
	p.observe(t0, 100*time.Millisecond, 1<<20)
	if c := p.cost(t0); c != 100*time.Millisecond {
		t.Errorf("cost %v", c)
	}
	p.calls = make([]*call, 3)
	if c := p.cost(t0); c != 400*time.Millisecond {
		t.Errorf("cost %v with three calls under way", c)
	}
	p.calls = nil
	// A peak counts at once, and is forgotten slowly.
	p.observe(t0, time.Second, 1<<20)
	if c := p.cost(t0); c != time.Second {
		t.Errorf("cost %v after a peak", c)
	}
	if c, want := p.cost(t0.Add(peakDecay)).Seconds(), 1/math.E; math.Abs(c-want) > 0.01 {
		t.Errorf("cost %.3f s after a while, want %.3f", c, want)
	}
	p.tier = TierFar
	if c := p.cost(t0); c != time.Second+TierFar.penalty() {
		t.Errorf("cost %v far away", c)
	}
}

func TestPeerWindow(t *testing.T) {
	var p peer
	p.lanes[0].window = firstWindow
	for range 1000 {
		p.observe(t0, 10*time.Millisecond, 1<<20)
		p.succeeded(0, true)
	}
	if w := p.lanes[0].window; w != maxWindow {
		t.Errorf("the window of a good peer is %v", w)
	}
	for range 1000 {
		p.broke(0)
	}
	if w := p.lanes[0].window; w != 1 {
		t.Errorf("the window of a bad peer is %v", w)
	}
}

func TestBreakerPauses(t *testing.T) {
	var p peer
	var got []time.Duration
	for range maxErrors + 6 {
		avoid, d := p.broke(0)
		if avoid {
			got = append(got, d/time.Second)
		}
		p.probing = avoid
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 30, 30}; !slices.Equal(got, want) {
		t.Errorf("pauses of %v s, want %v", got, want)
	}
	p.succeeded(0, false)
	if p.opened != 0 || !p.usable(t0, true) {
		t.Error("it is still avoided after a success")
	}
}

func TestHedging(t *testing.T) {
	var h hedging
	if d := h.delay(TierRack); d != firstHedge {
		t.Errorf("delay %v before anything is known", d)
	}
	for i := range 100 {
		h.observe(TierRack, time.Duration(i)*time.Millisecond)
	}
	if d := h.delay(TierRack); d < 90*time.Millisecond || d > 120*time.Millisecond {
		t.Errorf("delay %v, want about 95 ms", d)
	}
	for range 10000 {
		h.observe(TierRack, time.Microsecond)
	}
	if d := h.delay(TierRack); d != minHedge {
		t.Errorf("delay %v of fast peers", d)
	}
	h.called(1e6)
	if h.tokens != hedgeBurst {
		t.Errorf("%v hedges are saved up", h.tokens)
	}
}

func TestUploadsByClass(t *testing.T) {
	for c, want := range map[chunk.Class]int{chunk.Demand: 8, chunk.Readahead: 6, chunk.Prefetch: 4, chunk.Backfill: 2} {
		u := newUploads(&Config{Uploads: 8 << 10})
		n := 0
		for u.enter(upload{ref: testRef(n), class: c}, t0) {
			n++
		}
		if n != want {
			t.Errorf("%s: %d chunks of an eighth of the limit are sent at a time, want %d", c, n, want)
		}
	}
}

// testRef returns a chunk of 1 KiB.
func testRef(i int) chunk.Ref {
	return chunk.Ref{ID: chunk.BLAKE3.Sum([]byte(fmt.Sprint(i))), Size: 1 << 10}
}

// A slow link sends less, and each chunk to few.
func TestUploadsFollowTheLink(t *testing.T) {
	u := newUploads(&Config{Uploads: 32 << 20})
	ref := chunk.Ref{ID: testRef(0).ID, Size: 1 << 20}
	now := t0
	for range 40 { // 1 MiB/s
		u.enter(upload{ref: ref}, now)
		begin := now
		now = now.Add(time.Second)
		u.leave(upload{ref: ref}, begin, now, true)
	}
	if n := u.flow[0].limit; n > 2*minUploads {
		t.Errorf("%d bytes are sent at a time over a slow link", n)
	}
	small := testRef(1)
	for i := range 600 {
		u.enter(upload{ref: testRef(1000 + i)}, now)
	}
	sent := 0
	for u.enter(upload{ref: small}, now) {
		sent++
	}
	if sent != maxSending {
		t.Errorf("a chunk is sent to %d at a time, want %d", sent, maxSending)
	}
}

func TestHoldersAreBounded(t *testing.T) {
	c := &fakeCluster{peers: make(map[chunk.PeerID]fakePeer)}
	u := newUploads(&Config{Cluster: c, Uploads: 1 << 20})
	id := testRef(0).ID
	for i := range 1000 {
		peer := chunk.PeerID(fmt.Sprint("n", i))
		c.peers[peer] = nil
		u.gaveLocked(id, peer, t0)
	}
	near, _ := u.holders(upload{ref: testRef(0), to: "n999"})
	if len(near) != MaxHolders || slices.Contains(near, "n999") {
		t.Errorf("holders %v", near)
	}
	delete(c.peers, near[0]) // no member any more
	for range 100 {
		if again, _ := u.holders(upload{ref: testRef(0), to: "n1"}); slices.Contains(again, near[0]) {
			t.Fatal("a node is named that is no member")
		}
	}
	for i := range maxGiven + 10 {
		u.gaveLocked(testRef(i+1).ID, "n1", t0)
	}
	if n := len(u.given.items); n > maxGiven {
		t.Errorf("%d chunks are remembered", n)
	}
}

func TestTimers(t *testing.T) {
	var ts timers
	a, b := &search{}, &search{}
	ts.set(a, t0.Add(3), timerPause)
	ts.set(b, t0.Add(2), timerHedge)
	ts.set(a, t0.Add(1), timerHedge) // the first of a is void
	ts.set(nil, t0.Add(9), timerWake)
	ts.set(nil, t0.Add(10), timerWake) // comes after one that is set
	if at, ok := ts.next(); !ok || !at.Equal(t0.Add(1)) {
		t.Errorf("next %v, %t", at, ok)
	}
	var got []*search
	ts.due(t0.Add(5), func(sr *search, _ timerKind) { got = append(got, sr) })
	if !slices.Equal(got, []*search{a, b}) {
		t.Errorf("due %v", got)
	}
	ts.due(t0.Add(9), func(*search, timerKind) {})
	if _, ok := ts.next(); ok {
		t.Error("timers are left")
	}
}
