package chunkstore

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"graze/chunk"
)

// syncBytes is how much may be put before it is synced ahead of time. It bounds
// what Open has to scan after a crash.
const syncBytes = 32 << 20

// background syncs in time and evicts ahead of need, until stop is closed.
func (s *Store) background() {
	defer close(s.done)
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	var last string // error, so that one that lasts is logged once
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		case <-s.wake:
			s.evictAhead()
			if !s.syncDue() {
				continue
			}
		}
		switch err := s.flush(); {
		case err == nil:
			last = ""
		case err.Error() != last:
			last = err.Error()
			s.log.Error("sync of the chunk store", "path", s.dir, "err", err)
		}
		if s.mostlyDead() {
			if err := s.compact(); err != nil {
				s.log.Error("compaction of the chunk store's index", "path", s.dir, "err", err)
			}
		}
	}
}

// syncDue reports whether it is time to sync for the amount of what was put.
func (s *Store) syncDue() bool {
	s.appendMu.Lock()
	defer s.appendMu.Unlock()
	return s.unsynced >= syncBytes
}

// wakeUp has background work before its time.
func (s *Store) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Sync makes all chunks durable that were put before. What is put needs no Sync
// to survive the end of the process, only to survive a power cut within the next
// second.
func (s *Store) Sync() error {
	if s.closed.Load() {
		return errClosed
	}
	return s.flush()
}

// A batch is what one flush makes durable.
type batch struct {
	puts    []entry // in the order in which they were appended
	drops   []entry
	dirty   map[*segment]int64 // with their length
	created bool
}

func (s *Store) takeBatch() batch {
	s.appendMu.Lock()
	defer s.appendMu.Unlock()
	s.dropMu.Lock()
	defer s.dropMu.Unlock()
	b := batch{s.pending, s.drops, make(map[*segment]int64, len(s.dirty)), s.created}
	for g := range s.dirty {
		b.dirty[g] = g.size.Load()
	}
	clear(s.dirty)
	s.pending, s.drops, s.created, s.unsynced = nil, nil, false, 0
	return b
}

// flush syncs the segments that were written, and then logs what was put. An
// entry of the log therefore never names what a power cut can take away.
func (s *Store) flush() error {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	b := s.takeBatch()
	if len(b.puts) == 0 && len(b.drops) == 0 && len(b.dirty) == 0 {
		return nil
	}
	err := s.syncSegmentsLocked(b)
	return errors.Join(err, s.logLocked(b))
}

// syncSegmentsLocked syncs the segments of b. After a failure the kernel may
// have thrown away any part of what was written, and a later sync would not tell:
// nothing more of that segment is logged, and the next Open scans it.
func (s *Store) syncSegmentsLocked(b batch) error {
	var errs []error
	for g := range b.dirty {
		if !g.acquire() {
			continue // evicted
		}
		if err := unix.Fdatasync(g.fd); err != nil {
			errs = append(errs, &os.PathError{Op: "fdatasync", Path: g.f.Name(), Err: err})
			g.broken = true
			s.seal(g)
			s.syncErrors.Add(1)
		}
		errs = append(errs, g.release())
	}
	if b.created {
		// If this fails and a power cut follows, the log names segments that
		// are not there, and Open passes over them.
		errs = append(errs, syncDir(s.dir))
	}
	return errors.Join(errs...)
}

// logLocked writes the entries of b to the index log.
func (s *Store) logLocked(b batch) error {
	out := make([]byte, 0, (len(b.puts)+len(b.drops))*entrySize)
	for _, e := range slices.Concat(b.puts, b.drops) {
		if g := s.segment(e.loc.seg); g != nil && (e.kind == kindDrop || !g.broken) {
			out = appendEntry(out, e)
		}
	}
	if _, err := s.indexLog.WriteAt(out, s.logSize); err != nil {
		s.appendMu.Lock()
		defer s.appendMu.Unlock()
		s.dropMu.Lock()
		defer s.dropMu.Unlock()
		s.pending = append(b.puts, s.pending...)
		s.drops = append(b.drops, s.drops...)
		return errors.Join(err, s.indexLog.Truncate(s.logSize))
	}
	s.logSize += int64(len(out))
	s.logEntries += int64(len(out) / entrySize)
	skipped := (len(b.puts)+len(b.drops))*entrySize - len(out)
	s.used.Add(-int64(skipped))
	for g, end := range b.dirty {
		if !g.broken {
			g.durable.Store(end)
		}
	}
	return nil
}

// seal ends g if it is being appended to.
func (s *Store) seal(g *segment) {
	s.appendMu.Lock()
	defer s.appendMu.Unlock()
	for ln, head := range s.heads {
		if head == g {
			s.sealLocked(lane(ln))
		}
	}
}

// mostlyDead reports whether the index log is worth rewriting.
func (s *Store) mostlyDead() bool {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	return s.logEntries > 2*s.index.chunks.Load()+4096
}

// compact rewrites the index log without what is no longer true. If there is no
// room for the second log, it leaves things as they are.
func (s *Store) compact() error {
	room := fileHeaderSize + entrySize*(s.index.chunks.Load()+int64(len(*s.segs.Load()))+1024)
	if !s.reserve(room, s.limit) {
		if err := s.makeRoom(s.limit - room); err != nil || !s.reserve(room, s.limit) {
			return nil // tried again after the next flush
		}
	}
	defer s.used.Add(-room)
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	return s.rewriteLogLocked()
}

// rewriteLogLocked replaces the index log by one of what the index says. Entries
// stand in the order of the segments, so that, as in a log that has grown, each
// is preceded by those of all that its segment holds before.
func (s *Store) rewriteLogLocked() error {
	segs := *s.segs.Load()
	var entries []entry
	s.index.each(func(id chunk.ID, l loc) {
		if g := segs[l.seg]; g != nil && l.end() <= g.durable.Load() {
			entries = append(entries, entry{kindPut, id, l})
		}
	})
	for num, g := range segs {
		// A mark sorts behind the records that lie before it.
		entries = append(entries, entry{kind: kindMark, loc: loc{seg: num, off: uint32(g.durable.Load())}})
	}
	slices.SortFunc(entries, func(a, b entry) int { return a.loc.compare(b.loc) })

	s.appendMu.Lock()
	next := s.next
	s.appendMu.Unlock()
	out := make([]byte, 0, fileHeaderSize+len(entries)*entrySize)
	out = append(out, encodeFileHeader(indexMagic, next)...)
	for _, e := range entries {
		out = appendEntry(out, e)
	}
	if err := replaceFile(s.path(indexName), out); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path(indexName), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if s.indexLog != nil {
		err = s.indexLog.Close()
	}
	s.used.Add(int64(len(out)) - s.logSize)
	s.indexLog, s.logSize, s.logEntries = f, int64(len(out)), int64(len(entries))
	return err
}
