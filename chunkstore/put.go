package chunkstore

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"graze/chunk"
)

// errNoRoom means that an append would exceed the limit it was given.
var errNoRoom = errors.New("no room within the limit")

// A lane is a row of segments that is appended to at one end. Chunks that are
// here to stay don't mix with those that come and go, so that eviction has
// little to copy.
type lane int

const (
	laneFresh lane = iota // new chunks
	laneKept              // chunks that are pinned, or that eviction copied on
	numLanes
)

// Put stores a chunk. If it is there already, that is all. It waits for the
// system's page cache, not for the disk. An error that wraps chunk.ErrFull means
// that the chunk is not kept, because all that could make room is pinned, or
// because the disk refuses; reads go on working.
func (s *Store) Put(v chunk.Verified) error {
	ref := v.Ref()
	if ref.ID.IsZero() {
		return errors.New("put of the zero chunk")
	}
	if s.Has(ref.ID) {
		return nil
	}
	ln := laneFresh
	if s.pins.has(ref.ID) {
		ln = laneKept
	}
	if err := s.put(ln, ref.ID, v.Bytes()); err != nil {
		return &chunk.Error{Op: "store", What: ref.String(), From: s.dir, Err: err}
	}
	return nil
}

// put appends a chunk and makes room for it as needed.
func (s *Store) put(ln lane, id chunk.ID, p []byte) error {
	need := recordSize(uint32(len(p))) + fileHeaderSize + entrySize
	if need > s.usable {
		return fmt.Errorf("%w: the chunk is too large for a limit of %d bytes", chunk.ErrFull, s.limit)
	}
	for retried := false; ; {
		err := s.append(ln, id, p, s.usable, nil)
		switch {
		case err == nil:
			if s.used.Load() > s.usable-s.segSize {
				s.wakeUp() // evict before the next Put must
			}
			return nil
		case errors.Is(err, errNoRoom):
			if err := s.makeRoom(s.usable - need); err != nil {
				return err
			}
		case errors.Is(err, errClosed):
			return err
		case !retried:
			retried = true
			s.recoverFrom(ln, err)
		default:
			s.writeErrors.Add(1)
			return fmt.Errorf("%w: %w", chunk.ErrFull, err)
		}
	}
}

// recoverFrom does what may help after a failed write: on a full disk, it gives
// up a segment; otherwise the file may be bad, and the next write gets another.
func (s *Store) recoverFrom(ln lane, cause error) {
	if diskFull(cause) {
		// That nothing can be evicted shows in the second attempt.
		_ = s.makeRoom(s.used.Load() - 1)
		return
	}
	s.appendMu.Lock()
	defer s.appendMu.Unlock()
	s.sealLocked(ln)
}

var recordHeads = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// append writes a record at the end of a lane, unless the store's files would
// exceed limit bytes. If from is nil, the chunk is new, and nothing is done if it
// has been stored meanwhile. Otherwise the chunk is copied on from there, and
// nothing is done if it is gone.
func (s *Store) append(ln lane, id chunk.ID, p []byte, limit int64, from *loc) error {
	buf := recordHeads.Get().(*[]byte)
	defer recordHeads.Put(buf)
	head := appendRecordHead((*buf)[:0], id, p)
	*buf = head
	n := int64(len(head) + len(p))

	s.appendMu.Lock()
	defer s.appendMu.Unlock()
	if s.closed.Load() {
		return errClosed
	}
	now, ok := s.index.get(id)
	if ok && from == nil || from != nil && (!ok || now != *from) {
		return nil
	}
	if !s.reserve(n+entrySize, limit) {
		return errNoRoom
	}
	g, err := s.headLocked(ln, n, limit)
	if err == nil {
		err = s.writeLocked(ln, g, head, p)
	}
	if err != nil {
		s.used.Add(-n - entrySize)
		return err
	}
	off := g.size.Load()
	g.size.Store(off + n)
	l := loc{seg: g.num, off: uint32(off), size: uint32(len(p))}
	if from == nil {
		s.index.set(id, l)
		s.puts.Add(1)
		s.putBytes.Add(int64(len(p)))
	} else {
		s.index.move(id, *from, l)
	}
	s.pending = append(s.pending, entry{kindPut, id, l})
	s.dirty[g] = struct{}{}
	if s.unsynced += n; s.unsynced >= syncBytes {
		s.wakeUp()
	}
	return nil
}

// reserve counts n more bytes as used, if that stays within limit.
func (s *Store) reserve(n, limit int64) bool {
	for {
		used := s.used.Load()
		if used+n > limit {
			return false
		}
		if s.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// headLocked returns the segment that a record of n bytes goes to.
func (s *Store) headLocked(ln lane, n, limit int64) (*segment, error) {
	if g := s.heads[ln]; g != nil {
		if g.size.Load()+n <= s.segSize || g.size.Load() == fileHeaderSize {
			return g, nil
		}
		s.sealLocked(ln)
	}
	if s.next == math.MaxUint32 {
		return nil, errors.New("the numbers of segments are used up: remove the store to begin again")
	}
	if !s.reserve(fileHeaderSize, limit) {
		return nil, errNoRoom
	}
	g, err := s.createSegment(s.next)
	if err != nil {
		s.used.Add(-fileHeaderSize)
		return nil, err
	}
	s.next++
	s.created = true
	g.fresh.Store(ln == laneFresh)
	g.round.Store(s.round.Load())
	s.heads[ln] = g
	s.addSegment(g)
	return g, nil
}

// createSegment makes a new file, or none.
func (s *Store) createSegment(num uint32) (*segment, error) {
	f, err := os.OpenFile(segmentPath(s.dir, num), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(encodeFileHeader(segmentMagic, num), 0); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	g := newSegment(num, f, s.segSize, &s.used)
	g.size.Store(fileHeaderSize)
	g.durable.Store(fileHeaderSize)
	return g, nil
}

// writeLocked writes a record behind the end of g. If it fails, it cuts what it
// has written, and gives the segment up if it can't.
func (s *Store) writeLocked(ln lane, g *segment, head, p []byte) error {
	end := g.size.Load()
	_, err := g.f.WriteAt(head, end)
	if err == nil {
		_, err = g.f.WriteAt(p, end+int64(len(head)))
	}
	if err == nil {
		return nil
	}
	if terr := g.f.Truncate(end); terr != nil {
		s.sealLocked(ln)
		if info, serr := g.f.Stat(); serr == nil {
			s.used.Add(info.Size() - end)
			g.size.Store(info.Size())
		}
		return errors.Join(err, terr)
	}
	return err
}

// sealLocked ends the segment that a lane is appended to.
func (s *Store) sealLocked(ln lane) {
	if g := s.heads[ln]; g != nil {
		g.fresh.Store(false)
		s.heads[ln] = nil
	}
}
