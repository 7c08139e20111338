package chunk

import "fmt"

// A Blob names a blob of a registry by its OCI digest, "sha256:…".
type Blob string

// A Codec says how a span's encoded bytes become the decoded ones. The numbers
// are part of graze's formats on disk and must not change.
type Codec uint8

// The codecs of spans.
const (
	// Raw bytes are stored as they are.
	Raw Codec = 1
	// Gzip spans start at the header of a gzip member (RFC 1952) and hold one
	// or more members; the last may be cut short once the last part is decoded.
	Gzip Codec = 2
	// Deflate spans start within a gzip member, at a deflate block (RFC 1951)
	// whose first bit is bit Bits of the byte at Off, and need the Window before
	// it. The member's trailer and further members may follow in the span.
	Deflate Codec = 3
	// Zstd spans start at a frame (RFC 8878) and hold one or more frames,
	// skippable ones among them.
	Zstd Codec = 4
	// LZ4 spans are one LZ4 block without a frame around it, and so of no more
	// than MaxSize decoded bytes. All of the block is needed to decode any of it.
	LZ4 Codec = 5
)

// String returns the codec's name.
func (c Codec) String() string {
	switch c {
	case Raw:
		return "raw"
	case Gzip:
		return "gzip"
	case Deflate:
		return "deflate"
	case Zstd:
		return "zstd"
	case LZ4:
		return "lz4"
	}
	return fmt.Sprintf("codec(%d)", uint8(c))
}

// A Part is a chunk within the decoded bytes of a span.
type Part struct {
	Ref
	At int64 // offset of the chunk's first byte in the span's decoded bytes
}

// A Span is a stretch of a blob that can be decoded by itself, and the chunks
// that come out of it. It holds all that a node needs to fetch the chunks from
// the registry without having the image's index.
type Span struct {
	Blob  Blob
	Off   int64 // first encoded byte in Blob
	Len   int64 // number of encoded bytes that are enough to decode all Parts
	Codec Codec
	Bits  uint8 // with Deflate: bits of the first byte that belong to the block before, 0 to 7

	// Start is where the span's decoded bytes begin in the decoded bytes of the
	// whole blob. Spans of one blob that are read together are decoded in one
	// pass, for which the decoder relates their Starts.
	Start int64

	// Window, with Deflate, is where the up to 32 KiB of decoded bytes before
	// Start are kept; nil if the block refers to nothing before it.
	Window *Slice

	// Parts are the chunks of the span by rising At. They do not overlap; what
	// lies between them is decoded and dropped.
	Parts []Part
}

// Decoded returns how many bytes must be decoded to reach the end of the last
// part.
func (s *Span) Decoded() int64 {
	if len(s.Parts) == 0 {
		return 0
	}
	last := s.Parts[len(s.Parts)-1]
	return last.At + int64(last.Size)
}

// A Slice is a run of bytes of one chunk, with the span that the chunk can be
// fetched from.
type Slice struct {
	Span Span
	Part int // index of the chunk in Span.Parts
	Off  int32
	Len  int32
}

// Ref returns the chunk that the slice is of.
func (s *Slice) Ref() Ref { return s.Span.Parts[s.Part].Ref }

// An Extent maps a run of a file onto bytes of a chunk. Neighbouring extents of
// a file rise in Off and do not overlap; what no extent covers is a hole, which
// reads as zeros.
type Extent struct {
	Off   int64  // first byte in the file
	Len   int64  // number of bytes, > 0
	Chunk uint32 // number of the chunk in the table that the extent belongs to
	At    int32  // first byte in the chunk
}

// A Class says how urgent a fetch is. A lower number is more urgent; a less
// urgent fetch never delays a more urgent one.
type Class uint8

// The classes, most urgent first.
const (
	Demand    Class = iota // a reader is blocked on it
	Readahead              // a sequential reader will ask for it soon
	Prefetch               // expected during the start of the image
	Backfill               // completes the image; nobody waits
)

// NumClasses is the number of classes.
const NumClasses = 4

// String returns the class's name.
func (c Class) String() string {
	switch c {
	case Demand:
		return "demand"
	case Readahead:
		return "readahead"
	case Prefetch:
		return "prefetch"
	case Backfill:
		return "backfill"
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}
