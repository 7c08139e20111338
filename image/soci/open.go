package soci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"graze/chunk"
	"graze/image"
)

// ErrUnsupported: the zTOC is well formed, but the layer can't be served by it.
var ErrUnsupported = errors.New("unsupported zTOC")

// The fields of the tables Ztoc and CompressionInfo.
const (
	ztocVersion = iota
	_           // what has built it
	ztocSize    // of the layer in bytes
	ztocDecoded
	ztocTOC
	ztocCompression
)

const (
	infoAlgorithm = iota
	infoMaxSpan
	infoDigests
	infoCheckpoints
)

// The algorithms of a zTOC.
const (
	algorithmGzip = 1
	algorithmNone = 2
)

const version = "0.9"

// The layout of the checkpoints of gzip: a number of 32 bits, which says how many
// there are, one of 64, the span size, and for each checkpoint its place in the
// layer (8 bytes) and in the decoded layer (8), how many bits of the byte before
// that place belong to it (1), and its window. In the first version the checkpoint
// at the beginning is left out.
const (
	checkpointsHead = 4 + 8
	checkpointHead  = 8 + 8 + 1
	checkpointSize  = checkpointHead + image.MaxWindow

	// firstBlock is where the first deflate block is, behind a gzip header without
	// optional fields.
	firstBlock = 10
)

// A Config says what Open needs to know about the layer.
type Config struct {
	Blob chunk.Blob // digest of the layer as the manifest names it
	Size int64      // of the layer in bytes
	ZTOC chunk.Blob // digest of the zTOC, which the caller has verified
}

// Open returns the layer that a zTOC describes.
func Open(ztoc []byte, cfg Config) (*image.Layer, error) {
	l, err := open(ztoc, cfg)
	if err != nil {
		return nil, &chunk.Error{Op: "open zTOC of layer", What: string(cfg.Blob), Err: err}
	}
	return l, nil
}

func open(ztoc []byte, cfg Config) (*image.Layer, error) {
	f := &flat{p: ztoc}
	root := f.root()
	info := root.table(ztocCompression)
	if v := string(root.bytes(ztocVersion)); f.err == nil && v != version {
		return nil, fmt.Errorf("%w: version %.20q", ErrUnsupported, v)
	}
	size, decoded := root.int64(ztocSize), root.int64(ztocDecoded)
	if f.err == nil && (size != cfg.Size || decoded < 0) {
		return nil, fmt.Errorf("%w: it is of a layer of %d bytes, decoded %d, not of %d", chunk.ErrCorrupt, size, decoded, cfg.Size)
	}
	b := builder{cfg: cfg, f: f, digests: info.vector(infoDigests), decoded: decoded}
	b.table.Blobs = []chunk.Blob{cfg.Blob, cfg.ZTOC}
	checkpoints := info.bytes(infoCheckpoints)
	var err error
	switch a := info.byte(infoAlgorithm, algorithmGzip); a {
	case algorithmGzip:
		err = b.gzip(checkpoints, info.follow(infoCheckpoints)+4)
	case algorithmNone:
		err = b.plain(checkpoints)
	default:
		err = fmt.Errorf("%w: compression %d", ErrUnsupported, a)
	}
	if f.err != nil {
		return nil, f.err
	}
	if err != nil {
		return nil, err
	}
	x := &entries{ztoc: ztoc, spans: b.spans}
	if err := x.check(decoded); err != nil {
		return nil, err
	}
	return &image.Layer{Digest: cfg.Blob, Size: cfg.Size, Format: image.SOCI, Table: b.table, Entries: x.all}, nil
}

// A builder makes the table of a layer.
type builder struct {
	cfg     Config
	f       *flat
	digests vector
	decoded int64
	table   image.Table
	spans   []stretch
}

// digest returns the digest of span n.
func (b *builder) digest(n int) (chunk.ID, error) {
	id, err := chunk.ParseID(string(b.digests.bytes(int64(n))))
	if err != nil {
		return id, fmt.Errorf("%w: span %d: %w", chunk.ErrCorrupt, n, err)
	}
	return id, nil
}

// add adds the span of the layer from off to end whose decoded bytes are those from
// start to stop.
func (b *builder) add(off, end, start, stop int64) error {
	n := len(b.spans)
	if off < 0 || off >= end || end > b.cfg.Size || start < 0 || start > stop || stop > math.MaxInt64/2 {
		return fmt.Errorf("%w: span %d is %d to %d of a layer of %d bytes, decoded %d to %d", chunk.ErrCorrupt, n, off, end, b.cfg.Size, start, stop)
	}
	if end-off > chunk.MaxSize || stop-start > chunk.MaxSize {
		return fmt.Errorf("%w: span %d has %d bytes, %d decoded", ErrUnsupported, n, end-off, stop-start)
	}
	id, err := b.digest(n)
	if err != nil {
		return err
	}
	b.table.Spans = append(b.table.Spans, image.SpanRow{Codec: chunk.Raw, First: uint32(n), Count: 1, Off: off, Len: end - off, Start: off})
	b.table.Chunks = append(b.table.Chunks, image.ChunkRow{Ref: chunk.Ref{ID: id, Size: int32(end - off)}, Span: uint32(n)})
	b.spans = append(b.spans, stretch{start, stop})
	return nil
}

// plain makes the spans of a layer that is not compressed. The checkpoints are a
// flatbuffer with the sizes of a span and of the layer.
func (b *builder) plain(checkpoints []byte) error {
	f := &flat{p: checkpoints}
	t := f.root()
	span, size := t.int64(1), t.int64(2)
	if f.err != nil {
		return f.err
	}
	if span <= 0 || size != b.cfg.Size || (size+span-1)/span != b.digests.n {
		return fmt.Errorf("%w: %d spans of %d bytes in a layer of %d", chunk.ErrCorrupt, b.digests.n, span, size)
	}
	for off := int64(0); off < size; off += span {
		end := min(off+span, size)
		if err := b.add(off, end, off, end); err != nil {
			return err
		}
	}
	return nil
}

// A checkpoint is a place at which a gzip layer can be decoded from.
type checkpoint struct {
	in, out int64
	bits    uint8 // of the byte before in
	window  int64 // place in the zTOC; 0 for none
}

// start returns the first byte of the layer that is needed.
func (c *checkpoint) start() int64 {
	if c.bits > 0 {
		return c.in - 1
	}
	return c.in
}

// gzip makes the spans of a gzip layer. The checkpoints stand at place at in the
// zTOC.
func (b *builder) gzip(p []byte, at int64) error {
	list, err := readCheckpoints(p, at, b.digests.n)
	if err != nil {
		return err
	}
	for i := range list {
		c := &list[i]
		end, stop := b.cfg.Size, b.decoded
		if i+1 < len(list) {
			end, stop = list[i+1].in, list[i+1].out
		}
		if err := b.add(c.start(), end, c.out, stop); err != nil {
			return err
		}
		s := &b.table.Spans[i]
		s.Seal, s.Opened = chunk.Deflate, int32(stop-c.out)
		if c.bits > 0 {
			s.Bits = 8 - c.bits
		}
		if stop == c.out {
			// Nothing comes out of it, and no extent refers to it.
			s.Seal, s.Bits, s.Opened, c.window = 0, 0, 0, 0
		}
	}
	for i := range list {
		if list[i].window != 0 {
			b.addWindow(i, list[i].window)
		}
	}
	return nil
}

// readCheckpoints reads the checkpoints of n spans.
func readCheckpoints(p []byte, at, n int64) ([]checkpoint, error) {
	if len(p) < checkpointsHead || n == 0 || int64(binary.LittleEndian.Uint32(p)) != n {
		return nil, fmt.Errorf("%w: checkpoints of %d spans in %d bytes", chunk.ErrCorrupt, n, len(p))
	}
	var list []checkpoint
	switch rest := int64(len(p)) - checkpointsHead; rest {
	case n * checkpointSize:
	case (n - 1) * checkpointSize:
		list = append(list, checkpoint{in: firstBlock})
	default:
		return nil, fmt.Errorf("%w: checkpoints of %d spans in %d bytes", chunk.ErrCorrupt, n, len(p))
	}
	for off := int64(checkpointsHead); off < int64(len(p)); off += checkpointSize {
		c := checkpoint{
			in:   int64(binary.LittleEndian.Uint64(p[off:])),
			out:  int64(binary.LittleEndian.Uint64(p[off+8:])),
			bits: p[off+16],
		}
		if c.bits > 7 || c.in < 1 || c.out < 0 || (len(list) == 0) != (c.out == 0) {
			return nil, fmt.Errorf("%w: checkpoint %d at %d, decoded %d, with %d bits", chunk.ErrCorrupt, len(list), c.in, c.out, c.bits)
		}
		if c.out > 0 {
			c.window = at + off + checkpointHead
		}
		list = append(list, c)
	}
	return list, nil
}

// addWindow adds the chunk that is the window of span n, which stands at a place in
// the zTOC.
func (b *builder) addWindow(n int, at int64) {
	number := uint32(len(b.table.Chunks))
	ref := chunk.SHA256.Name(b.f.bytes(at, image.MaxWindow)).Ref()
	b.table.Spans[n].Window = image.WindowRow{Chunk: number, Len: image.MaxWindow}
	b.table.Chunks = append(b.table.Chunks, image.ChunkRow{Ref: ref, Span: uint32(len(b.table.Spans))})
	b.table.Spans = append(b.table.Spans, image.SpanRow{
		Blob: 1, Codec: chunk.Raw, First: number, Count: 1, Off: at, Len: image.MaxWindow, Start: at,
	})
}
