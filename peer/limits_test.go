package peer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	p2ppeer "github.com/libp2p/go-libp2p/core/peer"

	"graze/chunk"
	"graze/wire"
)

func TestPacerRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 10 << 20
		p := newPacer(rate)
		start := time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				for range 10 {
					if err := p.wait(t.Context(), chunk.Demand, 1<<20); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		// 50 MiB at 10 MiB/s, less what the bucket had at the start.
		if took, want := time.Since(start), 5*time.Second; took > want || took < want-quantum*time.Second/rate-time.Millisecond {
			t.Errorf("50 MiB took %v, want %v", took, want)
		}
	})
}

// A body that a reader waits for is held up by one quantum at most.
func TestPacerClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 1 << 20 // a quantum takes 250ms
		p := newPacer(rate)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := p.wait(ctx, chunk.Backfill, 16<<20); !errors.Is(err, context.Canceled) {
					t.Errorf("backfill: %v", err)
				}
			})
		}
		time.Sleep(1100 * time.Millisecond) // of the bubble's clock
		start := time.Now()
		if err := p.wait(ctx, chunk.Demand, quantum); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("demand waited %v", took)
		}
		cancel()
		wg.Wait()
		if p.drawing {
			t.Error("a turn was lost")
		}
	})
}

func TestWindowKeepsRoomForDemand(t *testing.T) {
	w := newWindow(64)
	if err := w.enter(t.Context(), chunk.Backfill, 48); err != nil {
		t.Fatal(err)
	}
	full, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.enter(full, chunk.Prefetch, 1); err == nil {
		t.Error("prefetch got into the last quarter")
	}
	if err := w.enter(t.Context(), chunk.Demand, 16); err != nil {
		t.Error(err)
	}
	if err := w.enter(full, chunk.Demand, 1); err == nil {
		t.Error("there is no limit")
	}
	w.leave(chunk.Demand, 16)
	w.leave(chunk.Backfill, 48)
	if err := w.enter(t.Context(), chunk.Backfill, 48); err != nil {
		t.Error(err)
	}
}

func TestGate(t *testing.T) {
	g := gate{most: 3, mostOfPeer: 2, peers: make(map[chunk.PeerID]*[numLanes]int)}
	steps := []struct {
		name string
		peer chunk.PeerID
		lane int
		in   bool
	}{
		{"first of a", "a", laneHome0, true},
		{"second of a", "a", laneHome0, true},
		{"third of a", "a", laneHome0, false},
		{"another lane of a", "a", laneHome1, true},
		{"first of b", "b", laneHome0, true},
		{"over all", "c", laneHome0, false},
	}
	for _, s := range steps {
		if got := g.enter(s.peer, s.lane); got != s.in {
			t.Errorf("%s: %t", s.name, got)
		}
	}
	if n := g.serving(); n != 4 {
		t.Errorf("serving %d, want 4", n)
	}
	for _, s := range steps {
		if s.in {
			g.leave(s.peer, s.lane)
		}
	}
	if g.serving() != 0 || len(g.peers) != 0 {
		t.Errorf("%d left of %d peers", g.serving(), len(g.peers))
	}
}

func newPool(conns int) *pool {
	return &pool{conns: conns, peers: make(map[chunk.PeerID]*portion)}
}

// The turns of a lane go to the most urgent, and the last is kept for demand.
func TestPoolClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(2)
		var mu sync.Mutex
		var order []chunk.Class
		ask := func(class chunk.Class) {
			go func() {
				if _, err := p.enter(t.Context(), "a", "", laneHeld, class); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, class)
				mu.Unlock()
			}()
			synctest.Wait()
		}
		ask(chunk.Backfill) // gets the first turn
		ask(chunk.Backfill) // must wait: the last one is kept
		ask(chunk.Demand)   // gets it
		ask(chunk.Prefetch)
		ask(chunk.Demand)
		for range 4 {
			p.leave("a", laneHeld, nil, time.Now())
			synctest.Wait()
		}
		want := []chunk.Class{chunk.Backfill, chunk.Demand, chunk.Demand, chunk.Prefetch, chunk.Backfill}
		if len(order) != len(want) {
			t.Fatalf("turns %v, want %v", order, want)
		}
		for i := range want {
			if order[i] != want[i] {
				t.Fatalf("turns %v, want %v", order, want)
			}
		}
		p.leave("a", laneHeld, nil, time.Now())
		if len(p.peers) != 0 {
			t.Error("the pool remembers a peer that it has nothing of")
		}
	})
}

// A full lane holds up neither another lane nor another peer; who gives up
// leaves no trace.
func TestPoolLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(1)
		for _, lane := range []int{laneHeld, laneHome0, laneHome1} {
			if _, err := p.enter(t.Context(), "a", "", lane, chunk.Demand); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.enter(ctx, "a", "", laneHome0, chunk.Demand); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the second in a lane of one: %v", err)
		}
		if _, err := p.enter(t.Context(), "b", "", laneHome0, chunk.Demand); err != nil {
			t.Error(err)
		}
		waiting := make(chan error)
		go func() {
			_, err := p.enter(context.Background(), "a", "", laneHome0, chunk.Demand)
			waiting <- err
		}()
		synctest.Wait()
		p.close()
		if err := <-waiting; err != ErrClosed {
			t.Errorf("who waits at the end gets %v", err)
		}
		if _, err := p.enter(t.Context(), "c", "", laneHeld, chunk.Demand); err != ErrClosed {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestTickets(t *testing.T) {
	now := time.Unix(1000, 0)
	ts := tickets{open: make(map[[16]byte]openTicket), peer: make(map[p2ppeer.ID]int)}
	k, ok := ts.give("a", now)
	if !ok {
		t.Fatal("no ticket")
	}
	if o, ok := ts.take(k.number, now.Add(ticketLife)); !ok || o.peer != "a" || o.secret != k.secret {
		t.Errorf("take = %v, %t", o.peer, ok)
	}
	if _, ok := ts.take(k.number, now); ok {
		t.Error("a ticket was good twice")
	}
	k, _ = ts.give("a", now)
	if _, ok := ts.take(k.number, now.Add(ticketLife+1)); ok {
		t.Error("an old ticket was good")
	}
	for range maxPeerTickets {
		if _, ok := ts.give("a", now); !ok {
			t.Fatal("too few")
		}
	}
	if _, ok := ts.give("a", now); ok {
		t.Error("one peer gets any number")
	}
	if _, ok := ts.give("b", now); !ok {
		t.Error("another peer gets none")
	}
	if _, ok := ts.give("a", now.Add(ticketLife+1)); !ok {
		t.Error("old tickets stand in the way")
	}
	if len(ts.open) != 1 || len(ts.peer) != 1 {
		t.Errorf("%d tickets of %d peers are left, want 1 of 1", len(ts.open), len(ts.peer))
	}
}

// Requests over the limit are told to come again.
func TestBusy(t *testing.T) {
	s := newShelf(t, 10)
	for _, lane := range []string{"same lane", "other lane"} {
		t.Run(lane, func(t *testing.T) {
			entered, release := make(chan struct{}, 2), make(chan struct{})
			h := handlerFunc(func(ctx context.Context, _ chunk.PeerID, q *wire.Request, w *Responder) error {
				entered <- struct{}{}
				if q.Class == chunk.Prefetch {
					<-release
				}
				return w.Bytes(0, 0, s.at[s.refs[0].ID])
			})
			eachWay(t, h, func(c *Config) { c.Limits.PeerRequests, c.Limits.Retry = 1, time.Minute }, func(t *testing.T, client, server *node, to Target) {
				first := make(chan error)
				go func() {
					q := request(s.refs...)
					q.Class = chunk.Prefetch
					_, _, err := client.ask(t.Context(), to, q)
					first <- err
				}()
				<-entered
				q := request(s.refs...)
				if lane == "other lane" {
					q.Mode = wire.Home
					q.Items[0].Span = chunk.Span{Blob: testBlob, Len: 1, Codec: chunk.Raw, Parts: q.Items[0].Span.Parts}
				}
				got, other, err := client.ask(t.Context(), to, q)
				if err != nil {
					t.Error(err)
				}
				if lane == "other lane" {
					<-entered
					if len(got) != 1 {
						t.Errorf("got %v", other)
					}
				} else if len(other) != 1 || other[0].Status != wire.Busy || other[0].Wait != time.Minute {
					t.Errorf("got %d chunks and %v", len(got), other)
				}
				release <- struct{}{}
				if err := <-first; err != nil {
					t.Error(err)
				}
				if n, want := server.Stats().BusyOut, uint64(b2u(lane == "same lane")); n != want {
					t.Errorf("busy %d times, want %d", n, want)
				}
			})
		})
	}
}

const testBlob = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func b2u(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestTooManyConnections(t *testing.T) {
	s := newShelf(t, 10)
	eachWay(t, s, func(c *Config) { c.Limits.PeerConns = 2 }, func(t *testing.T, client, server *node, to Target) {
		var links []*link
		for range 2 {
			l, err := client.connect(t.Context(), to, false)
			if err != nil {
				t.Fatal(err)
			}
			if l.way == Stream { // it is opened by the first byte
				if _, err := l.Write([]byte{0}); err != nil {
					t.Fatal(err)
				}
			}
			links = append(links, l)
		}
		until(t, "two connections are in", func() bool {
			server.mu.Lock()
			defer server.mu.Unlock()
			return server.callers[client.ID()] == 2
		})
		_, _, err := client.ask(t.Context(), to, request(s.refs...))
		wantKind(t, err, KindBroken)
		until(t, "it is counted", func() bool { return server.Stats().Violations[KindLimit] >= 1 })
		for _, l := range links {
			l.Close()
		}
		until(t, "there is room again", func() bool {
			_, _, err := client.ask(t.Context(), to, request(s.refs...))
			return err == nil
		})
	})
}

// What is sent keeps to the rate, by the bytes that were counted in the time
// that passed.
func TestUploadRate(t *testing.T) {
	s := newShelf(t, 1<<20, 1<<20-1)
	const rate = 4 << 20
	eachWay(t, s, func(c *Config) { c.Limits.Upload = rate }, func(t *testing.T, client, server *node, to Target) {
		t.Parallel()
		start := time.Now()
		if _, _, err := client.ask(t.Context(), to, request(s.refs...)); err != nil {
			t.Fatal(err)
		}
		most := rate*time.Since(start).Seconds() + quantum + 1
		if n := client.Stats().BytesIn; float64(n) > most {
			t.Errorf("%d bytes in a time for %.0f", n, most)
		}
	})
}
