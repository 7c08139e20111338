package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"

	"graze/chunk"
)

// testFetch makes a fetch of a span with one part that covers it.
func testFetch(blob chunk.Blob, off, n int64, class chunk.Class) *fetch {
	return &fetch{
		class: class,
		span: chunk.Span{
			Blob: blob, Off: off, Len: n, Start: off, Codec: chunk.Raw,
			Parts: []chunk.Part{{Ref: chunk.Ref{Size: int32(n)}}},
		},
	}
}

func TestGather(t *testing.T) {
	const K, M = 1 << 10, 1 << 20
	type row struct {
		off, n int64
		edit   func(*fetch)
	}
	class := func(c chunk.Class) func(*fetch) { return func(f *fetch) { f.class = c } }
	codec := func(c chunk.Codec) func(*fetch) { return func(f *fetch) { f.span.Codec = c } }
	tests := []struct {
		name string
		rows []row // the first is where the run begins
		want int   // how many of them are in the run
	}{
		{"alone", []row{{0, M, nil}}, 1},
		{"neighbours", []row{{0, M, nil}, {M, M, nil}, {2 * M, M, nil}}, 3},
		{"a gap of 64 KiB", []row{{0, M, nil}, {M + 64*K, M, nil}}, 2},
		{"a larger gap", []row{{0, M, nil}, {M + 64*K + 1, M, nil}}, 1},
		{"what lies before", []row{{M, M, nil}, {0, M, nil}}, 1},
		{"8 MiB in all", []row{{0, 4 * M, nil}, {4 * M, 4 * M, nil}}, 2},
		{"more than 8 MiB", []row{{0, 4 * M, nil}, {4 * M, 4*M + 1, nil}}, 1},
		{"one span of more than 8 MiB", []row{{0, 9 * M, nil}}, 1},
		{"prefetch of more than 8 MiB", []row{{0, 9 * M, class(chunk.Prefetch)}, {9 * M, 9 * M, class(chunk.Prefetch)}}, 2},
		{"demand behind prefetch", []row{{0, 9 * M, class(chunk.Prefetch)}, {9 * M, 9 * M, nil}}, 2},
		{"read-ahead behind demand", []row{{0, M, nil}, {M, M, class(chunk.Readahead)}}, 2},
		{"a class that has no slot", []row{{0, M, nil}, {M, M, class(chunk.Backfill)}}, 1},
		{"overlap", []row{{0, M, codec(chunk.Gzip)}, {M - 10, M, codec(chunk.Gzip)}}, 2},
		{"overlap of raw spans", []row{{0, M, nil}, {M - 10, M, nil}}, 1},
		{"within another", []row{{0, M, codec(chunk.Gzip)}, {10, 20, codec(chunk.Gzip)}, {M, M, codec(chunk.Gzip)}}, 3},
		{"the same place, later in it", []row{{0, M, codec(chunk.Gzip)}, {0, M, func(f *fetch) {
			f.span.Codec, f.span.Parts[0].At = chunk.Gzip, 3*M
		}}}, 2},
		{"gzip and deflate", []row{{0, M, codec(chunk.Gzip)}, {M, M, codec(chunk.Deflate)}}, 2},
		{"raw and gzip", []row{{0, M, nil}, {M, M, codec(chunk.Gzip)}}, 1},
		{"zstd and deflate", []row{{0, M, codec(chunk.Zstd)}, {M, M, codec(chunk.Deflate)}}, 1},
		{"raw, zstd and LZ4", []row{{0, M, nil}, {M, M, codec(chunk.Zstd)}, {2 * M, M, codec(chunk.LZ4)}}, 3},
		{"overlap of raw and zstd", []row{{0, M, nil}, {M - 10, M, codec(chunk.Zstd)}}, 1},
		{"begins with a suspect", []row{{0, M, func(f *fetch) { f.alone = true }}, {M, M, nil}}, 1},
		{"meets a suspect", []row{{0, M, nil}, {M, M, func(f *fetch) { f.alone = true }}}, 1},
		{"small gap that decodes to much", []row{{0, M, nil}, {M + K, M, func(f *fetch) { f.span.Start = 64 * M }}}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := queue{blobs: make(map[chunk.Blob][]*fetch)}
			var all []*fetch
			for _, r := range tt.rows {
				f := testFetch("a", r.off, r.n, chunk.Demand)
				if r.edit != nil {
					r.edit(f)
				}
				all = append(all, f)
			}
			for _, f := range slices.Backward(all) {
				q.push(f)
			}
			q.push(testFetch("b", tt.rows[0].off+tt.rows[0].n, M, chunk.Demand))
			got := q.gather(all[0], 0, func(c chunk.Class) bool { return c < chunk.Backfill })
			if !slices.Equal(got, all[:tt.want]) {
				t.Errorf("run of %d spans, want %d", len(got), tt.want)
			}
			q.remove(got...)
			if n := q.counts(); n[0]+n[1]+n[2]+n[3] != len(all)-len(got)+1 {
				t.Errorf("%v left in the queue", n)
			}
		})
	}
}

// The queue's two orders stay the same set, whatever is done to it.
func TestQueueAtRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	q := queue{blobs: make(map[chunk.Blob][]*fetch)}
	var in []*fetch
	for range 5000 {
		switch op := rng.IntN(10); {
		case op < 5:
			f := testFetch(chunk.Blob('a'+rune(rng.IntN(3))), int64(rng.IntN(50))<<15, 1<<15, chunk.Class(rng.IntN(chunk.NumClasses)))
			q.push(f)
			in = append(in, f)
		case len(in) == 0:
		case op < 7:
			q.move(in[rng.IntN(len(in))], chunk.Class(rng.IntN(chunk.NumClasses)))
		default:
			run := q.gather(in[rng.IntN(len(in))], 0, func(c chunk.Class) bool { return rng.IntN(4) > 0 })
			q.remove(run...)
			in = slices.DeleteFunc(in, func(f *fetch) bool { return slices.Contains(run, f) })
		}
		checkQueue(t, &q, in)
		if t.Failed() {
			return
		}
	}
}

func checkQueue(t *testing.T, q *queue, in []*fetch) {
	t.Helper()
	listed := 0
	for c := range q.classes {
		n := 0
		for f := q.classes[c].head; f != nil; f = f.next {
			if f.class != chunk.Class(c) || !slices.Contains(in, f) {
				t.Errorf("class %d lists a fetch of class %d", c, f.class)
			}
			n++
		}
		if n != q.classes[c].n {
			t.Errorf("class %d lists %d fetches and counts %d", c, n, q.classes[c].n)
		}
		listed += n
	}
	sorted := 0
	for _, list := range q.blobs {
		if len(list) == 0 || !slices.IsSortedFunc(list, compareFetches) {
			t.Error("the list of a blob is empty or out of order")
		}
		sorted += len(list)
	}
	if listed != len(in) || sorted != len(in) {
		t.Errorf("%d by class, %d by blob, want %d", listed, sorted, len(in))
	}
}
