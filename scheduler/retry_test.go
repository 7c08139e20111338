package scheduler

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

func TestCauseOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want cause
	}{
		{chunk.ErrUnavailable, unavailable},
		{io.ErrUnexpectedEOF, unavailable},
		{errors.New("connection reset"), unavailable},
		{fmt.Errorf("get: %w", chunk.ErrNotFound), refused},
		{fmt.Errorf("get: %w", chunk.ErrDenied), refused},
		{fmt.Errorf("inflate: %w", chunk.ErrCorrupt), corrupt},
	} {
		if got := causeOf(tt.err); got != tt.want {
			t.Errorf("causeOf(%v) = %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestPause(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   error
		tries int
		least time.Duration
		most  time.Duration
	}{
		{"first", chunk.ErrUnavailable, 1, 100 * time.Millisecond, 300 * time.Millisecond},
		{"third", chunk.ErrUnavailable, 3, 400 * time.Millisecond, 1200 * time.Millisecond},
		{"hundredth", chunk.ErrUnavailable, 100, 2500 * time.Millisecond, 7500 * time.Millisecond},
		{"refused", chunk.ErrDenied, 1, 500 * time.Millisecond, 1500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f failures
			for range tt.tries {
				f.count(tt.err, false)
			}
			if least, most := f.pause(0), f.pause(1); least != tt.least || most != tt.most {
				t.Errorf("pause from %v to %v, want %v to %v", least, most, tt.least, tt.most)
			}
		})
	}
}

// failing makes the first n requests fail with err.
func failing(n int, err error) func(int, originRequest, []byte) ([]byte, error) {
	return func(i int, _ originRequest, p []byte) ([]byte, error) {
		if i < n {
			return nil, err
		}
		return p, nil
	}
}

func TestTries(t *testing.T) {
	for _, tt := range []struct {
		name  string
		class chunk.Class
		err   error
		fails int // of the requests, from the first on
		tries int // requests that are made
		ok    bool
	}{
		{"demand, unavailable ten times", chunk.Demand, chunk.ErrUnavailable, 10, 11, true},
		{"demand, not found twice", chunk.Demand, chunk.ErrNotFound, 2, 3, true},
		{"demand, not found", chunk.Demand, chunk.ErrNotFound, 100, 3, false},
		{"demand, denied", chunk.Demand, chunk.ErrDenied, 100, 3, false},
		{"demand, corrupt answer", chunk.Demand, chunk.ErrCorrupt, 100, 3, false},
		{"prefetch, unavailable twice", chunk.Prefetch, chunk.ErrUnavailable, 2, 3, true},
		{"prefetch, unavailable", chunk.Prefetch, chunk.ErrUnavailable, 100, 3, false},
		{"prefetch, denied", chunk.Prefetch, chunk.ErrDenied, 100, 3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
				g.origin.fault = failing(tt.fails, fmt.Errorf("fake: %w", tt.err))
				var err error
				if tt.class == chunk.Demand {
					err = g.read(t.Context(), 1, 0, 10)
				} else {
					err = g.r.Prefetch(t.Context(), numbers(1), tt.class)
				}
				if tt.ok && err != nil || !tt.ok && !errors.Is(err, tt.err) {
					t.Errorf("got %v", err)
				}
				if n := len(g.origin.log()); n != tt.tries {
					t.Errorf("%d requests, want %d", n, tt.tries)
				}
				g.wantIdle()
				// A failure is not remembered.
				g.origin.fault = nil
				g.mustRead(1, 0, 10)
			})
		})
	}
}

func TestRefusalTakesSeconds(t *testing.T) {
	bubble(t, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.fault = failing(100, chunk.ErrDenied)
		begin := time.Now()
		if err := g.read(t.Context(), 1, 0, 1); err == nil {
			t.Error("no error")
		}
		if d := time.Since(begin); d < time.Second || d > 5*time.Second {
			t.Errorf("gave up after %v", d)
		}
	})
}

func TestOutage(t *testing.T) {
	bubble(t, gapped, Config{}, func(t *testing.T, g *rig) {
		const outage = 2 * time.Minute
		g.origin.fault = func(_ int, q originRequest, p []byte) ([]byte, error) {
			if q.at < outage {
				return nil, fmt.Errorf("%w: connection refused", chunk.ErrUnavailable)
			}
			return p, nil
		}
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range int64(20) {
			wg.Go(func() { g.mustRead(1, i*span, 10) })
		}
		wg.Wait()
		if d := time.Since(begin); d < outage || d > outage+2*maxPause {
			t.Errorf("the reads took %v", d)
		}
		if n := len(g.origin.log()); n > 20*60 {
			t.Errorf("%d requests in the outage", n)
		}
		g.wantIdle()
	})
}

func TestReadDeadline(t *testing.T) {
	bubble(t, imageSpec{files: []int64{span}}, Config{ReadDeadline: time.Minute}, func(t *testing.T, g *rig) {
		cause := errors.New("no route to host")
		g.origin.fault = failing(1<<30, fmt.Errorf("%w: %w", chunk.ErrUnavailable, cause))
		begin := time.Now()
		err := g.read(t.Context(), 1, 0, 10)
		if !errors.Is(err, chunk.ErrUnavailable) || !errors.Is(err, cause) {
			t.Errorf("error %v does not wrap ErrUnavailable and the cause", err)
		}
		if d := time.Since(begin); d != time.Minute {
			t.Errorf("failed after %v", d)
		}
		g.wantIdle()
	})
}

// A failure answers the next reads of the same chunk at once, for a second. Other
// chunks, and later reads, are tried.
func TestFailureIsRememberedForAMoment(t *testing.T) {
	bubble(t, imageSpec{files: []int64{4 * span}}, Config{ReadDeadline: time.Minute}, func(t *testing.T, g *rig) {
		g.origin.fault = failing(1<<30, chunk.ErrUnavailable)
		if err := g.read(t.Context(), 1, 0, 10); !errors.Is(err, chunk.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		begin := time.Now()
		if err := g.read(t.Context(), 1, 20, 10); !errors.Is(err, chunk.ErrUnavailable) || time.Since(begin) != 0 {
			t.Errorf("a read of the same chunk got %v after %v", err, time.Since(begin))
		}
		g.origin.mu.Lock()
		g.origin.fault = nil
		g.origin.mu.Unlock()
		g.mustRead(1, 3*span, 10)
		time.Sleep(recently)
		g.mustRead(1, 0, 10)
		g.wantIdle()
	})
}

func TestDeadlineBeforeRun(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	synctest.Test(t, func(t *testing.T) {
		s, err := New(&fakeStore{}, &fakeOrigin{}, fakeDecoder{im}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Reader(im).ReadAt(t.Context(), 1, make([]byte, 1), 0); !errors.Is(err, chunk.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	})
}

func TestStall(t *testing.T) {
	bubble(t, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Hour
		begin := time.Now()
		time.AfterFunc(40*time.Second, func() {
			g.origin.mu.Lock()
			defer g.origin.mu.Unlock()
			g.origin.latency = 0
		})
		g.mustRead(1, 0, 10)
		if d := time.Since(begin); d < time.Minute || d > 65*time.Second {
			t.Errorf("the read took %v", d)
		}
		if s := g.Stats(); s.Unavailable != 2 || s.Origin.Errors != 2 || s.Retries != 2 {
			t.Errorf("%d failures, %d errors, %d retries, want 2", s.Unavailable, s.Origin.Errors, s.Retries)
		}
	})
}

// After a broken transfer only the spans that did not come are asked for.
func TestRetryAsksForTheRest(t *testing.T) {
	for _, tt := range []struct {
		name string
		cut  int // bytes that the first answer has
		next [2]int64
	}{
		{"nothing came", 0, [2]int64{0, 8 * span}},
		{"within the first span", 100, [2]int64{0, 8 * span}},
		{"at the end of a span", 3 * span, [2]int64{3 * span, 5 * span}},
		{"within a span", 3*span + 5000, [2]int64{3 * span, 5 * span}},
		{"within the last", 8*span - 1, [2]int64{7 * span, span}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var infos []RunInfo
			cfg := Config{Trace: Trace{RunDone: func(i RunInfo) { infos = append(infos, i) }}}
			bubble(t, imageSpec{files: []int64{8 * span}}, cfg, func(t *testing.T, g *rig) {
				g.origin.fault = func(i int, _ originRequest, p []byte) ([]byte, error) {
					if i == 0 {
						p = p[:tt.cut]
					}
					return p, nil
				}
				g.mustRead(1, 0, 8*span)
				g.wantRequests([2]int64{0, 8 * span}, tt.next)
				g.wantIdle()
				if len(infos) != 2 || !errors.Is(infos[0].Err, io.ErrUnexpectedEOF) || infos[0].Retried == 0 || infos[1].Err != nil {
					t.Errorf("trace: %+v", infos)
				}
			})
		})
	}
}

// chunkAt returns where chunk c begins in a request for [off, off+n), -1 if it
// is not in it.
func chunkAt(q originRequest, c int64) int64 {
	if at := c*4096 - q.off; at >= 0 && at < q.n {
		return at
	}
	return -1
}

func TestCorruptChunkAmongGoodOnes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bytes []byte // what stands in the place of the chunk's first bytes
		times int    // how often it does
		ok    bool
	}{
		{"bad digest once", []byte("x"), 1, true},
		{"bad digest twice", []byte("x"), 2, true},
		{"bad digest", []byte("x"), 100, false},
		{"decoder fails once", poison, 1, true},
		{"decoder fails", poison, 100, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var reported int
			cfg := Config{Trace: Trace{Corrupt: func(chunk.Blob, chunk.Ref, error) { reported++ }}}
			bubble(t, imageSpec{files: []int64{8 * span}}, cfg, func(t *testing.T, g *rig) {
				const bad = 13         // in the fourth span
				var times atomic.Int32 // requests side by side may cover it
				times.Store(int32(tt.times))
				g.origin.fault = func(_ int, q originRequest, p []byte) ([]byte, error) {
					if at := chunkAt(q, bad); at >= 0 && times.Add(-1) >= 0 {
						copy(p[at:], tt.bytes)
					}
					return p, nil
				}
				var wg sync.WaitGroup
				for i := range int64(32) {
					wg.Go(func() {
						err := g.read(t.Context(), 1, i*4096, 4096)
						if i == bad && !tt.ok {
							if !errors.Is(err, chunk.ErrCorrupt) {
								t.Errorf("the bad chunk: %v", err)
							}
						} else if err != nil && !(i/4 == bad/4 && bytes.Equal(tt.bytes, poison)) {
							t.Errorf("chunk %d: %v", i, err)
						}
					})
				}
				wg.Wait()
				g.wantIdle()
				if tt.times < 100 {
					return
				}
				if n := len(g.origin.log()); n > 8+4 {
					t.Errorf("%d requests", n)
				}
				if s := g.Stats(); s.Corrupt != 3 || int(s.CorruptChunks) != reported {
					t.Errorf("%d spans and %d chunks were corrupt, %d reported", s.Corrupt, s.CorruptChunks, reported)
				}
				if g.store.Has(g.im.refs[bad].ID) {
					t.Error("the bad chunk is in the store")
				}
			})
		})
	}
}

// lazyDecoder leaves chunks out without an error.
type lazyDecoder struct {
	fakeDecoder
	skip func(span, part int) bool
}

func (d lazyDecoder) Decode(src io.Reader, run []chunk.Span, window []byte, emit func(span, part int, p []byte) error) error {
	return d.fakeDecoder.Decode(src, run, window, func(span, part int, p []byte) error {
		if d.skip(span, part) {
			return nil
		}
		return emit(span, part, p)
	})
}

func TestDecoderThatLeavesChunksOut(t *testing.T) {
	bubble(t, imageSpec{files: []int64{4 * span}}, Config{}, func(t *testing.T, g *rig) {
		g.Scheduler.dec = lazyDecoder{fakeDecoder{g.im}, func(_, part int) bool { return part == 1 }}
		err := g.read(t.Context(), 1, 0, 4*span)
		if !errors.Is(err, chunk.ErrCorrupt) || !strings.Contains(err.Error(), "less than its chunks") {
			t.Errorf("got %v", err)
		}
		g.wantIdle()
	})
}

// An outage of one registry does not hold up reads from another.
func TestSlotsAreFreeDuringPauses(t *testing.T) {
	bubble(t, gapped, Config{Runs: 1}, func(t *testing.T, g *rig) {
		g.origin.fault = func(_ int, q originRequest, p []byte) ([]byte, error) {
			if q.off < 20*gappedSpan && q.at < time.Minute {
				return nil, chunk.ErrUnavailable
			}
			return p, nil
		}
		wait := g.prefetch(t.Context(), chunk.Demand, slices.Collect(numbers(20))...)
		begin := time.Now()
		g.mustRead(1, 30*span, 1)
		if d := time.Since(begin); d > time.Second {
			t.Errorf("the other read took %v", d)
		}
		if err := wait(); err != nil {
			t.Error(err)
		}
	})
}

// A window that can't be had fails only the spans that need it.
func TestWindowFailures(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		ok   bool
	}{
		{"refused", chunk.ErrNotFound, false},
		{"unavailable", chunk.ErrUnavailable, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := gapped
			spec.codec, spec.window = chunk.Deflate, true
			bubble(t, spec, Config{Runs: 1}, func(t *testing.T, g *rig) {
				fails := 0
				g.origin.fault = func(_ int, q originRequest, p []byte) ([]byte, error) {
					if q.blob == windowBlob && q.off == 64 && (!tt.ok || fails < 5) {
						fails++
						return nil, tt.err
					}
					return p, nil
				}
				var wg sync.WaitGroup
				for i := range int64(12) {
					wg.Go(func() {
						err := g.read(t.Context(), 1, i*span, 1)
						if bad := i/4 == 1 && !tt.ok; bad && !errors.Is(err, tt.err) || !bad && err != nil {
							t.Errorf("span %d: %v", i, err)
						}
					})
				}
				wg.Wait()
				g.wantIdle()
			})
		})
	}
}

// A run whose first window is missing goes on from the next span.
func TestRunGoesOnWithoutItsFirstWindow(t *testing.T) {
	spec := imageSpec{files: []int64{12 * span}, codec: chunk.Deflate, window: true}
	bubble(t, spec, Config{}, func(t *testing.T, g *rig) {
		g.origin.fault = func(_ int, q originRequest, p []byte) ([]byte, error) {
			if q.blob == windowBlob && q.off == 64 {
				return nil, chunk.ErrNotFound
			}
			return p, nil
		}
		err := g.r.Prefetch(t.Context(), slices.Values([]uint32{4, 5, 6, 7, 8, 9, 10, 11}), chunk.Prefetch)
		if !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("got %v", err)
		}
		for i, ref := range g.im.refs {
			if got, want := g.store.Has(ref.ID), i >= 8*4; got != want {
				t.Errorf("the store has chunk %d: %t, want %t", i, got, want)
			}
		}
		g.wantIdle()
	})
}

// An answer that is bad as a whole is the fault of no single span.
func TestBadAnswerForARun(t *testing.T) {
	bubble(t, imageSpec{files: []int64{8 * span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.fault = failing(100, fmt.Errorf("%w: wrong Content-Range", chunk.ErrCorrupt))
		if err := g.read(t.Context(), 1, 0, 8*span); !errors.Is(err, chunk.ErrCorrupt) {
			t.Errorf("got %v", err)
		}
		pause(t.Context(), time.Hour)
		if n := len(g.origin.log()); n > 3 {
			t.Errorf("%d requests", n)
		}
		g.wantIdle()
	})
}
