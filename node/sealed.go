package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"graze/chunk"
	"graze/fusefs"
	"graze/image"
	"graze/image/codec"
	"graze/scheduler"
)

// maxOpening bounds how many sealed chunks of an image are opened at the same time:
// each takes up to two chunks of memory.
const maxOpening = 4

// files returns a reader of the files of a view.
func (n *Node) files(view *View) fusefs.Files {
	if n.drill.UncachedReads && n.store != nil {
		return keptFiles{n.anyFiles(view), view, n.store}
	}
	return n.anyFiles(view)
}

// anyFiles returns a reader of files, whether or not their chunks are sealed.
func (n *Node) anyFiles(view *View) fusefs.Files {
	plain := n.sched.Reader(view)
	sealed := func(l image.LayerInfo) bool { return l.Format == image.SOCI }
	if !slices.ContainsFunc(view.Info().Layers, sealed) {
		return plain
	}
	f := &sealedFiles{
		view:    view,
		plain:   plain,
		chunks:  n.sched.Reader(wholeChunks{view}),
		room:    make(chan struct{}, maxOpening),
		opened:  make(map[uint32]chunk.Ref),
		opening: make(map[uint32]*opening),
		read:    func(chunk.ID, []byte, int64) error { return chunk.ErrNotFound },
	}
	if n.store != nil {
		f.keep, f.read = n.store.Put, n.store.ReadAt
	}
	return f
}

// sealedFiles reads the files of a view of which some chunks are sealed. Those are
// fetched, kept and passed on as they are, as that is what their digests are about.
// What comes out of one is a chunk too, which this node alone knows of and keeps, so
// that it opens each once.
type sealedFiles struct {
	view   *View
	plain  *scheduler.Reader // of files without sealed chunks
	chunks *scheduler.Reader // of whole chunks, by their numbers
	dec    codec.Decoder
	room   chan struct{}
	read   func(id chunk.ID, p []byte, off int64) error // from the store
	keep   func(v chunk.Verified) error                 // in the store; nil if there is none

	mu      sync.Mutex           // guards what follows
	opened  map[uint32]chunk.Ref // what came out of spans, by their numbers
	opening map[uint32]*opening  // under way
	last    struct {             // what could not be kept
		span uint32
		p    []byte
	}
}

// An opening is a span that is being opened.
type opening struct {
	done chan struct{} // closed when the rest is set
	p    []byte
	err  error
}

// An interruption is an error that is about who has opened a span, not about the
// span.
type interruption struct{ error }

// Unwrap returns the error.
func (i interruption) Unwrap() error { return i.error }

// ReadAt implements fusefs.Files.
func (f *sealedFiles) ReadAt(ctx context.Context, ino uint64, p []byte, off int64) (int, error) {
	pos := off // what lies before it is filled
	for e := range f.view.Extents(ino, off, int64(len(p))) {
		_, span := f.view.Chunk(e.Chunk)
		if _, ok := f.view.Seal(span); !ok {
			// All chunks of a file are of one layer.
			return f.plain.ReadAt(ctx, ino, p, off)
		}
		from, to := max(e.Off, pos), min(e.Off+e.Len, off+int64(len(p)))
		clear(p[pos-off : from-off])
		if err := f.readSpan(ctx, span, p[from-off:to-off], int64(e.At)+from-e.Off); err != nil {
			return 0, err
		}
		pos = to
	}
	clear(p[pos-off:])
	return len(p), nil
}

// readSpan fills p with what comes out of a span, from off on.
func (f *sealedFiles) readSpan(ctx context.Context, span uint32, p []byte, off int64) error {
	for {
		f.mu.Lock()
		ref, ok := f.opened[span]
		f.mu.Unlock()
		if ok && f.read(ref.ID, p, off) == nil {
			return nil
		}
		out, err := f.open(ctx, span)
		if err == nil {
			copy(p, out[off:])
			return nil
		}
		// The read that was to open it may have been interrupted.
		if _, ok := errors.AsType[interruption](err); !ok || ctx.Err() != nil {
			return err
		}
	}
}

// open returns what comes out of a span. Reads of the same span wait for each other.
func (f *sealedFiles) open(ctx context.Context, span uint32) ([]byte, error) {
	f.mu.Lock()
	if f.last.p != nil && f.last.span == span {
		defer f.mu.Unlock()
		return f.last.p, nil
	}
	if o := f.opening[span]; o != nil {
		f.mu.Unlock()
		select {
		case <-o.done:
			return o.p, o.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	o := &opening{done: make(chan struct{})}
	f.opening[span] = o
	f.mu.Unlock()

	o.p, o.err = f.unseal(ctx, span)
	if o.err != nil && ctx.Err() != nil {
		o.err = interruption{o.err}
	}
	v := chunk.Verified{}
	kept := false
	if o.err == nil && f.keep != nil {
		v = chunk.SHA256.Name(o.p)
		kept = f.keep(v) == nil
	}
	f.mu.Lock()
	delete(f.opening, span)
	switch {
	case kept:
		f.opened[span] = v.Ref()
	case o.err == nil:
		f.last.span, f.last.p = span, o.p
	}
	f.mu.Unlock()
	close(o.done)
	return o.p, o.err
}

// unseal fetches the chunk of a span, and its window, and decodes it.
func (f *sealedFiles) unseal(ctx context.Context, number uint32) ([]byte, error) {
	select {
	case f.room <- struct{}{}:
		defer func() { <-f.room }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	seal, ok := f.view.Seal(number)
	if !ok {
		return nil, fmt.Errorf("%w: span %d of the image is not sealed as its neighbours are", chunk.ErrCorrupt, number)
	}
	span := f.view.Span(number)
	first := f.view.FirstChunk(number)
	encoded := make([]byte, span.Parts[0].Size)
	if _, err := f.chunks.ReadAt(ctx, uint64(first), encoded, 0); err != nil {
		return nil, err
	}
	decode := chunk.Span{Blob: span.Blob, Off: span.Off, Len: span.Len, Codec: seal.Codec, Bits: seal.Bits}
	// The decoder wants a name for what comes out, but there is none yet.
	decode.Parts = []chunk.Part{{Ref: chunk.Ref{ID: span.Parts[0].ID, Size: seal.Size}}}
	var window []byte
	if w := seal.Window; w.Len > 0 {
		window = make([]byte, w.Len)
		if _, err := f.chunks.ReadAt(ctx, uint64(w.Chunk), window, int64(w.Off)); err != nil {
			return nil, err
		}
		decode.Window = &chunk.Slice{Len: w.Len}
	}
	var out []byte
	err := f.dec.Decode(bytes.NewReader(encoded), []chunk.Span{decode}, window, func(_, _ int, p []byte) error {
		out = bytes.Clone(p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open span %d of blob %s at %d: %w", number, span.Blob, span.Off, err)
	}
	return out, nil
}

// wholeChunks is a layout in which each chunk is a file, whose number is the chunk's.
type wholeChunks struct{ *View }

// Extents implements scheduler.Layout.
func (l wholeChunks) Extents(number uint64, _, _ int64) iter.Seq[chunk.Extent] {
	return func(yield func(chunk.Extent) bool) {
		ref, _ := l.Chunk(uint32(number))
		yield(chunk.Extent{Len: int64(ref.Size), Chunk: uint32(number)})
	}
}
