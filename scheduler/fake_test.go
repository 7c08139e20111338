package scheduler

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"graze/chunk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An imageSpec describes a blob of random bytes that is cut into spans of
// chunks, and the files that lie in it end to end.
type imageSpec struct {
	files  []int64 // sizes
	chunk  int     // bytes; default 4 KiB
	chunks int     // per span; default 4
	codec  chunk.Codec
	gap    int64 // bytes between spans that belong to none
	window bool  // each span needs a window; see fakeImage.windows
}

const (
	testBlob   chunk.Blob = "sha256:b10b"
	windowBlob chunk.Blob = "sha256:817d"
)

// A fakeImage is a Layout and the blobs behind it. Inode i is file i-1.
type fakeImage struct {
	blobs   map[chunk.Blob][]byte
	content []byte // of the chunks, end to end
	spans   []chunk.Span
	refs    []chunk.Ref
	spanOf  []uint32
	starts  []int64 // of files in content
	files   []int64
	size    int // of a chunk
}

func newImage(spec imageSpec) *fakeImage {
	if spec.chunk == 0 {
		spec.chunk = 4 << 10
	}
	if spec.chunks == 0 {
		spec.chunks = 4
	}
	if spec.codec == 0 {
		spec.codec = chunk.Raw
	}
	im := &fakeImage{blobs: make(map[chunk.Blob][]byte), files: spec.files, size: spec.chunk}
	var total int64
	for _, n := range spec.files {
		im.starts = append(im.starts, total)
		total += n
	}
	src := rand.NewChaCha8([32]byte{byte(len(spec.files)), byte(spec.chunk >> 8), byte(spec.chunks)})
	im.content = make([]byte, total)
	src.Read(im.content)
	var blob []byte
	for off := int64(0); off < total; {
		span := chunk.Span{Blob: testBlob, Off: int64(len(blob)), Start: int64(len(blob)), Codec: spec.codec}
		for len(span.Parts) < spec.chunks && off < total {
			p := im.content[off:min(off+int64(spec.chunk), total)]
			ref := chunk.Ref{ID: chunk.BLAKE3.Sum(p), Size: int32(len(p))}
			span.Parts = append(span.Parts, chunk.Part{Ref: ref, At: span.Len})
			span.Len += int64(len(p))
			im.refs, im.spanOf = append(im.refs, ref), append(im.spanOf, uint32(len(im.spans)))
			blob = append(blob, p...)
			off += int64(len(p))
		}
		im.spans = append(im.spans, span)
		blob = append(blob, make([]byte, spec.gap)...)
	}
	im.blobs[testBlob] = blob
	if spec.window {
		im.addWindows()
	}
	return im
}

// addWindows gives each span but the first a window of 16 bytes that are
// written down in another blob, four to a chunk.
func (im *fakeImage) addWindows() {
	var blob []byte
	var chunks []chunk.Span
	for i := 0; i < len(im.spans); i += 4 {
		p := bytes.Repeat([]byte{byte(i), byte(i >> 8), 1, 2}, 16)
		chunks = append(chunks, chunk.Span{
			Blob: windowBlob, Off: int64(len(blob)), Len: 64, Codec: chunk.Raw, Start: int64(len(blob)),
			Parts: []chunk.Part{{Ref: chunk.Ref{ID: chunk.BLAKE3.Sum(p), Size: 64}}},
		})
		blob = append(blob, p...)
	}
	im.blobs[windowBlob] = blob
	for i := 1; i < len(im.spans); i++ {
		im.spans[i].Window = &chunk.Slice{Span: chunks[i/4], Off: int32(i % 4 * 16), Len: 16}
	}
}

func (im *fakeImage) Extents(ino uint64, off, n int64) iter.Seq[chunk.Extent] {
	return func(yield func(chunk.Extent) bool) {
		start, size := im.starts[ino-1], im.files[ino-1]
		for pos := max(off, 0); pos < min(off+n, size); {
			c := (start + pos) / int64(im.size)
			at := max(start, c*int64(im.size)) // first byte of the file in the chunk
			end := min((c+1)*int64(im.size), start+size)
			e := chunk.Extent{Off: at - start, Len: end - at, Chunk: uint32(c), At: int32(at - c*int64(im.size))}
			if !yield(e) {
				return
			}
			pos = e.Off + e.Len
		}
	}
}

func (im *fakeImage) Chunk(n uint32) (chunk.Ref, uint32) { return im.refs[n], im.spanOf[n] }
func (im *fakeImage) Span(n uint32) chunk.Span           { return im.spans[n] }
func (im *fakeImage) NumSpans() int                      { return len(im.spans) }

// bytes returns n bytes of a file from off on.
func (im *fakeImage) bytes(ino uint64, off, n int64) []byte {
	return im.content[im.starts[ino-1]+off:][:n]
}

// fakeDecoder decodes spans that are stored as they are, whatever their codec.
type fakeDecoder struct{ im *fakeImage }

func (d fakeDecoder) Decode(src io.Reader, run []chunk.Span, window []byte, emit func(span, part int, p []byte) error) error {
	if w := run[0].Window; w != nil {
		if want := d.im.blobs[windowBlob][w.Span.Off+int64(w.Off):][:w.Len]; !bytes.Equal(window, want) {
			return fmt.Errorf("%w: wrong window", chunk.ErrCorrupt)
		}
	} else if window != nil {
		return fmt.Errorf("%w: a window for a span that needs none", chunk.ErrCorrupt)
	}
	pos := run[0].Off
	for i, span := range run {
		for j, part := range span.Parts {
			if _, err := io.CopyN(io.Discard, src, span.Off+part.At-pos); err != nil {
				return fmt.Errorf("skip to %d: %w", span.Off+part.At, err)
			}
			p := make([]byte, part.Size)
			if _, err := io.ReadFull(src, p); err != nil {
				return fmt.Errorf("read at %d: %w", span.Off+part.At, err)
			}
			pos = span.Off + part.At + int64(part.Size)
			if bytes.HasPrefix(p, poison) {
				return fmt.Errorf("%w: poison at %d", chunk.ErrCorrupt, span.Off+part.At)
			}
			if err := emit(i, j, p); err != nil {
				return err
			}
			clear(p) // it is valid during the call only
		}
	}
	return nil
}

// poison makes fakeDecoder fail where a chunk begins with it.
var poison = []byte("poison!!")

// A fakeStore keeps chunks in memory.
type fakeStore struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
	full   bool
	puts   int
}

func (s *fakeStore) ReadAt(id chunk.ID, p []byte, off int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.chunks[id]
	if !ok {
		return chunk.ErrNotFound
	}
	copy(p, c[off:])
	return nil
}

func (s *fakeStore) Has(id chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.chunks[id]
	return ok
}

func (s *fakeStore) Put(v chunk.Verified) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts++
	if s.full {
		return chunk.ErrFull
	}
	s.chunks[v.Ref().ID] = bytes.Clone(v.Bytes())
	return nil
}

func (s *fakeStore) evict(ids ...chunk.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.chunks, id)
	}
}

// An originRequest is one request that a fakeOrigin got.
type originRequest struct {
	blob   chunk.Blob
	off, n int64
	at     time.Duration // since the origin was made
}

// A fakeOrigin serves blobs with faults.
type fakeOrigin struct {
	blobs   map[chunk.Blob][]byte
	latency time.Duration
	rate    int64 // bytes a second of each transfer; 0: no limit
	// fault, if set, may fail request number i, or change its bytes.
	fault func(i int, q originRequest, p []byte) ([]byte, error)
	begin time.Time

	mu       sync.Mutex
	requests []originRequest
	open     int // transfers under way
	most     int // the most that were
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
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

func (o *fakeOrigin) ReadRange(ctx context.Context, blob chunk.Blob, off, n int64) (io.ReadCloser, error) {
	q := originRequest{blob, off, n, time.Since(o.begin)}
	o.mu.Lock()
	i := len(o.requests)
	o.requests = append(o.requests, q)
	o.open++
	o.most = max(o.most, o.open)
	latency := o.latency
	o.mu.Unlock()
	body := &fakeBody{ctx: ctx, o: o}
	if err := pause(ctx, latency); err != nil {
		body.Close()
		return nil, err
	}
	p := o.blobs[blob]
	if off < 0 || n <= 0 || off+n > int64(len(p)) {
		body.Close()
		return nil, fmt.Errorf("range %d+%d of a blob of %d bytes", off, n, len(p))
	}
	p = p[off : off+n]
	if o.fault != nil {
		var err error
		if p, err = o.fault(i, q, bytes.Clone(p)); err != nil {
			body.Close()
			return nil, err
		}
	}
	body.p = p
	return body, nil
}

func (o *fakeOrigin) log() []originRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.requests)
}

type fakeBody struct {
	ctx    context.Context
	o      *fakeOrigin
	p      []byte
	closed bool
}

func (b *fakeBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, context.Cause(b.ctx)
	}
	if len(b.p) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 64<<10)], b.p)
	if b.o.rate > 0 {
		if err := pause(b.ctx, time.Duration(n)*time.Second/time.Duration(b.o.rate)); err != nil {
			return 0, err
		}
	}
	b.p = b.p[n:]
	return n, nil
}

func (b *fakeBody) Close() error {
	b.o.mu.Lock()
	defer b.o.mu.Unlock()
	if !b.closed {
		b.o.open--
	}
	b.closed = true
	return nil
}

// A rig is a running scheduler with fakes all around.
type rig struct {
	*Scheduler
	t      *testing.T
	im     *fakeImage
	store  *fakeStore
	origin *fakeOrigin
	r      *Reader
	end    func() // ends Run and waits for it
}

// bubble runs f in a synctest bubble with a running scheduler.
func bubble(t *testing.T, spec imageSpec, cfg Config, f func(t *testing.T, g *rig)) {
	im := newImage(spec)
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, im, cfg)
		defer g.end()
		f(t, g)
	})
}

func newRig(t *testing.T, im *fakeImage, cfg Config) *rig {
	t.Helper()
	g := &rig{
		t:      t,
		im:     im,
		store:  &fakeStore{chunks: make(map[chunk.ID][]byte)},
		origin: &fakeOrigin{blobs: im.blobs, latency: 10 * time.Millisecond, begin: time.Now()},
	}
	var err error
	if g.Scheduler, err = New(g.store, g.origin, fakeDecoder{im}, cfg); err != nil {
		t.Fatal(err)
	}
	g.r = g.Reader(im)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	g.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		g.origin.mu.Lock()
		defer g.origin.mu.Unlock()
		if g.origin.open != 0 {
			t.Errorf("%d transfers are open after Run", g.origin.open)
		}
	})
	return g
}

// read reads and compares.
func (g *rig) read(ctx context.Context, ino uint64, off, n int64) error {
	p := bytes.Repeat([]byte{0xee}, int(n))
	got, err := g.r.ReadAt(ctx, ino, p, off)
	if err != nil {
		if got != 0 {
			g.t.Errorf("ReadAt returned %d with error %v", got, err)
		}
		return err
	}
	if got != int(n) || !bytes.Equal(p, g.im.bytes(ino, off, n)) {
		g.t.Errorf("read of %d bytes at %d of file %d returned other bytes", n, off, ino)
	}
	return nil
}

// mustRead is read for reads that must not fail.
func (g *rig) mustRead(ino uint64, off, n int64) {
	g.t.Helper()
	if err := g.read(g.t.Context(), ino, off, n); err != nil {
		g.t.Errorf("read of %d bytes at %d of file %d: %v", n, off, ino, err)
	}
}

// wantRequests compares the ranges that were asked for, in order of time and,
// at one time, of position.
func (g *rig) wantRequests(want ...[2]int64) {
	g.t.Helper()
	var got [][2]int64
	log := g.origin.log()
	slices.SortStableFunc(log, func(a, b originRequest) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.off, b.off))
	})
	for _, q := range log {
		got = append(got, [2]int64{q.off, q.n})
	}
	if !slices.Equal(got, want) {
		g.t.Errorf("requests %v, want %v", got, want)
	}
}

// wantIdle checks that nothing is left over.
func (g *rig) wantIdle() {
	g.t.Helper()
	synctest.Wait()
	if s := g.Stats(); s.Wanted != 0 || s.Running != 0 || s.Queued != [chunk.NumClasses]int{} || s.Memory != 0 {
		g.t.Errorf("left over: %d chunks wanted, %d runs, %v queued, %d bytes", s.Wanted, s.Running, s.Queued, s.Memory)
	}
}
