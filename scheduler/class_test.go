package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// gapped has spans that no run joins.
var gapped = imageSpec{files: []int64{40 * span}, gap: 100 << 10}

// gappedSpan is the distance of spans in the blob of a gapped image.
const gappedSpan = span + 100<<10

// prefetch starts to prefetch spans and returns what waits for it.
func (g *rig) prefetch(ctx context.Context, class chunk.Class, spans ...uint32) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- g.r.Prefetch(ctx, slices.Values(spans), class) }()
	synctest.Wait()
	return func() error { return <-done }
}

func TestSlotsByClass(t *testing.T) {
	for _, tt := range []struct {
		class chunk.Class
		slots int
		most  int           // transfers at a time
		wait  time.Duration // of a reader that comes later
	}{
		{chunk.Readahead, 8, 6, time.Second},
		{chunk.Prefetch, 8, 4, time.Second},
		{chunk.Backfill, 8, 2, time.Second},
		{chunk.Backfill, 1, 1, time.Second}, // it makes room
		{chunk.Demand, 12, 12, 2 * time.Second},
		{chunk.Demand, 3, 3, 5 * time.Second},
	} {
		t.Run(fmt.Sprintf("%s of %d", tt.class, tt.slots), func(t *testing.T) {
			bubble(t, gapped, Config{Runs: tt.slots}, func(t *testing.T, g *rig) {
				g.origin.latency = time.Second
				wait := g.prefetch(t.Context(), tt.class, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
				if g.origin.most != tt.most {
					t.Errorf("%d transfers at a time, want %d", g.origin.most, tt.most)
				}
				begin := time.Now()
				g.mustRead(1, 30*span, 1)
				if d := time.Since(begin); d != tt.wait {
					t.Errorf("a reader waited for %v, want %v", d, tt.wait)
				}
				if err := wait(); err != nil {
					t.Error(err)
				}
				g.wantIdle()
			})
		})
	}
}

// Where there is no slot or no memory to spare, a long prefetch is interrupted
// for a reader, and goes on where it was.
func TestPrefetchMakesRoom(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
	}{{"one slot", Config{Runs: 1}}, {"little memory", Config{Memory: 1}}} {
		t.Run(tt.name, func(t *testing.T) {
			spec := imageSpec{files: []int64{32 << 20}, chunk: 256 << 10}
			bubble(t, spec, tt.cfg, func(t *testing.T, g *rig) {
				g.origin.rate = 1 << 20
				wait := g.prefetch(t.Context(), chunk.Prefetch, slices.Collect(numbers(32))...)
				pause(t.Context(), 4100*time.Millisecond)
				begin := time.Now()
				g.mustRead(1, 31<<20, 1)
				if d := time.Since(begin); d > 1500*time.Millisecond {
					t.Errorf("the reader waited for %v", d)
				}
				if err := wait(); err != nil {
					t.Error(err)
				}
				g.wantRequests([2]int64{0, 32 << 20}, [2]int64{31 << 20, 1 << 20}, [2]int64{4 << 20, 27 << 20})
				g.wantIdle()
			})
		})
	}
}

// A reader raises a span that waits for a slot.
func TestPromotionInTheQueue(t *testing.T) {
	bubble(t, gapped, Config{Runs: 2}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Second
		wait := g.prefetch(t.Context(), chunk.Prefetch, 0, 1, 2, 3, 4)
		begin := time.Now()
		g.mustRead(1, 4*span, 1)
		if d := time.Since(begin); d != time.Second {
			t.Errorf("the reader waited for %v", d)
		}
		if err := wait(); err != nil {
			t.Error(err)
		}
		if n := len(g.origin.log()); n != 5 {
			t.Errorf("%d requests, want 5", n)
		}
		if q := g.origin.log()[1]; q.off != 4*gappedSpan {
			t.Errorf("the second request was at %d", q.off)
		}
	})
}

// A span that a long transfer will reach late is fetched separately.
func TestDetour(t *testing.T) {
	spec := imageSpec{files: []int64{32 << 20}, chunk: 256 << 10}
	bubble(t, spec, Config{}, func(t *testing.T, g *rig) {
		g.origin.rate = 1 << 20
		wait := g.prefetch(t.Context(), chunk.Prefetch, slices.Collect(numbers(32))...)
		begin := time.Now()
		g.mustRead(1, 20<<20, 1)
		if d := time.Since(begin); d > time.Second {
			t.Errorf("the reader waited for %v", d)
		}
		begin = time.Now()
		g.mustRead(1, 3<<20, 1) // the transfer gets there soon
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("the reader waited for %v", d)
		}
		if err := wait(); err != nil {
			t.Error(err)
		}
		g.wantRequests([2]int64{0, 32 << 20}, [2]int64{20 << 20, 1 << 20})
		if s := g.Stats(); s.Wasted != 1<<20 || g.store.puts != 128 {
			t.Errorf("%d bytes wasted, %d chunks stored", s.Wasted, g.store.puts)
		}
		g.wantIdle()
	})
}

// With one slot, and many runs that need the same and other windows, nothing
// waits for a slot that it holds.
func TestWindows(t *testing.T) {
	for _, slots := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			spec := gapped
			spec.codec, spec.window = chunk.Deflate, true
			bubble(t, spec, Config{Runs: slots}, func(t *testing.T, g *rig) {
				wait := g.prefetch(t.Context(), chunk.Backfill, 4, 5, 10, 11)
				var wg sync.WaitGroup
				for i := range int64(40) {
					wg.Go(func() { g.mustRead(1, i*span, 1) })
				}
				wg.Wait()
				if err := wait(); err != nil {
					t.Error(err)
				}
				windows := make(map[int64]int)
				for _, q := range g.origin.log() {
					if q.blob == windowBlob {
						windows[q.off]++
					}
				}
				for off, n := range windows {
					// The backfill may have to make room while it fetches one.
					if n > 1 && (off != 64 || n > 2) {
						t.Errorf("the window at %d was fetched %d times", off, n)
					}
				}
				if len(windows) != 10 {
					t.Errorf("%d windows were fetched, want 10", len(windows))
				}
				g.wantIdle()
			})
		})
	}
}

// A run is decoded in one pass: only its first span's window is needed.
func TestOneWindowForARun(t *testing.T) {
	spec := imageSpec{files: []int64{40 * span}, codec: chunk.Deflate, window: true}
	bubble(t, spec, Config{}, func(t *testing.T, g *rig) {
		g.mustRead(1, 10*span, 20*span)
		if n := len(g.origin.log()); n != 2 {
			t.Errorf("%d requests, want one for the window and one for the spans", n)
		}
	})
}

// Runs whose windows lie in each other's spans, which no honest index has, must
// not wait for each other for ever.
func TestWindowsInACircle(t *testing.T) {
	im := newImage(imageSpec{files: []int64{4 * span}, codec: chunk.Deflate, gap: 100 << 10})
	plain := slices.Clone(im.spans)
	im.spans[0].Window = &chunk.Slice{Span: plain[1], Len: 16}
	im.spans[1].Window = &chunk.Slice{Span: plain[0], Len: 16}
	nested := plain[3]
	nested.Window = &chunk.Slice{Span: plain[0], Len: 16}
	im.spans[2].Window = &chunk.Slice{Span: nested, Len: 16}
	im.blobs[windowBlob] = im.blobs[testBlob]
	for _, slots := range []int{1, 8} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, im, Config{Runs: slots})
				defer g.end()
				var wg sync.WaitGroup
				begin := time.Now()
				wg.Go(func() { g.mustRead(1, 0, span) })
				wg.Go(func() { g.mustRead(1, span, span) })
				wg.Go(func() {
					if err := g.read(t.Context(), 1, 2*span, 1); !errors.Is(err, chunk.ErrCorrupt) {
						t.Errorf("a window that needs a window: %v", err)
					}
				})
				wg.Wait()
				if d := time.Since(begin); d > 10*time.Second {
					t.Errorf("it took %v", d)
				}
				g.wantIdle()
			})
		})
	}
}

func TestBadWindows(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	good := chunk.Slice{Span: im.spans[0], Part: 1, Off: 4000, Len: 96}
	for _, tt := range []struct {
		name string
		edit func(*chunk.Slice)
		ok   bool
	}{
		{"good", func(*chunk.Slice) {}, true},
		{"no such part", func(s *chunk.Slice) { s.Part = 4 }, false},
		{"negative part", func(s *chunk.Slice) { s.Part = -1 }, false},
		{"negative offset", func(s *chunk.Slice) { s.Off = -1 }, false},
		{"ends behind the chunk", func(s *chunk.Slice) { s.Len = 97 }, false},
		{"empty", func(s *chunk.Slice) { s.Len = 0 }, false},
		{"overflow", func(s *chunk.Slice) { s.Off = 1<<31 - 1 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := good
			tt.edit(&s)
			if err := checkWindow(&s); (err == nil) != tt.ok {
				t.Errorf("checkWindow: %v", err)
			}
		})
	}
}

func TestPrefetch(t *testing.T) {
	const M = 1 << 20
	bubble(t, imageSpec{files: []int64{40 * M}, chunk: 256 << 10}, Config{}, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 1)
		g.mustRead(1, 20*M, 1)
		g.mustRead(1, 39*M, 1)
		synctest.Wait()
		if err := g.r.Prefetch(t.Context(), numbers(40), chunk.Prefetch); err != nil {
			t.Error(err)
		}
		// What the store has at the ends and in the middle is left out.
		g.wantRequests([2]int64{0, M}, [2]int64{20 * M, M}, [2]int64{39 * M, M},
			[2]int64{1 * M, 19 * M}, [2]int64{21 * M, 18 * M})
		if err := g.r.Prefetch(t.Context(), numbers(40), chunk.Prefetch); err != nil {
			t.Error(err)
		}
		if n := len(g.origin.log()); n != 5 {
			t.Errorf("%d requests, want 5", n)
		}
		if s := g.Stats(); s.MemoryPeak > 4*M {
			t.Errorf("a peak of %d bytes", s.MemoryPeak)
		}
		g.wantIdle()
	})
}

func TestPrefetchIsTakenBack(t *testing.T) {
	bubble(t, gapped, Config{StallTimeout: 2 * time.Hour}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		wait := g.prefetch(ctx, chunk.Prefetch, slices.Collect(numbers(40))...)
		other := g.prefetch(t.Context(), chunk.Backfill, 0, 39)
		cancel()
		if err := wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if s := g.Stats(); s.Wanted != 8 || s.Running != 2 {
			t.Errorf("%d chunks wanted in %d runs, want those of two spans", s.Wanted, s.Running)
		}
		if err := other(); err != nil {
			t.Error(err)
		}
		g.wantIdle()
	})
}

// Transfers together stay below the budget, but one may exceed it.
func TestMemoryBudget(t *testing.T) {
	for _, tt := range []struct {
		budget int64
		most   int
	}{{1, 1}, {3 << 20, 1}, {4 << 20, 2}, {64 << 20, 8}} {
		t.Run(fmt.Sprint(tt.budget), func(t *testing.T) {
			spec := imageSpec{files: []int64{20 << 20}, chunk: 1 << 20, chunks: 1, gap: 100 << 10}
			bubble(t, spec, Config{Memory: tt.budget}, func(t *testing.T, g *rig) {
				var wg sync.WaitGroup
				for i := range int64(20) {
					wg.Go(func() { g.mustRead(1, i<<20, 1) })
				}
				wg.Wait()
				if g.origin.most != tt.most {
					t.Errorf("%d transfers at a time, want %d", g.origin.most, tt.most)
				}
				if s := g.Stats(); s.MemoryPeak > max(tt.budget, 2<<20) {
					t.Errorf("peak of %d bytes, budget %d", s.MemoryPeak, tt.budget)
				}
				g.wantIdle()
			})
		})
	}
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gate{free: 2}
		g.enter(chunk.Backfill)
		g.enter(chunk.Backfill)
		var mu sync.Mutex
		var order []chunk.Class
		for _, c := range []chunk.Class{chunk.Prefetch, chunk.Demand, chunk.Readahead, chunk.Demand} {
			go func() {
				g.enter(c)
				mu.Lock()
				order = append(order, c)
				mu.Unlock()
			}()
			synctest.Wait()
		}
		for range 6 {
			g.leave()
			synctest.Wait()
		}
		want := []chunk.Class{chunk.Demand, chunk.Demand, chunk.Readahead, chunk.Prefetch}
		if !slices.Equal(order, want) || g.free != 2 {
			t.Errorf("order %v and %d free, want %v and 2", order, g.free, want)
		}
	})
}
