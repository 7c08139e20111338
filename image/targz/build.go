package targz

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"graze/chunk"
)

// The defaults of Config.
const (
	DefaultChunkSize = 256 << 10
	DefaultSpanSize  = 512 << 10
)

// MinChunkSize is the least Config.ChunkSize, in bytes.
const MinChunkSize = 512

// Config says how a layer is cut. Its zero value stands for the defaults.
type Config struct {
	// ChunkSize is the size of the chunks of large files, and the most that
	// small files are packed up to, in bytes: MinChunkSize to chunk.MaxSize, by
	// default DefaultChunkSize.
	ChunkSize int32
	// SpanSize is how many encoded bytes a span has at least, but for the last
	// one; by default DefaultSpanSize.
	SpanSize int64
	// Algorithm names the chunks, by default chunk.SHA256.
	Algorithm chunk.Algorithm
	// Keep, if not nil, is called with each chunk of the layer, whose bytes are
	// valid until it returns.
	Keep func(v chunk.Verified)
	// Progress, if not nil, is called now and then with the number of encoded
	// bytes that have been read.
	Progress func(n int64)
}

// complete fills in the defaults and checks the rest.
func (c *Config) complete() error {
	if c.ChunkSize == 0 {
		c.ChunkSize = DefaultChunkSize
	}
	if c.SpanSize == 0 {
		c.SpanSize = DefaultSpanSize
	}
	if c.Algorithm == 0 {
		c.Algorithm = chunk.SHA256
	}
	if c.ChunkSize < MinChunkSize || c.ChunkSize > chunk.MaxSize {
		return fmt.Errorf("chunk size %d is not %d to %d", c.ChunkSize, MinChunkSize, chunk.MaxSize)
	}
	if c.SpanSize < 0 {
		return fmt.Errorf("span size %d is negative", c.SpanSize)
	}
	if !c.Algorithm.Valid() {
		return fmt.Errorf("chunks can't be named by %s", c.Algorithm)
	}
	return nil
}

// A Blob is one of the blobs that an index consists of, or the layer itself.
type Blob struct {
	Digest chunk.Blob `json:"digest"`
	Size   int64      `json:"size"`
}

// Info describes an index.
type Info struct {
	Layer       Blob       `json:"layer"`
	DiffID      chunk.Blob `json:"diffID"`   // digest of the decoded layer
	Unpacked    int64      `json:"unpacked"` // its size in bytes
	Checkpoints Blob       `json:"checkpoints"`
	ChunkSize   int32      `json:"chunkSize"`
	SpanSize    int64      `json:"spanSize"`
	Algorithm   string     `json:"algorithm"`
	Entries     int64      `json:"entries"`
	Chunks      int64      `json:"chunks"`  // those of the layer
	Spans       int64      `json:"spans"`   // likewise
	Windows     int64      `json:"windows"` // chunks of the checkpoints blob

	// Tree is the blob that the rest stands in, and so does not stand in it.
	Tree Blob `json:"-"`
}

// Build reads a layer and writes its index, the tree to one blob and the
// checkpoints to another. The latter stays empty if none are needed; it is then
// not worth keeping.
//
// The layer is read once, to its end. It must be a tar, as it is or compressed
// by gzip or Zstandard; else the error wraps chunk.ErrCorrupt. Errors of the
// reader and the writers are returned wrapped. The caller compares Info.Layer,
// and Info.DiffID, with what the image says.
func Build(ctx context.Context, layer io.Reader, tree, checkpoints io.Writer, cfg Config) (Info, error) {
	if err := cfg.complete(); err != nil {
		return Info{}, err
	}
	in := newIntake(layer, func() error { return context.Cause(ctx) }, cfg.Progress)
	src, err := open(in)
	if err != nil {
		return Info{}, explain(err, in, nil)
	}
	w, err := newWriter(tree, checkpoints, cfg.Algorithm)
	if err != nil {
		return Info{}, fmt.Errorf("write index: %w", err)
	}
	c := newCutter(src, w, cfg)
	if err := index(c, w); err != nil {
		return Info{}, explain(err, in, w)
	}
	info, err := w.finish(Info{
		Layer:     Blob{digest(in.sum), in.n},
		DiffID:    digest(c.diff),
		Unpacked:  src.pos(),
		ChunkSize: cfg.ChunkSize,
		SpanSize:  cfg.SpanSize,
		Algorithm: cfg.Algorithm.String(),
	})
	if err != nil {
		return Info{}, fmt.Errorf("write index: %w", err)
	}
	return info, nil
}

// explain says for an error that ended a build whether the layer, what it is
// read from or what the index is written to is at fault.
func explain(err error, in *intake, w *writer) error {
	switch {
	case in.err != nil:
		return fmt.Errorf("read layer at byte %d: %w", in.n, in.err)
	case w != nil && w.err != nil:
		return fmt.Errorf("write index: %w", w.err)
	}
	// The cause may be io.ErrUnexpectedEOF, which would pass for a transfer that
	// broke off; so it is told, not wrapped.
	return fmt.Errorf("%w: layer, before byte %d: %v", chunk.ErrCorrupt, in.n, err)
}

var errTrailing = errors.New("data that is neither gzip nor zstd follows an archive without an end")

// index reads the layer to its end.
func index(c *cutter, w *writer) error {
	t := newTarReader(c)
	for {
		e, err := t.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := w.entry(e); err != nil {
			return err
		}
	}
	ended := !t.eof
	if err := c.finish(); err != nil {
		return err
	}
	// Bytes after the last member or frame are padding. All that unpack layers
	// pass over zeros, and most pass over anything; but if the archive has not
	// ended, they stand where more of it should.
	return drain(c.src.rest(), ended)
}

// drain reads r to its end. All must be zeros unless any is true.
func drain(r io.Reader, any bool) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		for _, b := range buf[:n] {
			if b != 0 && !any {
				return errTrailing
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// digest returns the sum of an SHA-256 in the form of a blob's name.
func digest(h hash.Hash) chunk.Blob {
	var sum [sha256.Size]byte
	return chunk.Blob("sha256:" + hex.EncodeToString(h.Sum(sum[:0])))
}
