package chunkstore

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"graze/chunk"
)

// errInUse means that nothing is left that could be evicted.
var errInUse = fmt.Errorf("%w: all that could make room is pinned or being read", chunk.ErrFull)

// stuck is the state in which nothing could be evicted. As long as it lasts, it
// is no use to look again.
type stuck struct {
	yes  bool
	used int64
	pins uint64
}

func (s *Store) stuckNow() stuck {
	_, changes := s.pins.state()
	return stuck{true, s.used.Load(), changes}
}

// evictAhead makes room for a segment, so that Put need not.
func (s *Store) evictAhead() {
	if err := s.makeRoom(s.usable - s.segSize); err != nil && !errors.Is(err, errInUse) && !errors.Is(err, errClosed) {
		s.log.Error("eviction from the chunk store", "path", s.dir, "err", err)
	}
}

// makeRoom evicts segments until at most target bytes are used. Its errors wrap
// chunk.ErrFull.
func (s *Store) makeRoom(target int64) error {
	s.evictMu.Lock()
	defer s.evictMu.Unlock()
	if s.used.Load() <= target {
		return nil // another has made it
	}
	if s.keepAll || s.stuck == s.stuckNow() {
		return errInUse
	}
	c := s.survey()
	for progress := false; s.used.Load() > target; {
		if s.closed.Load() {
			return errClosed
		}
		g := c.next(&s.round)
		if g == nil && !progress {
			s.stuck = s.stuckNow()
			return errInUse
		}
		if g == nil {
			// What there was no room to copy before may fit now.
			c, progress = s.survey(), false
			continue
		}
		gone, err := s.evict(g)
		if err != nil {
			return fmt.Errorf("%w: evict %s: %w", chunk.ErrFull, g.f.Name(), err)
		}
		progress = progress || gone
	}
	return nil
}

// A tally says how many bytes of a segment eviction would have to copy.
type tally struct {
	g           *segment
	size        int64 // of all records
	pinned, hot int64
}

// reclaimed returns how many bytes the eviction of the segment frees.
func (t *tally) reclaimed() int64 { return t.size - t.pinned - t.hot }

// candidates are the segments in the order in which to consider them.
type candidates struct {
	queue  []*tally // oldest first
	passed []*tally // considered, and mostly in use
	fresh  []*tally // being filled with new chunks, which nobody had time to read
}

// survey looks at all segments as they are now.
func (s *Store) survey() *candidates {
	segs := *s.segs.Load()
	tallies := make(map[uint32]*tally, len(segs))
	c := &candidates{}
	for num, g := range segs {
		t := &tally{g: g, size: g.size.Load() - fileHeaderSize}
		tallies[num] = t
		if g.fresh.Load() {
			c.fresh = append(c.fresh, t)
		} else {
			c.queue = append(c.queue, t)
		}
	}
	s.index.each(func(id chunk.ID, l loc) {
		t := tallies[l.seg]
		switch {
		case t == nil: // created since
		case s.pins.has(id):
			t.pinned += recordSize(l.size)
		case t.g.isHot(l.off):
			t.hot += recordSize(l.size)
		}
	})
	slices.SortFunc(c.queue, func(a, b *tally) int {
		return cmp.Or(cmp.Compare(a.g.round.Load(), b.g.round.Load()), cmp.Compare(a.g.num, b.g.num))
	})
	return c
}

// next returns the segment to evict next, or nil. It is the oldest of which at
// least a quarter becomes free, so that no more than three bytes are copied for
// one. Those that it passes over go to the end of the order, and their chunks no
// longer count as read. If there is none left, it is the one that frees
// most, and last of all the one that new chunks go to.
func (c *candidates) next(round *atomic.Uint64) *segment {
	for len(c.queue) > 0 {
		t := c.queue[0]
		c.queue = c.queue[1:]
		t.g.round.Store(round.Add(1))
		if t.reclaimed() > 0 && t.reclaimed() >= t.size/4 {
			return t.g
		}
		t.g.cool()
		t.hot = 0
		c.passed = append(c.passed, t)
	}
	for _, rest := range []*[]*tally{&c.passed, &c.fresh} {
		slices.SortFunc(*rest, func(a, b *tally) int { return cmp.Compare(a.reclaimed(), b.reclaimed()) })
		if n := len(*rest); n > 0 && (*rest)[n-1].reclaimed() > 0 {
			best := (*rest)[n-1]
			*rest = (*rest)[:n-1]
			return best.g
		}
	}
	return nil
}

// A record is a chunk and where it lies.
type record struct {
	id  chunk.ID
	loc loc
}

// evict copies on what is in use of g, drops the rest, and removes the file. If
// pinned chunks can't be copied for lack of room, the file stays with them.
func (s *Store) evict(g *segment) (gone bool, err error) {
	s.seal(g)
	limit := s.limit
	if used := s.used.Load(); used > limit {
		// The limit has shrunk. To get below it, we first go further beyond.
		limit = used + g.size.Load()
	}
	var records []record
	s.index.each(func(id chunk.ID, l loc) {
		if l.seg == g.num {
			records = append(records, record{id, l})
		}
	})
	slices.SortFunc(records, func(a, b record) int { return a.loc.compare(b.loc) })

	var buf []byte
	var carried, stays bool
	for _, r := range records {
		if !g.isHot(r.loc.off) && s.evictChunk(r) {
			continue
		}
		buf = slices.Grow(buf[:0], int(r.loc.size))[:r.loc.size]
		err := s.carry(g, r, buf, limit)
		if err == nil {
			carried = true
			continue
		}
		if errors.Is(err, errClosed) {
			return false, err
		}
		// There is no room for a copy. That the chunk was read does not save
		// it then; a pin does.
		if !s.evictChunk(r) && s.lies(r) {
			stays = true
		}
	}
	if carried {
		// The copies must not be lost in a power cut that the originals would
		// have survived.
		if err := s.flush(); err != nil {
			return false, err
		}
	}
	if stays {
		return false, nil
	}
	s.changeSegments(func(m map[uint32]*segment) { delete(m, g.num) })
	return true, g.remove()
}

// evictChunk drops a chunk unless it is pinned.
func (s *Store) evictChunk(r record) bool {
	if !s.index.removeUnless(r.id, r.loc, s.pins.has) {
		return false
	}
	s.evicted.Add(1)
	s.evictedBytes.Add(int64(r.loc.size))
	return true
}

// lies reports whether r's chunk still lies where r says.
func (s *Store) lies(r record) bool {
	l, ok := s.index.get(r.id)
	return ok && l == r.loc
}

// carry copies a chunk of g to the lane of those that stay, through buf, which
// has its size, unless all files would exceed limit. A chunk that has rotted is
// dropped, which is no error.
func (s *Store) carry(g *segment, r record, buf []byte, limit int64) error {
	if err := g.readChunk(r.id, r.loc, buf, 0); err != nil {
		_ = s.drop(r.id, r.loc, g, err) // counted and logged; nobody waits for it
		return nil
	}
	if err := s.append(laneKept, r.id, buf, limit, &r.loc); err != nil {
		return err
	}
	s.carried.Add(1)
	s.carriedBytes.Add(int64(r.loc.size))
	return nil
}
