package scheduler

const (
	// maxStreams bounds the sequential readers that a Reader can tell apart, of
	// each of its two kinds.
	maxStreams = 1024
	// minWindow is how far a reader that was found sequential is read ahead of
	// at first.
	minWindow = 1 << 20
	// minRead is how much must have been read in order before anything is asked
	// for ahead, so that a few reads that happen to be side by side don't count.
	// From then on a quarter of the window must have been read.
	minRead = 384 << 10
	// slack is how far a request may be from where the last one ended and still
	// continue it: the kernel sends requests of one reader side by side.
	slack = 512 << 10
	// regionBits is the size of the regions of a file by which streams are
	// found, as a power of two. Readers of one file in different regions don't
	// disturb each other.
	regionBits = 22
	// minSteps is how often a file must begin in the span after the one of the
	// file before, for files to be read ahead of in the order of their blob.
	minSteps = 3
)

// A streamKey names a stream by its file and by where it has got to.
type streamKey struct {
	ino    uint64
	region int64
}

// A stream is a reader that goes through a file.
type stream struct {
	next   int64 // the end of the furthest request
	start  int64 // since here, and
	read   int64 // so many bytes were read since read-ahead was last asked for
	window int64 // bytes to be ahead next time
	ahead  int64 // end of what was asked for ahead
}

// streams finds sequential readers of files. It is not safe for concurrent use.
type streams struct {
	limit int64 // largest window
	table lru[streamKey, stream]
}

// observe notes a read of n bytes of a file from off on, and returns the stretch
// that should be asked for ahead of it, empty if none.
func (t *streams) observe(ino uint64, off, n int64) (from, to int64) {
	end := off + n
	key := streamKey{ino, off >> regionBits}
	s := t.table.get(key)
	if s == nil || !s.continues(off) {
		before := streamKey{ino, key.region - 1}
		if b := t.table.get(before); b != nil && b.continues(off) {
			s, key = b, before
		} else {
			// The second request of a sequential reader may come first.
			t.table.put(key, stream{start: off, next: end, read: n, window: minWindow})
			return 0, 0
		}
	}
	s.start = min(s.start, off)
	if end <= s.next {
		s.read = min(s.read+n, s.next-s.start)
		return 0, 0 // a request that came late, or a second look
	}
	s.read += end - max(s.next, off)
	s.next = end
	t.table.rename(key, streamKey{ino, (end - 1) >> regionBits})
	s.window = min(s.window, t.limit)
	if s.read < max(s.window/4, minRead) || s.read < (s.next-s.start)/2 || s.window <= 0 {
		return 0, 0
	}
	from, to = max(s.ahead, s.next), s.next+s.window
	s.start, s.read, s.ahead = s.next, 0, to
	s.window *= 2
	return from, to
}

// continues reports whether a request at off belongs to the stream.
func (s *stream) continues(off int64) bool {
	return off >= s.next-slack && off <= s.next+slack
}

// A crossing is a reader that goes through files in the order in which their
// bytes lie in a blob. It is kept under the last span that it has read.
type crossing struct {
	steps   int    // spans that were entered by beginning a file
	window  int64  // encoded bytes to be ahead next time
	ahead   uint32 // span after the last that was asked for
	trigger uint32 // span from which on the next ones are asked for
}

// crossings finds readers that go through the files of a blob in its order. It
// is not safe for concurrent use.
type crossings struct {
	limit int64
	table lru[uint32, crossing]
}

// observe notes a read that touched the spans from first to last, and whether
// it began a file. If ok, the spans from the returned one on should be asked
// for, window bytes of them; the caller reports with asked which ones it did.
func (t *crossings) observe(first, last uint32, begins bool) (from uint32, window int64, ok bool) {
	key := first
	c := t.table.get(key)
	if c == nil && first > 0 {
		key = first - 1
		c = t.table.get(key)
	}
	if c == nil {
		if begins {
			t.table.put(last, crossing{window: minWindow})
		}
		return 0, 0, false
	}
	if last < key {
		return 0, 0, false // the read ends where its extents lie backwards
	}
	if last > key {
		if begins {
			c.steps++
		}
		t.table.rename(key, last)
	}
	c.window = min(c.window, t.limit)
	if c.steps < minSteps || last < c.trigger || c.window <= 0 {
		return 0, 0, false
	}
	from, window = max(c.ahead, last+1), c.window
	c.window *= 2
	return from, window, true
}

// asked notes that all spans from from up to ahead were asked for, for the
// crossing that has read last.
func (t *crossings) asked(last, from, ahead uint32) {
	if c := t.table.get(last); c != nil {
		c.ahead, c.trigger = ahead, from+(ahead-from)/2
	}
}
