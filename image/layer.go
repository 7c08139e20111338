package image

import (
	"context"
	"io"
	"iter"

	"graze/chunk"
)

// A Ranger reads parts of one blob. The registry client, a file and a byte
// slice are Rangers.
type Ranger interface {
	// ReadRange returns a reader of exactly n bytes from off on, which the
	// caller closes. It reports less with io.ErrUnexpectedEOF, never with a
	// clean end.
	ReadRange(ctx context.Context, off, n int64) (io.ReadCloser, error)
	// Size returns the length of the blob in bytes.
	Size() int64
}

// A Format says which kind of index a layer was opened by.
type Format string

// The formats of layer indexes.
const (
	EStargz     Format = "estargz"      // a table of contents for the layer, mostly within it
	ZstdChunked Format = "zstd-chunked" // likewise
	TarGz       Format = "targz"        // graze's own index, beside an unmodified layer
	SOCI        Format = "soci"         // a zTOC, beside an unmodified layer
	RAFSv5      Format = "rafs-v5"      // a bootstrap, for a whole image
	RAFSv6      Format = "rafs-v6"      // likewise

	// RAFSBlob is a layer of such an image that has no entries: the bootstrap is in
	// another one.
	RAFSBlob Format = "rafs-blob"
)

// An Entry is one member of a layer, as its archive states it. Names are not
// cleaned, and whiteouts are not interpreted: that is the merge's work.
type Entry struct {
	Name  string // path in the archive, any bytes but NUL
	Mode  uint32 // type and permission bits as in stat(2): syscall.S_IFREG|0o644
	UID   uint32
	GID   uint32
	Size  int64 // of a regular file, in bytes; 0 for the others
	MTime Time
	Major uint32 // of a device
	Minor uint32

	// Link is the target of a symbolic link, any bytes but NUL. If Hardlink is
	// set, it is the path in the archive of the entry that this is another name
	// for, and all fields but Name are ignored.
	Link     string
	Hardlink bool

	Xattrs []Xattr

	// Extents are where the file's bytes lie, by rising Off; Chunk counts in the
	// layer's Table. What they leave out is a hole.
	Extents []chunk.Extent
}

// A Time is a point in time as stat(2) reports it.
type Time struct {
	Sec  int64
	Nsec uint32 // below 1e9
}

// An Xattr is one extended attribute.
type Xattr struct {
	Name  string // with its namespace: "user.mime_type"
	Value []byte
}

// A Layer is the index of one layer of an image. For an index that covers a
// whole image, it is the image's only layer.
type Layer struct {
	Digest chunk.Blob // of the layer as the manifest names it
	Size   int64      // of the layer's blob in bytes
	Format Format
	Table  Table

	// Prefetch counts the spans, from the Table's first on, that the image's
	// builder wants to have fetched when the image is mounted.
	Prefetch int

	// Entries yields the layer's members in the order of the archive. It can be
	// ranged over more than once. The Entry and what it points to are valid
	// until the next is asked for. An error ends the sequence.
	Entries iter.Seq2[*Entry, error]
}

// A Table says which chunks there are and from which spans of which blobs they
// can be decoded. Chunks of one span stand together, by rising At.
type Table struct {
	Blobs  []chunk.Blob
	Spans  []SpanRow
	Chunks []ChunkRow
}

// A SpanRow is a chunk.Span in a Table.
type SpanRow struct {
	Blob   uint32 // index in Table.Blobs
	Codec  chunk.Codec
	Bits   uint8
	First  uint32 // the span's first chunk, index in Table.Chunks
	Count  uint32 // number of its chunks, > 0
	Off    int64
	Len    int64
	Start  int64
	Window WindowRow

	// Seal is set where the index knows digests of encoded bytes only. Then the
	// span's one chunk is these bytes as they stand in the blob, so that Codec is
	// chunk.Raw; and what extents refer to are the Opened bytes that come out when
	// it is decoded by the codec Seal, with Bits and Window. See View.Seal.
	Seal   chunk.Codec
	Opened int32
}

// A WindowRow is a chunk.Slice in a Table. Len is 0 if there is no window.
type WindowRow struct {
	Chunk uint32 // index in Table.Chunks; that chunk's span has no window itself
	Off   int32
	Len   int32
}

// A ChunkRow is a chunk.Part in a Table.
type ChunkRow struct {
	chunk.Ref
	Span uint32 // index in Table.Spans
	At   int64
}

// Span returns span number n with all its chunks. The number must be below the
// length of t.Spans.
func (t *Table) Span(n uint32) chunk.Span {
	s := t.span(n)
	if w := t.Spans[n].Window; w.Len > 0 && t.Spans[n].Seal == 0 {
		row := t.Chunks[w.Chunk]
		s.Window = &chunk.Slice{
			Span: t.span(row.Span),
			Part: int(w.Chunk - t.Spans[row.Span].First),
			Off:  w.Off,
			Len:  w.Len,
		}
	}
	return s
}

// span is Span without the window, so that windows can't nest.
func (t *Table) span(n uint32) chunk.Span {
	row := &t.Spans[n]
	s := chunk.Span{
		Blob:  t.Blobs[row.Blob],
		Off:   row.Off,
		Len:   row.Len,
		Codec: row.Codec,
		Start: row.Start,
		Parts: make([]chunk.Part, row.Count),
	}
	if row.Seal == 0 {
		s.Bits = row.Bits
	}
	for i := range s.Parts {
		c := &t.Chunks[int(row.First)+i]
		s.Parts[i] = chunk.Part{Ref: c.Ref, At: c.At}
	}
	return s
}
