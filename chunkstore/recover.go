package chunkstore

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"graze/chunk"
)

const indexName = "index"

// A segmentFile is a segment as Open finds it.
type segmentFile struct {
	*segment
	sound  bool // can be appended to
	shrunk bool // has less than the log says
	scan   scan
}

// recover brings the store to the state that its files tell. It changes nothing
// before it has seen that all files have a version that it knows.
func (s *Store) recover() error {
	files, err := s.openSegments()
	if err != nil {
		return err
	}
	index, entries, err := s.openLog()
	if err != nil {
		return err
	}
	if err := s.removeTemporary(); err != nil {
		return err
	}
	s.index.init(int(entries))
	if index != nil {
		s.loadLogLocked(index)
	}
	s.scanTails(files)
	rewrite := index == nil
	for _, sf := range files {
		if err := s.adopt(sf); err != nil {
			return err
		}
		rewrite = rewrite || sf.shrunk
	}
	s.next = max(s.next, 1)
	s.chooseHeads(files)
	if rewrite {
		if err := s.rewriteLogLocked(); err != nil {
			return err
		}
	}
	return s.countUsed()
}

// openSegments opens all segments, oldest first.
func (s *Store) openSegments() ([]*segmentFile, error) {
	names, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var files []*segmentFile
	segs := make(map[uint32]*segment)
	s.segs.Store(&segs) // so that they are closed if we fail
	for _, e := range names {
		num, ok := segmentNumber(e.Name())
		if !ok {
			continue
		}
		f, err := os.OpenFile(s.path(e.Name()), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		g := newSegment(num, f, max(s.segSize, info.Size()), &s.used)
		g.size.Store(info.Size())
		g.durable.Store(fileHeaderSize)
		segs[num] = g
		sf := &segmentFile{segment: g}
		files = append(files, sf)
		if sf.sound, err = checkSegmentHeader(f, num); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(files, func(a, b *segmentFile) int { return cmp.Compare(a.num, b.num) })
	return files, nil
}

// checkSegmentHeader reports whether f begins as segment num must. A damaged
// header is no error, since records prove themselves; another version is one.
func checkSegmentHeader(f *os.File, num uint32) (sound bool, err error) {
	b := make([]byte, fileHeaderSize)
	if err := readFull(f, b, 0); err != nil {
		return false, nil
	}
	n, err := decodeFileHeader(b, segmentMagic, f.Name())
	if errors.Is(err, errFileHeader) {
		return false, nil
	}
	return err == nil && n == num, err
}

// openLog opens the index log, and returns about how many entries it has. The
// file is nil if there is none, or if it can't be used.
func (s *Store) openLog() (f *os.File, entries int64, err error) {
	f, err = os.OpenFile(s.path(indexName), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	b := make([]byte, fileHeaderSize)
	err = readFull(f, b, 0)
	if err == nil {
		s.next, err = decodeFileHeader(b, indexMagic, f.Name())
	}
	if err != nil {
		f.Close()
		if errors.Is(err, errFileHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
			s.log.Warn("the chunk store's index is lost: scanning all segments", "path", s.dir, "err", err)
			return nil, 0, nil
		}
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size() / entrySize, nil
}

// loadLogLocked applies the entries of the log, up to the first that is damaged,
// and cuts it there. As the entries of a segment stand in the order of its
// records, those that are lost are of records that will be scanned.
func (s *Store) loadLogLocked(f *os.File) {
	s.indexLog = f
	s.logSize = fileHeaderSize
	err := readEntries(io.NewSectionReader(f, fileHeaderSize, 1<<62), func(e entry) {
		s.logSize += entrySize
		s.logEntries++
		s.next = max(s.next, e.loc.seg+1)
		s.apply(e)
	})
	if err != nil {
		s.log.Warn("the chunk store's index is damaged: scanning what it does not cover", "path", f.Name(), "off", s.logSize, "err", err)
	}
	if err := f.Truncate(s.logSize); err != nil {
		s.log.Warn("cut the chunk store's index", "path", f.Name(), "err", err)
	}
}

// readEntries calls f for each entry that r yields. It returns nil at a clean
// end, and otherwise what is wrong with the entry behind the last that f saw.
func readEntries(r io.Reader, f func(entry)) error {
	br := bufio.NewReaderSize(r, 1<<20)
	b := make([]byte, entrySize)
	for {
		if _, err := io.ReadFull(br, b); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		e, err := decodeEntry(b)
		if err != nil {
			return err
		}
		f(e)
	}
}

// apply brings an entry of the log into the index. What it says of a segment that
// is gone, or shorter than it says, is passed over.
func (s *Store) apply(e entry) {
	g := s.segment(e.loc.seg)
	if g == nil {
		return
	}
	switch e.kind {
	case kindPut:
		g.durable.Store(max(g.durable.Load(), e.loc.end()))
		if e.loc.off >= fileHeaderSize && e.loc.end() <= g.size.Load() {
			s.index.set(e.id, e.loc)
		}
	case kindDrop:
		s.index.remove(e.id, e.loc)
	case kindMark:
		g.durable.Store(max(g.durable.Load(), int64(e.loc.off)))
	}
}

// scanTails scans what the log does not cover, a few segments at a time.
func (s *Store) scanTails(files []*segmentFile) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, min(runtime.GOMAXPROCS(0), 4))
	for _, sf := range files {
		size, from := sf.size.Load(), sf.durable.Load()
		if from > size {
			s.log.Warn("segment is shorter than it was", "path", sf.f.Name(), "size", size, "logged", from)
			sf.shrunk, sf.sound = true, false
			from = fileHeaderSize
			s.forget(sf.num)
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			sf.scan = scanRecords(sf.f, sf.num, min(from, size), size)
		})
	}
	wg.Wait()
}

// forget takes all chunks of a segment out of the index.
func (s *Store) forget(num uint32) {
	var records []record
	s.index.each(func(id chunk.ID, l loc) {
		if l.seg == num {
			records = append(records, record{id, l})
		}
	})
	for _, r := range records {
		s.index.remove(r.id, r.loc)
	}
}

// adopt takes over what was found in a segment: the chunks of the records that
// the log did not know, and the length without the damaged end.
func (s *Store) adopt(sf *segmentFile) error {
	s.next = max(s.next, sf.num+1)
	for _, r := range sf.scan.records {
		if _, ok := s.index.get(r.id); !ok {
			s.index.set(r.id, r.loc)
			s.pending = append(s.pending, entry{kindPut, r.id, r.loc})
			s.dirty[sf.segment] = struct{}{}
		}
	}
	if sf.scan.damaged {
		s.log.Warn("segment has bytes that are no chunk", "path", sf.f.Name(), "chunks", len(sf.scan.records), "end", sf.scan.end, "err", sf.scan.err)
	}
	if sf.scan.err != nil {
		sf.sound = false // keep the end, as it may be readable next time
		return nil
	}
	if sf.scan.end <= fileHeaderSize {
		s.changeSegments(func(m map[uint32]*segment) { delete(m, sf.num) })
		sf.sound = false
		return sf.remove()
	}
	if sf.scan.end < sf.size.Load() {
		if err := sf.f.Truncate(sf.scan.end); err != nil {
			return fmt.Errorf("cut the torn end: %w", err)
		}
		sf.size.Store(sf.scan.end)
	}
	if sf.shrunk {
		// The log must not go on saying that it covers what is not there.
		if err := unix.Fdatasync(sf.fd); err != nil {
			return os.NewSyscallError("fdatasync", err)
		}
		sf.durable.Store(sf.scan.end)
	}
	return nil
}

// chooseHeads has the youngest segments appended to again, so that restarts
// leave no half-empty ones behind.
func (s *Store) chooseHeads(files []*segmentFile) {
	ln := laneFresh
	for _, sf := range slices.Backward(files) {
		if sf.sound && sf.size.Load() < s.segSize {
			s.heads[ln] = sf.segment
			sf.fresh.Store(ln == laneFresh)
			if ln++; ln == numLanes {
				return
			}
		}
	}
}

// removeTemporary removes what an interrupted replaceFile has left.
func (s *Store) removeTemporary() error {
	for _, name := range []string{indexName, metaName} {
		if err := os.Remove(s.path(name + tmpSuffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// countUsed adds up the files.
func (s *Store) countUsed() error {
	names, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	used := int64(len(s.pending)) * entrySize
	for _, e := range names {
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			used += info.Size()
		}
	}
	s.used.Store(used)
	return nil
}
