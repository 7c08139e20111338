package chunkstore

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"graze/chunk"
)

var errClosed = fmt.Errorf("chunk store is closed: %w", os.ErrClosed)

// A Store keeps chunks in a directory. See the package comment.
//
// Of its mutexes, one higher up is never taken while one lower down is held.
type Store struct {
	dir     string
	limit   int64 // of all files
	usable  int64 // what Put may fill; the rest is for what eviction copies
	segSize int64
	every   time.Duration
	keepAll bool
	log     *slog.Logger
	lock    *os.File

	evictMu sync.Mutex    // one eviction at a time
	stuck   stuck         // guarded by evictMu
	round   atomic.Uint64 // number of segments that eviction has considered

	flushMu    sync.Mutex // one flush at a time
	indexLog   *os.File   // guarded by flushMu
	logSize    int64      // guarded by flushMu
	logEntries int64      // guarded by flushMu

	appendMu sync.Mutex // one append at a time
	closed   atomic.Bool
	next     uint32                // number of the next segment; guarded by appendMu
	heads    [numLanes]*segment    // guarded by appendMu
	pending  []entry               // not yet logged; guarded by appendMu
	dirty    map[*segment]struct{} // written since they were synced; guarded by appendMu
	created  bool                  // a segment since the directory was synced; guarded by appendMu
	unsynced int64                 // bytes; guarded by appendMu

	index index
	pins  pins

	segMu sync.Mutex // serializes changes of segs
	segs  atomic.Pointer[map[uint32]*segment]

	dropMu sync.Mutex
	drops  []entry // not yet logged; guarded by dropMu

	used atomic.Int64 // bytes of all files, and of entries still to be logged

	hits, hitBytes, misses, puts, putBytes       atomic.Int64
	evicted, evictedBytes, carried, carriedBytes atomic.Int64
	corrupt, writeErrors, syncErrors             atomic.Int64

	wake chan struct{} // has room for one
	stop chan struct{} // closed by Close
	done chan struct{} // closed when background has returned
}

// Open opens the store in dir, and creates it if there is none. Only one Store at
// a time can have a directory; the error for a second names the process that has
// the first.
func Open(dir string, cfg Config) (*Store, error) {
	s, err := open(dir, cfg)
	if err != nil {
		if errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("%w: a chunk store must be writable, also to be read", err)
		}
		return nil, fmt.Errorf("open chunk store %s: %w", dir, err)
	}
	go s.background()
	return s, nil
}

func open(dir string, cfg Config) (_ *Store, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, every: cfg.SyncEvery, keepAll: cfg.KeepAll, log: cfg.Log, lock: lock,
		dirty: make(map[*segment]struct{}),
		pins:  pins{owners: make(map[string][]chunk.ID), counts: make(map[chunk.ID]int32)},
		wake:  make(chan struct{}, 1),
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
	}
	s.segs.Store(&map[uint32]*segment{})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeFiles())
		}
	}()
	if s.limit, err = loadMeta(dir, cfg.Limit); err != nil {
		return nil, err
	}
	s.segSize = segmentSize(s.limit)
	s.usable = s.limit - s.segSize
	return s, s.recover()
}

// Close makes everything durable and closes the store. Reads that have begun, and
// Sections, may still finish. Closing again has no effect.
func (s *Store) Close() error {
	s.appendMu.Lock()
	again := s.closed.Swap(true)
	s.appendMu.Unlock()
	if again {
		return nil
	}
	close(s.stop)
	<-s.done
	s.evictMu.Lock()
	defer s.evictMu.Unlock()
	err := s.flush()
	return errors.Join(err, s.closeFiles())
}

// closeFiles closes all files and gives the directory back.
func (s *Store) closeFiles() error {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	var errs []error
	if s.indexLog != nil {
		errs = append(errs, s.indexLog.Close())
	}
	for _, g := range *s.segs.Swap(&map[uint32]*segment{}) {
		errs = append(errs, g.release())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// Has reports whether the chunk is there. It does not count as a use.
func (s *Store) Has(id chunk.ID) bool {
	_, ok := s.index.get(id)
	return ok
}

// Chunks yields the chunks that are there, in no order. Those that come or go
// meanwhile may or may not be among them.
func (s *Store) Chunks() iter.Seq[chunk.Ref] {
	return func(yield func(chunk.Ref) bool) {
		var refs []chunk.Ref
		for i := range numShards {
			refs = refs[:0]
			s.index.eachOf(i, func(id chunk.ID, l loc) {
				refs = append(refs, chunk.Ref{ID: id, Size: int32(l.size)})
			})
			for _, r := range refs {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Stats says what a store holds, and what it has done since it was opened.
type Stats struct {
	Limit    int64 // most bytes of all files
	Used     int64 // bytes of all files, evicted ones that are still being read among them
	Segments int
	Chunks   int64
	Bytes    int64 // of the chunks
	Pinned   int   // chunks that are pinned, there or not

	Hits, HitBytes int64 // successful reads
	Misses         int64 // reads of chunks that are not there
	Puts, PutBytes int64 // chunks stored, without those that were there already

	Evicted, EvictedBytes int64
	Carried, CarriedBytes int64 // copied to another segment by eviction

	Corrupt     int64 // chunks dropped because their bytes had rotted
	WriteErrors int64 // chunks not stored because the disk refused
	SyncErrors  int64
}

// Stats returns the store's figures.
func (s *Store) Stats() Stats {
	pinned, _ := s.pins.state()
	return Stats{
		Limit: s.limit, Used: s.used.Load(), Segments: len(*s.segs.Load()),
		Chunks: s.index.chunks.Load(), Bytes: s.index.bytes.Load(), Pinned: pinned,
		Hits: s.hits.Load(), HitBytes: s.hitBytes.Load(), Misses: s.misses.Load(),
		Puts: s.puts.Load(), PutBytes: s.putBytes.Load(),
		Evicted: s.evicted.Load(), EvictedBytes: s.evictedBytes.Load(),
		Carried: s.carried.Load(), CarriedBytes: s.carriedBytes.Load(),
		Corrupt: s.corrupt.Load(), WriteErrors: s.writeErrors.Load(), SyncErrors: s.syncErrors.Load(),
	}
}

// segment returns the segment with that number, nil if there is none.
func (s *Store) segment(num uint32) *segment { return (*s.segs.Load())[num] }

func (s *Store) addSegment(g *segment) {
	s.changeSegments(func(m map[uint32]*segment) { m[g.num] = g })
}

// changeSegments replaces the map of segments, which readers use without a lock.
func (s *Store) changeSegments(f func(map[uint32]*segment)) {
	s.segMu.Lock()
	defer s.segMu.Unlock()
	m := maps.Clone(*s.segs.Load())
	f(m)
	s.segs.Store(&m)
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }
