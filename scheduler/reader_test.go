package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

const span = 16 << 10 // encoded bytes of a span of the default image

func TestReadAt(t *testing.T) {
	tests := []struct {
		name     string
		ino      uint64
		off, n   int64
		requests [][2]int64
	}{
		{"one byte", 1, 0, 1, [][2]int64{{0, span}}},
		{"a whole span", 1, span, span, [][2]int64{{span, span}}},
		{"across spans", 1, span - 1, 2, [][2]int64{{0, 2 * span}}},
		{"small file in a pack", 3, 0, 10, [][2]int64{{6 * span, span}}},
		{"end of the file", 1, 6*span - 5, 5, [][2]int64{{5 * span, span}}},
		{"nothing", 1, 0, 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, imageSpec{files: []int64{6 * span, 100, 50, 3000, span}}, Config{}, func(t *testing.T, g *rig) {
				g.mustRead(tt.ino, tt.off, tt.n)
				g.wantRequests(tt.requests...)
				g.mustRead(tt.ino, tt.off, tt.n) // now from the store
				g.wantRequests(tt.requests...)
				g.wantIdle()
			})
		})
	}
}

func TestReadAtRefusesBadOffsets(t *testing.T) {
	bubble(t, imageSpec{files: []int64{10}}, Config{}, func(t *testing.T, g *rig) {
		for _, off := range []int64{-1, 1<<63 - 1} {
			if n, err := g.r.ReadAt(t.Context(), 1, make([]byte, 10), off); err == nil || n != 0 {
				t.Errorf("read at %d: %d, %v", off, n, err)
			}
		}
	})
}

// extents is a Layout with one file.
type extents struct {
	*fakeImage
	list []chunk.Extent
}

func (l extents) Extents(_ uint64, off, n int64) iter.Seq[chunk.Extent] {
	return func(yield func(chunk.Extent) bool) {
		for _, e := range l.list {
			if e.Off+e.Len > off && e.Off < off+n && !yield(e) {
				return
			}
		}
	}
}

func TestHoles(t *testing.T) {
	bubble(t, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		const size = 20 << 10
		l := extents{g.im, []chunk.Extent{
			{Off: 1000, Len: 500, Chunk: 0, At: 100},
			{Off: 1500, Len: 4096, Chunk: 2},
			{Off: 10000, Len: 1, Chunk: 1, At: 4095},
		}}
		want := make([]byte, size)
		for _, e := range l.list {
			copy(want[e.Off:e.Off+e.Len], g.im.content[int64(e.Chunk)*4096+int64(e.At):])
		}
		r := g.Reader(l)
		for off := int64(0); off < size; off += 700 {
			for _, n := range []int64{1, 333, 6000, size - off} {
				p := bytes.Repeat([]byte{0xee}, int(min(n, size-off)))
				if _, err := r.ReadAt(t.Context(), 1, p, off); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(p, want[off:off+int64(len(p))]) {
					t.Errorf("read of %d bytes at %d returned other bytes", len(p), off)
				}
			}
		}
	})
}

func TestHostileExtents(t *testing.T) {
	tests := []struct {
		name string
		e    chunk.Extent
	}{
		{"ends behind its chunk", chunk.Extent{Off: 0, Len: 4097, Chunk: 0}},
		{"starts behind its chunk", chunk.Extent{Off: 0, Len: 1, Chunk: 0, At: 4096}},
		{"negative", chunk.Extent{Off: 0, Len: 10, Chunk: 0, At: -5}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
				_, err := g.Reader(extents{g.im, []chunk.Extent{tt.e}}).ReadAt(t.Context(), 1, make([]byte, 8000), 0)
				if !errors.Is(err, chunk.ErrCorrupt) {
					t.Errorf("error %v does not wrap ErrCorrupt", err)
				}
			})
		})
	}
}

func TestConcurrentReadersShareOneRequest(t *testing.T) {
	bubble(t, imageSpec{files: []int64{4 * span}}, Config{}, func(t *testing.T, g *rig) {
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { g.mustRead(1, span+int64(i), 100) })
		}
		wg.Wait()
		g.wantRequests([2]int64{span, span})
		g.wantIdle()
		if s := g.Stats(); s.Misses != 200 || s.Wait.Count != 200 || s.MissBytes != 200*100 || s.Hits != 0 {
			t.Errorf("%d misses of %d bytes, %d waits, %d hits", s.Misses, s.MissBytes, s.Wait.Count, s.Hits)
		}
	})
}

// A reader waits for its own chunks, not for the end of the transfer.
func TestReaderIsWokenEarly(t *testing.T) {
	bubble(t, imageSpec{files: []int64{16 * span}, chunk: 64 << 10, chunks: 1}, Config{}, func(t *testing.T, g *rig) {
		g.origin.rate = 64 << 10
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.r.Prefetch(ctx, numbers(4), chunk.Prefetch)
		synctest.Wait()
		begin := time.Now()
		g.mustRead(1, 0, 10)
		if d := time.Since(begin); d > 1200*time.Millisecond {
			t.Errorf("the first chunk took %v, as long as the transfer", d)
		}
		g.wantRequests([2]int64{0, 16 * span})
	})
}

func numbers(n uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

func TestReaderThatLeavesFailsNoOther(t *testing.T) {
	bubble(t, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Second
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("interrupted")
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := g.read(ctx, 1, 0, 10); err != why {
				t.Errorf("the reader that left got %v", err)
			}
		})
		wg.Go(func() { g.mustRead(1, 0, 10) })
		synctest.Wait()
		cancel(why)
		wg.Wait()
		g.wantRequests([2]int64{0, span})
		g.wantIdle()
	})
}

func TestLastReaderStopsTheTransfer(t *testing.T) {
	bubble(t, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := g.read(ctx, 1, 0, 10); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		begin := time.Now()
		cancel()
		wg.Wait()
		g.wantIdle()
		if d := time.Since(begin); d != 0 {
			t.Errorf("the transfer went on for %v", d)
		}
		// What is being stopped is no use to the next reader.
		g.origin.latency = 0
		g.mustRead(1, 0, 10)
		g.wantRequests([2]int64{0, span}, [2]int64{0, span})
	})
}

func TestBufferIsNotTouchedAfterReturn(t *testing.T) {
	bubble(t, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		p := make([]byte, 10)
		var wg sync.WaitGroup
		wg.Go(func() { g.mustRead(1, 0, 10) })
		if _, err := g.r.ReadAt(ctx, 1, p, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		clear(p)
		wg.Wait()
		if !bytes.Equal(p, make([]byte, 10)) {
			t.Error("the buffer was written to after ReadAt returned")
		}
	})
}

func TestFullStoreServesFromMemory(t *testing.T) {
	var failed int
	cfg := Config{Trace: Trace{StoreFailed: func(_ chunk.Ref, err error) {
		if errors.Is(err, chunk.ErrFull) {
			failed++
		}
	}}}
	bubble(t, imageSpec{files: []int64{2 * span}}, cfg, func(t *testing.T, g *rig) {
		g.store.full = true
		for range 2 {
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() { g.mustRead(1, int64(i), 2*span-20) })
			}
			wg.Wait()
		}
		g.wantRequests([2]int64{0, 2 * span}, [2]int64{0, 2 * span})
		if s := g.Stats(); s.StoreErrors != 16 || failed != 16 {
			t.Errorf("%d store errors, %d calls of the hook, want 16", s.StoreErrors, failed)
		}
	})
}

// evicting says some times that it has a chunk that it has just evicted.
type evicting struct {
	*fakeStore
	times int
}

func (s *evicting) Has(id chunk.ID) bool {
	if s.times > 0 {
		s.times--
		return true
	}
	return s.fakeStore.Has(id)
}

func TestChunkEvictedBeforeItIsRead(t *testing.T) {
	for _, tt := range []struct {
		name  string
		times int
		ok    bool
	}{{"twice", 2, true}, {"for ever", 1000, false}} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, imageSpec{files: []int64{100}}, Config{}, func(t *testing.T, g *rig) {
				g.Scheduler.store = &evicting{g.store, tt.times}
				err := g.read(t.Context(), 1, 0, 100)
				if tt.ok != (err == nil) || err != nil && !errors.Is(err, chunk.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
				g.wantIdle()
			})
		})
	}
}

func TestRunPhases(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	synctest.Test(t, func(t *testing.T) {
		store := &fakeStore{chunks: make(map[chunk.ID][]byte)}
		s, err := New(store, &fakeOrigin{blobs: im.blobs, begin: time.Now()}, fakeDecoder{im}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := s.Reader(im)
		early := make(chan error, 1)
		go func() {
			_, err := r.ReadAt(t.Context(), 1, make([]byte, 10), 0)
			early <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		if err := <-early; err != nil {
			t.Errorf("a read from before Run got %v", err)
		}
		if err := s.Run(ctx); err == nil {
			t.Error("a second Run returned no error")
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
		if _, err := r.ReadAt(t.Context(), 1, make([]byte, 10), 0); err != nil {
			t.Errorf("a hit after Run got %v", err)
		}
		store.evict(im.refs[0].ID)
		if _, err := r.ReadAt(t.Context(), 1, make([]byte, 10), 0); !errors.Is(err, chunk.ErrUnavailable) {
			t.Errorf("a miss after Run got %v", err)
		}
		if err := r.Prefetch(t.Context(), numbers(1), chunk.Prefetch); !errors.Is(err, chunk.ErrUnavailable) {
			t.Errorf("Prefetch after Run got %v", err)
		}
	})
}

func TestRunFailsItsReaders(t *testing.T) {
	bubble(t, imageSpec{files: []int64{40 * span}, gap: 100 << 10}, Config{Runs: 2}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Hour
		var wg sync.WaitGroup
		for i := range int64(40) { // more than there are slots
			wg.Go(func() {
				if err := g.read(t.Context(), 1, i*span, 10); !errors.Is(err, chunk.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		g.end()
		wg.Wait()
		g.wantIdle()
	})
}

func TestConfig(t *testing.T) {
	im := newImage(imageSpec{files: []int64{1}})
	store, origin, dec := &fakeStore{}, &fakeOrigin{}, fakeDecoder{im}
	for _, tt := range []struct {
		name string
		f    func() (*Scheduler, error)
		err  string
	}{
		{"zero", func() (*Scheduler, error) { return New(store, origin, dec, Config{}) }, ""},
		{"negative", func() (*Scheduler, error) { return New(store, origin, dec, Config{Runs: -1}) }, "negative"},
		{"no store", func() (*Scheduler, error) { return New(nil, origin, dec, Config{}) }, "must be set"},
		{"no origin", func() (*Scheduler, error) { return New(store, nil, dec, Config{}) }, "must be set"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.f()
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("New: %v", err)
			}
		})
	}
}

// A hit costs no allocation beyond what the layout's iterator does.
func TestHitsDoNotAllocate(t *testing.T) {
	im := newImage(imageSpec{files: []int64{64 * span}})
	g := newRig(t, im, Config{})
	defer g.end()
	g.origin.latency = 0
	if err := g.r.Prefetch(t.Context(), numbers(64), chunk.Prefetch); err != nil {
		t.Fatal(err)
	}
	r := g.Reader(cachedExtents{im, im.Extents(1, 5*span, 8000)})
	p := make([]byte, 8000)
	ctx := t.Context()
	allocs := testing.AllocsPerRun(1000, func() {
		if _, err := r.ReadAt(ctx, 1, p, 5*span); err != nil {
			t.Fatal(err)
		}
	})
	// One is the variable that the fake's iterator closes over, if it escapes.
	if allocs >= 1 {
		t.Errorf("%v allocations a read", allocs)
	}
	if !bytes.Equal(p, im.bytes(1, 5*span, 8000)) {
		t.Error("other bytes")
	}
}

// cachedExtents hands out one iterator, made before.
type cachedExtents struct {
	*fakeImage
	seq iter.Seq[chunk.Extent]
}

func (l cachedExtents) Extents(uint64, int64, int64) iter.Seq[chunk.Extent] { return l.seq }

func BenchmarkReadAt(b *testing.B) {
	im := newImage(imageSpec{files: []int64{64 << 20}, chunk: 256 << 10})
	for _, size := range []int64{4 << 10, 128 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("size=%dKiB/hit", size>>10), func(b *testing.B) {
			store := &fakeStore{chunks: make(map[chunk.ID][]byte)}
			s, err := New(store, &fakeOrigin{}, fakeDecoder{im}, Config{})
			if err != nil {
				b.Fatal(err)
			}
			for i, ref := range im.refs {
				store.chunks[ref.ID] = im.content[i*im.size:][:ref.Size]
			}
			r := s.Reader(im)
			p := make([]byte, size)
			b.SetBytes(size)
			b.ReportAllocs()
			for i := int64(0); b.Loop(); i++ {
				if _, err := r.ReadAt(b.Context(), 1, p, i*size%(64<<20)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
