package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestStreams(t *testing.T) {
	const K, M = 1 << 10, 1 << 20
	type read struct{ ino, off, n int64 }
	type stretch struct{ from, to int64 }
	sequential := func(n int64, count int) (reads []read) {
		for i := range int64(count) {
			reads = append(reads, read{1, i * n, n})
		}
		return reads
	}
	tests := []struct {
		name  string
		reads []read
		want  []stretch // what is asked for ahead
	}{
		{"one read", []read{{1, 0, 1 * M}}, nil},
		{"twice the same", []read{{1, 0, 1 * M}, {1, 0, 1 * M}}, nil},
		{"sequential", sequential(128*K, 7), []stretch{{384 * K, 1408 * K}, {1408 * K, 2944 * K}}},
		{"doubles to the limit", sequential(1*M, 6), []stretch{
			{2 * M, 3 * M}, {3 * M, 5 * M}, {5 * M, 8 * M}, {8 * M, 9 * M}, {9 * M, 10 * M},
		}},
		{"out of order", []read{{1, 0, 128 * K}, {1, 256 * K, 128 * K}, {1, 128 * K, 128 * K}, {1, 384 * K, 128 * K}},
			[]stretch{{512 * K, 1536 * K}}},
		{"begins with the second request", []read{{1, 128 * K, 128 * K}, {1, 0, 128 * K}, {1, 256 * K, 128 * K}},
			[]stretch{{384 * K, 1408 * K}}},
		{"backwards", []read{{1, 3 * M, 128 * K}, {1, 2*M + 896*K, 128 * K}, {1, 2*M + 768*K, 128 * K}}, nil},
		{"far apart", []read{{1, 0, 128 * K}, {1, 5 * M, 128 * K}, {1, 1 * M, 128 * K}}, nil},
		{"sparse", []read{{1, 0, 4 * K}, {1, 128 * K, 4 * K}, {1, 256 * K, 4 * K}, {1, 384 * K, 4 * K}, {1, 512 * K, 4 * K}}, nil},
		{"few small reads", sequential(4*K, 10), nil},
		{"other files", []read{{1, 0, 128 * K}, {2, 128 * K, 128 * K}, {3, 256 * K, 128 * K}}, nil},
		{"two readers of one file", []read{{1, 0, 1 * M}, {1, 100 * M, 1 * M}, {1, 1 * M, 1 * M}, {1, 101 * M, 1 * M}},
			[]stretch{{2 * M, 3 * M}, {102 * M, 103 * M}}},
		{"across a region", []read{{1, 4*M - 256*K, 128 * K}, {1, 4 * M, 128 * K}, {1, 4*M - 128*K, 128 * K}, {1, 4*M + 128*K, 128 * K}},
			[]stretch{{4*M + 256*K, 5*M + 256*K}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := streams{limit: 4 * M, table: lru[streamKey, stream]{limit: 16}}
			var got []stretch
			for _, r := range tt.reads {
				if from, to := s.observe(uint64(r.ino), r.off, r.n); from < to {
					got = append(got, stretch{from, to})
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("asked for %v, want %v", got, tt.want)
			}
		})
	}
}

func TestLRU(t *testing.T) {
	l := lru[int, int]{limit: 3}
	for i := range 3 {
		l.put(i, i*10)
	}
	l.get(0)
	l.put(3, 30) // forgets 1
	l.rename(2, 7)
	l.rename(99, 1) // there is none
	l.put(3, 31)
	for k, want := range map[int]int{0: 0, 7: 20, 3: 31, 1: -1, 2: -1} {
		got := -1
		if v := l.get(k); v != nil {
			got = *v
		}
		if got != want {
			t.Errorf("entry %d is %d, want %d", k, got, want)
		}
	}
	l.rename(7, 0) // replaces
	if len(l.items) != 2 || l.order.Len() != 2 || *l.get(0) != 20 {
		t.Errorf("%d items, %d in order", len(l.items), l.order.Len())
	}
}

func TestSequentialReadMakesFewRequests(t *testing.T) {
	const M = 1 << 20
	const size = 256 * M
	const think = 2 * time.Millisecond
	bubble(t, imageSpec{files: []int64{size}, chunk: 256 << 10}, Config{}, func(t *testing.T, g *rig) {
		g.origin.latency = 50 * time.Millisecond
		begin := time.Now()
		for off := int64(0); off < size; off += M {
			g.mustRead(1, off, M)
			// What was read is of no more use to the test, but costs memory.
			for c := off / (256 << 10); c < (off+M)/(256<<10); c++ {
				g.store.evict(g.im.refs[c].ID)
			}
			pause(t.Context(), think) // what the reader does with a MiB
		}
		most := size/(8*M) + 12
		if n := len(g.origin.log()); n > most {
			t.Errorf("%d requests, want at most %d", n, most)
		}
		// Each of the first few windows costs a round trip, no more than that.
		if d, most := time.Since(begin), size/M*think+8*g.origin.latency; d > most {
			t.Errorf("it took %v, want at most %v", d, most)
		}
		t.Logf("256 MiB at 2 ms a MiB and 50 ms latency: %v in %d requests", time.Since(begin), len(g.origin.log()))
		if s := g.Stats(); s.Origin.Bytes > size {
			t.Errorf("%d bytes were fetched of %d", s.Origin.Bytes, size)
		}
	})
}

func TestRandomReadsAreNotReadAhead(t *testing.T) {
	for _, n := range []int64{1, 4 << 10, 128 << 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, imageSpec{files: []int64{256 << 20}, chunk: 256 << 10}, Config{}, func(t *testing.T, g *rig) {
				rng := rand.New(rand.NewPCG(7, 7))
				for range 60 {
					g.mustRead(1, rng.Int64N(256<<20-n)&^4095, n)
				}
				if s := g.Stats(); s.ReadaheadSpans != 0 || s.Origin.Bytes > 2*60<<20 {
					t.Errorf("%d spans read ahead, %d MiB fetched", s.ReadaheadSpans, s.Origin.Bytes>>20)
				}
			})
		})
	}
}

func TestReadaheadCanBeTurnedOff(t *testing.T) {
	bubble(t, imageSpec{files: []int64{16 << 20}, chunk: 256 << 10}, Config{Readahead: -1}, func(t *testing.T, g *rig) {
		for off := int64(0); off < 8<<20; off += 128 << 10 {
			g.mustRead(1, off, 128<<10)
		}
		synctest.Wait()
		if s := g.Stats(); s.ReadaheadSpans != 0 || len(g.origin.log()) != 8 {
			t.Errorf("%d spans read ahead, %d requests", s.ReadaheadSpans, len(g.origin.log()))
		}
	})
}

// denseRead reads many small files in the order of the blob, as tar does, and
// returns how long that took at a latency of 50 ms.
func denseRead(t *testing.T, cfg Config) (d time.Duration, requests int) {
	files := slices.Repeat([]int64{40 << 10}, 3200) // 125 MiB
	bubble(t, imageSpec{files: files, chunk: 256 << 10}, cfg, func(t *testing.T, g *rig) {
		g.origin.latency = 50 * time.Millisecond
		g.origin.rate = 100 << 20
		begin := time.Now()
		for i, n := range files {
			g.mustRead(uint64(i+1), 0, n)
		}
		d, requests = time.Since(begin), len(g.origin.log())
	})
	return d, requests
}

func TestFilesInOrderAreReadAhead(t *testing.T) {
	without, many := denseRead(t, Config{Readahead: -1})
	with, few := denseRead(t, Config{})
	t.Logf("3200 files, 125 MiB, 50 ms, 100 MiB/s: %v in %d requests; without read-ahead %v in %d", with, few, without, many)
	// One pull of it all would take 1.3 s.
	if with > 1500*time.Millisecond || few > 40 {
		t.Errorf("%v in %d requests; without read-ahead %v in %d", with, few, without, many)
	}
}

func TestCrossings(t *testing.T) {
	const M = 1 << 20
	type read struct {
		first, last uint32
		begins      bool
	}
	for _, tt := range []struct {
		name  string
		reads []read
		want  []uint32 // spans from which on the next were asked for
	}{
		{"in one span", []read{{5, 5, true}, {5, 5, true}, {5, 5, true}, {5, 5, true}, {5, 5, true}}, nil},
		{"span by span", []read{{5, 5, true}, {6, 6, true}, {7, 7, true}, {8, 8, true}, {9, 9, true}, {10, 10, true}}, []uint32{9, 11}},
		{"one large file", []read{{5, 5, true}, {6, 6, false}, {7, 7, false}, {8, 8, false}, {9, 9, false}}, nil},
		{"backwards", []read{{9, 9, true}, {8, 8, true}, {7, 7, true}, {6, 6, true}, {5, 5, true}}, nil},
		{"at random", []read{{1, 1, true}, {9, 9, true}, {4, 4, true}, {20, 20, true}, {13, 13, true}}, nil},
		{"two at a time", []read{{0, 0, true}, {50, 50, true}, {1, 1, true}, {51, 51, true}, {2, 2, true}, {52, 52, true}, {3, 3, true}, {53, 53, true}}, []uint32{4, 54}},
		{"extents backwards", []read{{5, 2, true}, {2, 1, true}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := crossings{limit: 4 * M, table: lru[uint32, crossing]{limit: 16}}
			var got []uint32
			for _, r := range tt.reads {
				if from, window, ok := c.observe(r.first, r.last, r.begins); ok {
					got = append(got, from)
					c.asked(r.last, from, from+uint32(2*window/M))
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("asked from %v, want %v", got, tt.want)
			}
		})
	}
}

// The order of spans in a Layout need not be that of a blob.
func TestReadaheadStopsAtTheEndOfTheBlob(t *testing.T) {
	im := newImage(imageSpec{files: slices.Repeat([]int64{span}, 40)})
	for i := range im.spans[10:] {
		im.spans[10+i].Blob = "sha256:07e4"
	}
	im.blobs["sha256:07e4"] = im.blobs[testBlob]
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, im, Config{})
		defer g.end()
		for i := range uint64(10) {
			g.mustRead(i+1, 0, span)
		}
		synctest.Wait()
		for _, q := range g.origin.log() {
			if q.blob != testBlob {
				t.Errorf("%d bytes at %d of %s were read ahead", q.n, q.off, q.blob)
			}
		}
	})
}
