package targz

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"

	"graze/chunk"
)

// The layout of the tree blob is described in the package comment. These are
// its fixed parts.
const (
	headMagic  = "graze/tree 1\r\n\x1a\n"
	blockHead  = 1 + 3*4 // kind, rows, unpacked and packed length
	footerSize = 4 + 4   // length and CRC-32C of the summary

	// blockRows and blockBytes are how large blocks may grow before they are
	// written; the last row may go beyond the latter.
	blockRows  = 8192
	blockBytes = 256 << 10
	// maxBlock bounds an unpacked block, in bytes: archive/tar bounds what the
	// headers of the last row can hold.
	maxBlock   = blockBytes + 2*maxHeaders
	maxSummary = 64 << 10

	// Bounds on what a tree may ask a reader to hold.
	maxChunks = 1 << 22
	maxSpans  = 1 << 22
)

// The kinds of blocks. Their rows follow on from those of earlier blocks of the
// same kind.
const (
	entryBlock  = 1
	chunkBlock  = 2
	spanBlock   = 3
	windowBlock = 4
)

// The columns of blocks of entries.
const (
	colKind   = iota // a byte: kind and flags, see below
	colShared        // bytes that the name shares with the one before
	colSuffix        // length of what follows them
	colName          // what follows them
	colMode
	colUID   // difference to the entry before
	colGID   // difference to the entry before
	colSec   // difference to the entry before
	colNsec  //
	colSize  // regular files
	colGap   // files with data: from the end of the data before to its own
	colLink  // symbolic and hard links: length and bytes
	colDev   // devices: major and minor
	colMap   // sparse files: count of fragments; for each gap and length
	colXattr // entries that have some: count; for each two times length and bytes
	entryColumns
)

// The columns of blocks of chunks.
const (
	colChunkGap  = iota // from the end of the chunk before
	colChunkSize        //
	colChunkSum         // 32 bytes
	chunkColumns
)

// The columns of blocks of spans.
const (
	colSpanCodec  = iota // a byte: codec, and bits to skip from bit 4 on
	colSpanOff           // difference to the span before
	colSpanLen           //
	colSpanLead          // from where the span decodes from to its first chunk
	colSpanCount         // number of its chunks
	colSpanGroup         // 1 + number of the chunk that holds the window, 0 for none
	colSpanWindow        // if there is one: offset in that chunk, and length
	spanColumns
)

// The columns of blocks of windows, a row being a chunk of the checkpoints blob.
// They lie one after the other in it.
const (
	colGroupLen  = iota // encoded length
	colGroupSize        //
	colGroupSum         // 32 bytes
	windowColumns
)

// What the low bits of colKind say, and the flags above them.
const (
	kindReg = iota
	kindDir
	kindSymlink
	kindHardlink
	kindChar
	kindBlock
	kindFifo
	numKinds

	kindMask   = 0x0f
	flagSparse = 0x10
	flagXattrs = 0x20
)

// A spanRow is a span of the layer, but for its window.
type spanRow struct {
	codec chunk.Codec
	skip  uint8
	off   int64
	len   int64
	lead  int64 // from where it decodes from to its first chunk
	count int64 // of its chunks
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A table of columns is encoded as each column's length and bytes in turn.

// packColumns appends columns to p.
func packColumns(p []byte, columns [][]byte) []byte {
	for _, c := range columns {
		p = binary.AppendUvarint(p, uint64(len(c)))
		p = append(p, c...)
	}
	return p
}

// A cursor reads what a column holds. What is read beyond its end is zero, and
// remembered.
type cursor struct {
	p   []byte
	bad bool
}

var errColumn = errors.New("column ends early or is malformed")

// unpackColumns sets columns to those that p holds.
func unpackColumns(p []byte, columns []cursor) error {
	all := cursor{p: p}
	for i := range columns {
		columns[i] = cursor{p: all.bytes(all.uvarint())}
	}
	if all.bad || len(all.p) > 0 {
		return errColumn
	}
	return nil
}

// uvarint reads a number that fits an int64.
func (c *cursor) uvarint() int64 {
	v, n := binary.Uvarint(c.p)
	if n <= 0 || int64(v) < 0 {
		c.bad, c.p = true, nil
		return 0
	}
	c.p = c.p[n:]
	return int64(v)
}

// varint reads a number with a sign.
func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.p)
	if n <= 0 {
		c.bad, c.p = true, nil
		return 0
	}
	c.p = c.p[n:]
	return v
}

// bytes reads n bytes, which it shares with the column.
func (c *cursor) bytes(n int64) []byte {
	if n < 0 || n > int64(len(c.p)) {
		c.bad, c.p = true, nil
		return nil
	}
	p := c.p[:n:n]
	c.p = c.p[n:]
	return p
}

// byte reads a byte.
func (c *cursor) byte() byte {
	p := c.bytes(1)
	if p == nil {
		return 0
	}
	return p[0]
}

// sum reads a digest.
func (c *cursor) sum() (sum [chunk.SumSize]byte) {
	copy(sum[:], c.bytes(chunk.SumSize))
	return sum
}

// checkColumns returns an error unless all columns were read to their ends.
func checkColumns(columns []cursor) error {
	for i := range columns {
		if columns[i].bad || len(columns[i].p) > 0 {
			return fmt.Errorf("column %d: %w", i, errColumn)
		}
	}
	return nil
}

// newPacker returns the encoder for blocks and checkpoints. Its output depends
// on nothing but its input.
func newPacker() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil,
		zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderLevel(zstd.SpeedBetterCompression),
		zstd.WithWindowSize(1<<20),
		zstd.WithLowerEncoderMem(true))
}
