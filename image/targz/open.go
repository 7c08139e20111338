package targz

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"graze/chunk"
	"graze/image"
	"graze/image/inflate"
)

var errFormat = fmt.Errorf("%w: not a tree of graze's index, or of another version", chunk.ErrCorrupt)

// ReadInfo returns what a tree says about itself.
func ReadInfo(tree []byte) (Info, error) {
	info, _, err := split(tree)
	return info, err
}

// split returns a tree's summary and its blocks.
func split(tree []byte) (info Info, blocks []byte, err error) {
	if len(tree) < len(headMagic)+footerSize || string(tree[:len(headMagic)]) != headMagic {
		return Info{}, nil, errFormat
	}
	blocks, footer := tree[len(headMagic):len(tree)-footerSize], tree[len(tree)-footerSize:]
	n := binary.LittleEndian.Uint32(footer)
	if n > maxSummary || int(n) > len(blocks) {
		return Info{}, nil, fmt.Errorf("%w: tree has a summary of %d bytes", chunk.ErrCorrupt, n)
	}
	blocks, summary := blocks[:len(blocks)-int(n)], blocks[len(blocks)-int(n):]
	if crc32.Checksum(summary, castagnoli) != binary.LittleEndian.Uint32(footer[4:]) {
		return Info{}, nil, fmt.Errorf("%w: tree has a damaged summary", chunk.ErrCorrupt)
	}
	if err := json.Unmarshal(summary, &info); err != nil {
		return Info{}, nil, fmt.Errorf("%w: tree's summary: %w", chunk.ErrCorrupt, err)
	}
	if info.Layer.Size < 0 || info.Unpacked < 0 || info.Checkpoints.Size < 0 || info.Layer.Size > math.MaxInt64/2 {
		return Info{}, nil, fmt.Errorf("%w: tree has a negative size", chunk.ErrCorrupt)
	}
	return info, blocks, nil
}

// Open returns the layer that a tree describes. The caller has verified the
// tree's digest, or trusts its source; but damaged or hostile trees are errors
// too, if not all when it is opened, then those in its entries when they are
// ranged over. The layer keeps the tree, which must not be changed.
//
// The layer's table has its spans first, in the order of the layer, then those
// of the checkpoints blob.
func Open(tree []byte) (*image.Layer, error) {
	info, blocks, err := split(tree)
	if err != nil {
		return nil, err
	}
	o := opener{info: info}
	if err := o.open(blocks, len(headMagic)); err != nil {
		return nil, fmt.Errorf("%w: tree of layer %.80s: %w", chunk.ErrCorrupt, info.Layer.Digest, err)
	}
	l := &image.Layer{
		Digest: info.Layer.Digest,
		Size:   info.Layer.Size,
		Format: image.TarGz,
		Table:  o.table,
	}
	t := treeEntries{blocks: o.entries, table: &l.Table, chunks: uint32(info.Chunks), info: info}
	l.Entries = t.all
	return l, nil
}

// A packedBlock is a block of a tree before it is decoded.
type packedBlock struct {
	at     int // where it is in the tree
	kind   byte
	rows   int
	size   int // unpacked
	packed []byte
}

// nextBlock cuts the first block off p, which lies at place at in the tree.
func nextBlock(p []byte, at int) (b packedBlock, rest []byte, err error) {
	if len(p) < blockHead {
		return b, nil, errors.New("block ends early")
	}
	b = packedBlock{at: at, kind: p[0], rows: int(binary.LittleEndian.Uint32(p[1:])), size: int(binary.LittleEndian.Uint32(p[5:]))}
	n := int(binary.LittleEndian.Uint32(p[9:]))
	p = p[blockHead:]
	if b.rows <= 0 || b.rows > blockRows || b.size > maxBlock || n > len(p) {
		return b, nil, fmt.Errorf("block has %d rows in %d bytes, packed %d", b.rows, b.size, n)
	}
	b.packed = p[:n]
	return b, p[n:], nil
}

// An unpacker decodes blocks, one at a time.
type unpacker struct {
	dec *zstd.Decoder
	raw []byte
}

func newUnpacker() (*unpacker, error) {
	dec, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(2*maxBlock),
		zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, err
	}
	return &unpacker{dec: dec}, nil
}

// unpack sets columns to those of b, valid until the next call.
func (u *unpacker) unpack(b packedBlock, columns []cursor) (err error) {
	u.raw = slices.Grow(u.raw[:0], b.size)
	u.raw, err = u.dec.DecodeAll(b.packed, u.raw[:0:b.size])
	if err != nil {
		return err
	}
	if len(u.raw) != b.size {
		return fmt.Errorf("%d bytes in place of %d", len(u.raw), b.size)
	}
	return unpackColumns(u.raw, columns)
}

// An opener makes a layer's table.
type opener struct {
	info    Info
	alg     chunk.Algorithm
	table   image.Table
	entries []packedBlock
	rows    int64 // of entries

	end     int64            // of the last chunk, in the decoded layer
	off     int64            // of the last span
	leads   []int64          // of the spans, before their first chunks
	wants   []int64          // the spans' numbers of window chunks, from 1
	windows []image.ChunkRow // of the checkpoints blob
	groups  []image.SpanRow  // likewise
	decoded int64            // end of the last of them, decoded
	encoded int64            // likewise, in the blob
}

// open reads the blocks, the first of which lies at place at in the tree.
func (o *opener) open(blocks []byte, at int) error {
	switch o.info.Algorithm {
	case chunk.SHA256.String():
		o.alg = chunk.SHA256
	case chunk.BLAKE3.String():
		o.alg = chunk.BLAKE3
	default:
		return fmt.Errorf("unknown algorithm %.20q", o.info.Algorithm)
	}
	o.table.Blobs = []chunk.Blob{o.info.Layer.Digest}
	if o.info.Checkpoints.Size > 0 {
		o.table.Blobs = append(o.table.Blobs, o.info.Checkpoints.Digest)
	}
	u, err := newUnpacker()
	if err != nil {
		return err
	}
	for len(blocks) > 0 {
		b, rest, err := nextBlock(blocks, at)
		if err == nil {
			err = o.block(u, b)
		}
		if err != nil {
			return fmt.Errorf("block at %d: %w", at, err)
		}
		at += len(blocks) - len(rest)
		blocks = rest
	}
	return o.join()
}

// block reads a block.
func (o *opener) block(u *unpacker, b packedBlock) error {
	var read func([]cursor) error
	var columns [max(entryColumns, chunkColumns, spanColumns, windowColumns)]cursor
	cols := columns[:]
	switch b.kind {
	case entryBlock:
		o.entries = append(o.entries, b)
		o.rows += int64(b.rows)
		return nil
	case chunkBlock:
		cols, read = cols[:chunkColumns], o.chunk
		if len(o.table.Chunks)+b.rows > maxChunks {
			return errors.New("too many chunks")
		}
	case spanBlock:
		cols, read = cols[:spanColumns], o.span
		if len(o.table.Spans)+b.rows > maxSpans {
			return errors.New("too many spans")
		}
	case windowBlock:
		cols, read = cols[:windowColumns], o.window
		if len(o.groups)+b.rows > maxSpans {
			return errors.New("too many windows")
		}
	default:
		return fmt.Errorf("unknown kind %d", b.kind)
	}
	if err := u.unpack(b, cols); err != nil {
		return err
	}
	for range b.rows {
		if err := read(cols); err != nil {
			return err
		}
	}
	return checkColumns(cols)
}

// chunk reads a chunk of the layer. Its place is kept in At until the spans are
// known.
func (o *opener) chunk(cols []cursor) error {
	gap, size := cols[colChunkGap].uvarint(), cols[colChunkSize].uvarint()
	row, err := o.ref(cols[colChunkSum].sum(), size)
	if err != nil {
		return err
	}
	if gap > o.info.Unpacked-o.end || size > o.info.Unpacked-o.end-gap {
		return errors.New("chunk lies beyond the layer's end")
	}
	row.At = o.end + gap
	o.end = row.At + size
	o.table.Chunks = append(o.table.Chunks, row)
	return nil
}

// ref makes a chunk's row of its digest and size.
func (o *opener) ref(sum [chunk.SumSize]byte, size int64) (row image.ChunkRow, err error) {
	if size > chunk.MaxSize {
		return row, fmt.Errorf("chunk of %d bytes", size)
	}
	if row.ID, err = chunk.NewID(o.alg, sum); err != nil {
		return row, err
	}
	row.Size = int32(size)
	return row, row.Check()
}

// span reads a span. What it says of chunks is resolved by join.
func (o *opener) span(cols []cursor) error {
	code := cols[colSpanCodec].byte()
	gap := cols[colSpanOff].uvarint()
	s := image.SpanRow{Codec: chunk.Codec(code & 15), Bits: code >> 4, Len: cols[colSpanLen].uvarint()}
	lead, count, group := cols[colSpanLead].uvarint(), cols[colSpanCount].uvarint(), cols[colSpanGroup].uvarint()
	if gap > o.info.Layer.Size-o.off || s.Len > o.info.Layer.Size-o.off-gap {
		return errors.New("span lies beyond the layer's end")
	}
	s.Off = o.off + gap
	o.off = s.Off
	switch s.Codec {
	case chunk.Raw, chunk.Gzip, chunk.Zstd:
		if s.Bits != 0 || group != 0 {
			return fmt.Errorf("%s span has a window", s.Codec)
		}
	case chunk.Deflate:
		if s.Bits > 7 {
			return fmt.Errorf("span begins at bit %d", s.Bits)
		}
	default:
		return fmt.Errorf("span has unknown %s", s.Codec)
	}
	if group != 0 {
		woff, wlen := cols[colSpanWindow].uvarint(), cols[colSpanWindow].uvarint()
		if woff > groupWindows*inflate.WindowSize || wlen == 0 || wlen > inflate.WindowSize {
			return fmt.Errorf("span has a window of %d bytes at %d", wlen, woff)
		}
		s.Window.Off, s.Window.Len = int32(woff), int32(wlen)
	}
	if count == 0 || count > maxChunks {
		return fmt.Errorf("span has %d chunks", count)
	}
	s.Count = uint32(count)
	o.table.Spans = append(o.table.Spans, s)
	o.leads = append(o.leads, lead)
	o.wants = append(o.wants, group)
	return nil
}

// window reads a chunk of the checkpoints blob.
func (o *opener) window(cols []cursor) error {
	n, size := cols[colGroupLen].uvarint(), cols[colGroupSize].uvarint()
	row, err := o.ref(cols[colGroupSum].sum(), size)
	if err != nil {
		return err
	}
	if size > groupWindows*inflate.WindowSize || n == 0 || n > o.info.Checkpoints.Size-o.encoded {
		return fmt.Errorf("chunk of %d bytes in %d of the checkpoints", size, n)
	}
	o.groups = append(o.groups, image.SpanRow{
		Blob: 1, Codec: chunk.Zstd, Count: 1, Off: o.encoded, Len: n, Start: o.decoded,
	})
	o.windows = append(o.windows, row)
	o.encoded += n
	o.decoded += size
	return nil
}

// join gives the spans their chunks and windows.
func (o *opener) join() error {
	t := &o.table
	if o.rows != o.info.Entries || int64(len(t.Chunks)) != o.info.Chunks ||
		int64(len(t.Spans)) != o.info.Spans || int64(len(o.windows)) != o.info.Windows || o.encoded != o.info.Checkpoints.Size {
		return errors.New("blocks and summary disagree")
	}
	first, start := 0, int64(0)
	for i := range t.Spans {
		s := &t.Spans[i]
		if int(s.Count) > len(t.Chunks)-first {
			return errors.New("spans have more chunks than there are")
		}
		s.First = uint32(first)
		s.Start = t.Chunks[first].At - o.leads[i]
		if s.Start < start {
			return errors.New("spans are out of order")
		}
		start = s.Start
		for range s.Count {
			c := &t.Chunks[first]
			c.Span, c.At = uint32(i), c.At-s.Start
			first++
		}
		if w := o.wants[i]; w != 0 {
			if w > int64(len(o.windows)) || int64(s.Window.Off)+int64(s.Window.Len) > int64(o.windows[w-1].Size) {
				return errors.New("span's window is not there")
			}
			s.Window.Chunk = uint32(o.info.Chunks + w - 1)
		}
	}
	if first != len(t.Chunks) {
		return errors.New("chunks belong to no span")
	}
	for i := range o.windows {
		o.groups[i].First = uint32(len(t.Chunks))
		o.windows[i].Span = uint32(len(t.Spans))
		t.Spans = append(t.Spans, o.groups[i])
		t.Chunks = append(t.Chunks, o.windows[i])
	}
	return nil
}

// hasNUL reports whether s can't be a name.
func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }
