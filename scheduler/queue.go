package scheduler

import (
	"cmp"
	"slices"

	"graze/chunk"
)

const (
	// maxGap is how many encoded bytes that nobody wants a run may cross, to
	// save a request.
	maxGap = 64 << 10
	// maxDecodedGap bounds what is decoded and dropped in such a gap.
	maxDecodedGap = 8 << 20
	// maxRun bounds the encoded bytes of a run that readers may wait for.
	maxRun = 8 << 20
	// maxRunSpans bounds the spans of any run.
	maxRunSpans = 4096
)

// A queue holds the fetches that wait for a slot: by class in order of arrival,
// and by blob in order of position, for the runs.
type queue struct {
	classes [chunk.NumClasses]fifo
	blobs   map[chunk.Blob][]*fetch
}

// A fifo is a list of fetches, linked through them.
type fifo struct {
	head, tail *fetch
	n          int
}

func (l *fifo) push(f *fetch) {
	f.prev, f.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = f
	} else {
		l.head = f
	}
	l.tail = f
	l.n++
}

func (l *fifo) remove(f *fetch) {
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		l.head = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	} else {
		l.tail = f.prev
	}
	f.prev, f.next = nil, nil
	l.n--
}

// counts returns the number of fetches by class.
func (q *queue) counts() (n [chunk.NumClasses]int) {
	for c := range q.classes {
		n[c] = q.classes[c].n
	}
	return n
}

// compare orders spans of a blob by position.
func compare(a, b *chunk.Span) int {
	return cmp.Or(
		cmp.Compare(a.Off, b.Off),
		cmp.Compare(a.Start, b.Start),
		cmp.Compare(a.Parts[0].At, b.Parts[0].At),
	)
}

func compareFetches(a, b *fetch) int { return compare(&a.span, &b.span) }

// push adds f as the last of its class.
func (q *queue) push(f *fetch) {
	q.classes[f.class].push(f)
	list := q.blobs[f.span.Blob]
	i := len(list)
	if i > 0 && compareFetches(list[i-1], f) > 0 {
		i, _ = slices.BinarySearchFunc(list, f, compareFetches)
	}
	q.blobs[f.span.Blob] = slices.Insert(list, i, f)
}

// move makes f the last of class c.
func (q *queue) move(f *fetch, c chunk.Class) {
	q.classes[f.class].remove(f)
	f.class = c
	q.classes[c].push(f)
}

// index returns the position of f in the list of its blob.
func (q *queue) index(f *fetch) int {
	list := q.blobs[f.span.Blob]
	i, _ := slices.BinarySearchFunc(list, f, compareFetches)
	for list[i] != f {
		i++
	}
	return i
}

// remove takes some fetches of one blob out, which are in its order.
func (q *queue) remove(fetches ...*fetch) {
	blob := fetches[0].span.Blob
	list := q.blobs[blob]
	first := q.index(fetches[0])
	kept := list[:first]
	for i, f := range list[first:] {
		if len(fetches) == 0 {
			kept = append(kept, list[first+i:]...)
			break
		}
		if f == fetches[0] {
			q.classes[f.class].remove(f)
			fetches = fetches[1:]
		} else {
			kept = append(kept, f)
		}
	}
	clear(list[len(kept):])
	if len(kept) == 0 {
		delete(q.blobs, blob)
	} else {
		q.blobs[blob] = kept
	}
}

// gather returns first and the fetches behind it that one request should cover
// with it, as far as admit lets them in and, unless most is 0, up to that many
// bytes. It leaves them in the queue.
func (q *queue) gather(first *fetch, most int64, admit func(chunk.Class) bool) []*fetch {
	run := []*fetch{first}
	if first.alone {
		return run
	}
	list := q.blobs[first.span.Blob]
	limit := int64(maxRun)
	if first.class >= chunk.Prefetch {
		limit = 1<<63 - 1
	}
	if most > 0 {
		limit = min(limit, most)
	}
	end := first.span.Off + first.span.Len
	for _, f := range list[q.index(first)+1:] {
		last := run[len(run)-1]
		if f.span.Off-end > maxGap || len(run) == maxRunSpans {
			break
		}
		if !joins(&last.span, &f.span) || f.alone || !admit(f.class) {
			continue
		}
		if max(end, f.span.Off+f.span.Len)-first.span.Off > limit {
			break
		}
		run = append(run, f)
		end = max(end, f.span.Off+f.span.Len)
	}
	return run
}

// joins reports whether span b can be decoded in one pass after span a.
func joins(a, b *chunk.Span) bool {
	switch {
	case a.Codec == chunk.Raw && b.Codec == chunk.Raw && b.Off < a.Off+a.Len:
		return false // nothing is read twice
	case a.Codec == b.Codec, isGzip(a.Codec) && isGzip(b.Codec):
	case isGzip(a.Codec), isGzip(b.Codec), b.Off < a.Off+a.Len:
		return false // the other codecs begin anew with each span
	}
	return b.Start+b.Parts[0].At-(a.Start+a.Decoded()) <= maxDecodedGap
}

// isGzip reports whether spans of codec c are stretches of gzip members.
func isGzip(c chunk.Codec) bool { return c == chunk.Gzip || c == chunk.Deflate }
