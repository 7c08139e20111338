package image

import (
	"fmt"
	"math"

	"graze/chunk"
)

// check returns an error if t is not what its types' comments say.
func (t *Table) check() error {
	if len(t.Blobs) > MaxBlobs || len(t.Chunks) > MaxChunks || len(t.Spans) > len(t.Chunks) {
		return fmt.Errorf("table of %d blobs, %d spans and %d chunks", len(t.Blobs), len(t.Spans), len(t.Chunks))
	}
	for i, b := range t.Blobs {
		if b == "" || len(b) > MaxBlobName {
			return fmt.Errorf("blob %d has a digest of %d bytes", i, len(b))
		}
	}
	inSpans := 0
	for i := range t.Spans {
		if err := t.checkSpan(uint32(i)); err != nil {
			return fmt.Errorf("span %d: %w", i, err)
		}
		inSpans += int(t.Spans[i].Count)
	}
	// No chunk is in two spans, as each names the one that it is in.
	if inSpans != len(t.Chunks) {
		return fmt.Errorf("spans of %d chunks, but there are %d", inSpans, len(t.Chunks))
	}
	return nil
}

func (t *Table) checkSpan(n uint32) error {
	s := &t.Spans[n]
	if err := s.check(len(t.Blobs)); err != nil {
		return err
	}
	if uint64(s.First)+uint64(s.Count) > uint64(len(t.Chunks)) {
		return fmt.Errorf("has %d chunks from number %d of %d", s.Count, s.First, len(t.Chunks))
	}
	var end int64
	for i := s.First; i < s.First+s.Count; i++ {
		c := &t.Chunks[i]
		if c.Span != n {
			return fmt.Errorf("has chunk %d, which names span %d", i, c.Span)
		}
		var err error
		if end, err = c.checkNext(s, end); err != nil {
			return err
		}
	}
	w := &s.Window
	if w.Len == 0 {
		return nil
	}
	if uint64(w.Chunk) >= uint64(len(t.Chunks)) {
		return fmt.Errorf("has a window in chunk %d of %d", w.Chunk, len(t.Chunks))
	}
	c := &t.Chunks[w.Chunk]
	if uint64(c.Span) >= uint64(len(t.Spans)) {
		return fmt.Errorf("has a window in a chunk of span %d of %d", c.Span, len(t.Spans))
	}
	return w.check(c, &t.Spans[c.Span])
}

// none stands for a row that a view leaves out.
const none = math.MaxUint32

// joined is one table made of those of all layers. Left out are spans of which
// no chunk is visible, unless one holds the window of a span that stays. A span
// that stays keeps all its chunks.
type joined struct {
	layers []*Layer
	shifts []uint32     // by layer: the number of chunks in the layers before
	chunks []uint32     // new numbers, by old numbers counted through all layers
	spans  [][]uint32   // new numbers, by layer and span
	blobs  []chunk.Blob // those that spans need, each once
	blobNo map[chunk.Blob]uint32
}

// join makes one table of those of layers, which were checked, for a view that
// uses the chunks marked in used.
func join(layers []*Layer, shifts []uint32, used []bool) *joined {
	j := &joined{
		layers: layers,
		shifts: shifts,
		chunks: make([]uint32, len(used)),
		blobNo: make(map[chunk.Blob]uint32),
	}
	var spans, chunks uint32
	for i, l := range layers {
		t := &l.Table
		renumbered := make([]uint32, len(t.Spans))
		for n, needed := range neededSpans(t, used[shifts[i]:]) {
			if !needed {
				renumbered[n] = none
				continue
			}
			renumbered[n] = spans
			spans++
			s := &t.Spans[n]
			for c := range s.Count {
				j.chunks[shifts[i]+s.First+c] = chunks
				chunks++
			}
			if b := t.Blobs[s.Blob]; !j.hasBlob(b) {
				j.blobNo[b] = uint32(len(j.blobs))
				j.blobs = append(j.blobs, b)
			}
		}
		j.spans = append(j.spans, renumbered)
	}
	return j
}

func (j *joined) hasBlob(b chunk.Blob) bool {
	_, ok := j.blobNo[b]
	return ok
}

// neededSpans returns which spans of t have to stay for the chunks in used.
func neededSpans(t *Table, used []bool) []bool {
	needed := make([]bool, len(t.Spans))
	for c := range t.Chunks {
		if used[c] {
			needed[t.Chunks[c].Span] = true
		}
	}
	// A window's own span has no window, so it doesn't matter that spans that
	// are marked here may or may not be looked at again.
	for n := range t.Spans {
		if w := t.Spans[n].Window; needed[n] && w.Len > 0 {
			needed[t.Chunks[w.Chunk].Span] = true
		}
	}
	return needed
}

// eachSpan calls f with the spans that stay, in the order of their numbers.
func (j *joined) eachSpan(f func(SpanRow)) {
	for i, l := range j.layers {
		for n, s := range l.Table.Spans {
			if j.spans[i][n] == none {
				continue
			}
			s.Blob = j.blobNo[l.Table.Blobs[s.Blob]]
			s.First = j.chunks[j.shifts[i]+s.First]
			if s.Window.Len > 0 {
				s.Window.Chunk = j.chunks[j.shifts[i]+s.Window.Chunk]
			} else {
				s.Window = WindowRow{}
			}
			f(s)
		}
	}
}

// eachChunk calls f with the chunks that stay, in the order of their numbers.
func (j *joined) eachChunk(f func(ChunkRow)) {
	for i, l := range j.layers {
		for n := range l.Table.Spans {
			s := &l.Table.Spans[n]
			if j.spans[i][n] == none {
				continue
			}
			for _, c := range l.Table.Chunks[s.First : s.First+s.Count] {
				c.Span = j.spans[i][n]
				f(c)
			}
		}
	}
}

// eachPrefetch calls f with the numbers of the spans to prefetch.
func (j *joined) eachPrefetch(f func(uint32)) {
	for i, l := range j.layers {
		for _, n := range j.spans[i][:l.Prefetch] {
			if n != none {
				f(n)
			}
		}
	}
}
