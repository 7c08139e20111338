package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"sync"
	"time"

	"graze/chunk"
)

// A Store keeps verified chunks. It is used by many goroutines at once.
type Store interface {
	// ReadAt fills p with the chunk's bytes from off on. Any error makes the
	// scheduler fetch the chunk.
	ReadAt(id chunk.ID, p []byte, off int64) error
	// Has reports whether ReadAt is likely to succeed. It is cheap.
	Has(id chunk.ID) bool
	// Put keeps the chunk. It must not use v's bytes after it returned. An
	// error, such as chunk.ErrFull, means that the chunk was not kept.
	Put(v chunk.Verified) error
}

// An Origin reads ranges of blobs. Its errors wrap chunk.ErrNotFound or
// chunk.ErrDenied if asking again is of little use; all others are taken as
// chunk.ErrUnavailable.
type Origin interface {
	// ReadRange returns a reader of exactly n bytes from off on, which the
	// caller closes. The reader fails when ctx is done.
	ReadRange(ctx context.Context, blob chunk.Blob, off, n int64) (io.ReadCloser, error)
}

// A Decoder decodes a run of spans of one blob from src, whose first byte is
// that at run[0].Off, and calls emit for each part of each span, in order. The
// spans rise in Off; they may overlap or leave gaps. Spans of chunk.Gzip and of
// chunk.Deflate may stand in one run. The bytes that emit gets are valid until
// it returns; its error ends the decoding and is returned. window holds the
// bytes of run[0].Window. Bad bytes give an error that wraps chunk.ErrCorrupt.
// Decode reads src from one goroutine at a time, and not after it returned.
type Decoder interface {
	Decode(src io.Reader, run []chunk.Span, window []byte, emit func(span, part int, p []byte) error) error
}

// A Layout says where the bytes of an image's files lie. It is used only during
// calls of a Reader's methods, by many goroutines at once. What Span returns
// must stay valid for longer.
type Layout interface {
	// Extents yields the extents of a file that overlap [off, off+n), whole.
	Extents(ino uint64, off, n int64) iter.Seq[chunk.Extent]
	// Chunk returns chunk n of the table that extents refer to, and its span.
	Chunk(n uint32) (ref chunk.Ref, span uint32)
	// Span returns span n. Neighbours in a blob have neighbouring numbers.
	Span(n uint32) chunk.Span
	// NumSpans returns the number of spans.
	NumSpans() int
}

// Config holds a Scheduler's settings. The zero value is usable.
type Config struct {
	// Runs is the most transfers from the origin at a time; default 8. Demand
	// reads may use all, read-ahead three quarters, prefetch a half and backfill
	// a quarter of them, at least one.
	Runs int
	// Memory bounds what transfers hold in memory, in bytes; default 64 MiB. One
	// transfer runs even if it needs more.
	Memory int64
	// Readahead is the most bytes that are fetched ahead of one sequential
	// reader; default 32 MiB. Negative means no read-ahead.
	Readahead int64
	// ReadDeadline is how long a read may wait for missing chunks; default 5
	// minutes.
	ReadDeadline time.Duration
	// Cluster and Peers, set both or neither, make the node one of a cluster.
	Cluster Cluster
	Peers   Peers
	// Directory, if set, finds chunks by what they are before the origin is asked.
	Directory Directory
	// Calls is the most requests to peers at a time, of each level and for spans
	// with and without a window; default 64. The classes share them like Runs.
	Calls int
	// OriginRate and OriginRequests limit what the whole cluster asks the origin
	// for, in bytes and requests a second; 0 means no limit. This node keeps to
	// its share.
	OriginRate     int64
	OriginRequests float64
	// Uploads is the most bytes that are being sent to peers of the cluster, and
	// as much again to other homes; default 32 MiB. Who comes later is sent to
	// those who have been served. The scheduler uses less where the link is slow.
	Uploads int64
	// Quarantine is how long a peer is avoided that has sent wrong bytes; default 10
	// minutes.
	Quarantine time.Duration
	// StallTimeout is how long the origin may send nothing before the transfer
	// is given up and tried again; default 30 seconds.
	StallTimeout time.Duration
	// Trace has optional hooks.
	Trace Trace
}

func (c Config) withDefaults() (Config, error) {
	if c.Runs < 0 || c.Memory < 0 || c.ReadDeadline < 0 || c.StallTimeout < 0 || c.Quarantine < 0 ||
		c.Calls < 0 || c.Uploads < 0 || c.OriginRate < 0 || c.OriginRequests < 0 {
		return c, errors.New("scheduler: a limit is negative")
	}
	if (c.Cluster == nil) != (c.Peers == nil) {
		return c, errors.New("scheduler: Cluster and Peers must be set together")
	}
	if c.Calls == 0 {
		c.Calls = 64
	}
	if c.Uploads == 0 {
		c.Uploads = 32 << 20
	}
	if c.Runs == 0 {
		c.Runs = 8
	}
	if c.Memory == 0 {
		c.Memory = 64 << 20
	}
	if c.Readahead == 0 {
		c.Readahead = 32 << 20
	}
	if c.ReadDeadline == 0 {
		c.ReadDeadline = 5 * time.Minute
	}
	if c.Quarantine == 0 {
		c.Quarantine = 10 * time.Minute
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = 30 * time.Second
	}
	return c, nil
}

// Trace has hooks that are called as things happen. Each may be nil. They must
// return fast and must not call the scheduler.
type Trace struct {
	// RunDone is called at the end of each run.
	RunDone func(RunInfo)
	// Corrupt is called for a chunk that was not what its digest says.
	Corrupt func(blob chunk.Blob, ref chunk.Ref, err error)
	// PeerLied is called for a peer that sent something else than the chunk. The
	// peer is not asked again for some minutes.
	PeerLied func(from chunk.PeerID, ref chunk.Ref, err error)
	// StoreFailed is called for a chunk that could not be kept.
	StoreFailed func(ref chunk.Ref, err error)
}

// A RunInfo describes one run: a request to the origin, unless the run failed for
// want of its window.
type RunInfo struct {
	Blob    chunk.Blob
	Off     int64
	Len     int64 // bytes asked for
	Spans   int
	Class   chunk.Class
	Dur     time.Duration
	Err     error // nil if all chunks arrived; context.Canceled if it was stopped: nobody wanted it any more, or a reader its slot
	Retried int   // spans that will be asked for again
	Failed  int   // spans that were given up
}

// errEnded is what readers get after Run has returned.
var errEnded = fmt.Errorf("%w: the scheduler has ended", chunk.ErrUnavailable)

// errStopped is what a run gets that waits for its window from a run that is
// being stopped.
var errStopped = fmt.Errorf("%w: the transfer was stopped", chunk.ErrUnavailable)

// errDeadline is the cause of the end of a read's context.
var errDeadline = errors.New("read deadline passed")

// A Scheduler fetches chunks that the store lacks. It is safe for concurrent
// use.
type Scheduler struct {
	store    Store
	sections Sectioner // the store, if it is one
	origin   Origin
	dec      Decoder
	cfg      Config

	gate     gate
	intake   intake
	uploads  *uploads
	counters counters
	recent   recent
	demand   demand

	// kick tells Run that something may be ready to start.
	kick chan struct{}

	mu    sync.Mutex
	phase phase // guarded by mu
	state state // guarded by mu
}

type phase int

const (
	phaseInert phase = iota
	phaseRunning
	phaseEnded
)

// New returns a Scheduler. It starts no goroutines and does no I/O.
func New(store Store, origin Origin, dec Decoder, cfg Config) (*Scheduler, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if store == nil || origin == nil || dec == nil {
		return nil, errors.New("scheduler: store, origin and decoder must be set")
	}
	s := &Scheduler{
		store:  store,
		origin: origin,
		dec:    dec,
		cfg:    cfg,
		gate:   gate{free: runtime.GOMAXPROCS(0)},
		kick:   make(chan struct{}, 1),
		state:  newState(cfg.Runs, cfg.Memory),
	}
	s.sections, _ = store.(Sectioner)
	s.state.clustered = newClustered(&cfg)
	s.uploads = newUploads(&cfg)
	return s, nil
}

// lock locks the state and tells it the time, and when a reader last waited.
func (s *Scheduler) lock() {
	s.mu.Lock()
	s.state.now = time.Now()
	s.state.pace.reader = s.demand.latest(s.state.now)
}

// Run fetches what readers miss until ctx is done; then it fails the reads that
// wait, waits for every goroutine it started and returns nil. Call it once.
//
// Reads that the store can answer need no Run. Others wait for it, up to the
// read deadline, if it has not been called yet, and fail once it has returned.
func (s *Scheduler) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.phase != phaseInert {
		s.mu.Unlock()
		return errors.New("scheduler: Run was called twice")
	}
	s.phase = phaseRunning
	s.mu.Unlock()

	var wg sync.WaitGroup
	s.wake()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-s.kick:
		case <-timer.C:
		case <-ctx.Done():
		}
		if at, ok := s.start(ctx, &wg); ok {
			timer.Reset(time.Until(at))
		}
	}
	s.lock()
	s.phase = phaseEnded
	s.state.failAll(errEnded)
	s.mu.Unlock()
	wg.Wait()
	return nil
}

// start starts all that may start now, and returns when it should be called
// again if nothing happens until then.
func (s *Scheduler) start(ctx context.Context, wg *sync.WaitGroup) (again time.Time, ok bool) {
	s.lock()
	defer s.mu.Unlock()
	s.state.tick()
	for ctx.Err() == nil {
		if c := s.state.nextCall(); c != nil {
			s.startCall(ctx, wg, c)
			continue
		}
		r := s.state.next()
		if r == nil {
			break
		}
		s.startRun(ctx, wg, r)
	}
	return s.state.timers.next()
}

func (s *Scheduler) startCall(ctx context.Context, wg *sync.WaitGroup, c *call) {
	ctx, c.stop = context.WithCancel(ctx)
	wg.Go(func() {
		s.converse(ctx, c)
		s.wake()
	})
}

func (s *Scheduler) startRun(ctx context.Context, wg *sync.WaitGroup, r *run) {
	var rctx context.Context
	rctx, r.stop = context.WithCancel(ctx)
	wg.Go(func() {
		parked := s.perform(rctx, r)
		s.lock()
		s.state.release(r)
		s.mu.Unlock()
		s.wake()
		s.resume(ctx, parked)
	})
}

// wake has Run look for runs to start.
func (s *Scheduler) wake() {
	select {
	case s.kick <- struct{}{}:
	default: // it will look anyway
	}
}
