package chunkstore

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"graze/chunk"
)

// ScrubOptions say how Scrub works.
type ScrubOptions struct {
	Rate int64 // most bytes read a second; 0: as fast as it goes
}

// A Report is the result of a Scrub.
type Report struct {
	Chunks  int64 // that were checked
	Bytes   int64
	Corrupt []chunk.ID // that had rotted, and were dropped
}

// Scrub reads every chunk that is there when it starts, checks its digest, and
// drops those that have rotted. Reads and writes go on meanwhile. When ctx ends,
// it returns what it has found so far along with the cause. Chunks in the
// system's page cache are checked there, not on the disk.
func (s *Store) Scrub(ctx context.Context, opts ScrubOptions) (Report, error) {
	var records []record
	s.index.each(func(id chunk.ID, l loc) { records = append(records, record{id, l}) })
	slices.SortFunc(records, func(a, b record) int { return a.loc.compare(b.loc) })

	var rep Report
	var buf []byte
	start := time.Now()
	for _, r := range records {
		if ctx.Err() != nil {
			return rep, context.Cause(ctx)
		}
		if s.closed.Load() {
			return rep, errClosed
		}
		g, l := s.find(r.id)
		if g == nil {
			continue // evicted or dropped meanwhile
		}
		buf = slices.Grow(buf[:0], int(l.size))[:l.size]
		if err := g.scrub(r.id, l, buf); err != nil {
			_ = s.drop(r.id, l, g, err) // the report has it
			rep.Corrupt = append(rep.Corrupt, r.id)
		}
		g.release() // closing a file that was only read loses nothing
		rep.Chunks++
		rep.Bytes += int64(l.size)
		if opts.Rate > 0 {
			pause := time.Duration(float64(rep.Bytes)/float64(opts.Rate)*float64(time.Second)) - time.Since(start)
			if err := sleep(ctx, pause); err != nil {
				return rep, err
			}
		}
	}
	return rep, nil
}

// scrub checks a chunk in full, through buf, which has its size.
func (g *segment) scrub(id chunk.ID, l loc, buf []byte) error {
	if err := g.readChunk(id, l, buf, 0); err != nil {
		return err
	}
	if !g.fresh.Load() && !g.isHot(l.off) {
		// Nobody else reads it: don't let it push other things out of the page
		// cache. This is only advice, so its error does not matter.
		_ = unix.Fadvise(g.fd, int64(l.off), recordSize(l.size), unix.FADV_DONTNEED)
	}
	_, err := chunk.Ref{ID: id, Size: int32(l.size)}.Verify(buf)
	return err
}

// sleep waits for d, if it is positive, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
