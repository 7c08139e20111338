package image

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"graze/chunk"
)

// A view file is a header and sections of fixed-size rows, end to end and all
// little-endian. Checksums are CRC-32C.
//
//	header    magic[8] version:4 sections:4, per section {length:8 checksum:4},
//	          checksum:4 of the header before it
//	inodes    rows of 48 bytes by number, from 1 on, in breadth-first order
//	dirents   rows of 8 bytes: directory by directory in the order of their
//	          numbers, each directory's by name
//	names     the names of the dirents, end to end in their order
//	extents   rows of 20 bytes: file by file, in the order of their numbers
//	links     the targets of symbolic links, end to end in the order of numbers
//	xattrs    distinct sets of extended attributes, end to end
//	xattrEnds rows of 4 bytes: where each set ends in xattrs
//	blobs     digests, each with its length before it in one byte
//	spans     rows of 56 bytes
//	chunks    rows of 52 bytes: span by span
//	prefetch  rows of 4 bytes: span numbers
//	info      JSON
//
// Because the order of everything is fixed, equal layers make equal files, and
// a reader can check all references in one pass over the rows: a file that
// isn't laid out like this is refused.
const (
	magic   = "grazview"
	version = 1
)

// The sections, in the order in which they stand in the file.
const (
	secInodes = iota
	secDirents
	secNames
	secExtents
	secLinks
	secXattrs
	secXattrEnds
	secBlobs
	secSpans
	secChunks
	secPrefetch
	secInfo
	numSections
)

// sections tells the name of each section and the size of its rows.
var sections = [numSections]struct {
	name string
	row  int
}{
	{"inodes", inodeRow},
	{"dirents", direntRow},
	{"names", 1},
	{"extents", extentRow},
	{"links", 1},
	{"xattrs", 1},
	{"xattr ends", 4},
	{"blobs", 1},
	{"spans", spanRow},
	{"chunks", chunkRow},
	{"prefetch", 4},
	{"info", 1},
}

const (
	inodeRow  = 48
	direntRow = 8
	extentRow = 20
	spanRow   = 56
	chunkRow  = 52

	fixedHeader = len(magic) + 4 + 4
	headerSize  = fixedHeader + numSections*12 + 4
)

var le = binary.LittleEndian

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A header says how long each section is and what its checksum is.
type header struct {
	lens [numSections]int64
	crcs [numSections]uint32
}

// encode returns the header's bytes.
func (h *header) encode() []byte {
	b := make([]byte, 0, headerSize)
	b = append(b, magic...)
	b = le.AppendUint32(b, version)
	b = le.AppendUint32(b, numSections)
	for i := range h.lens {
		b = le.AppendUint64(b, uint64(h.lens[i]))
		b = le.AppendUint32(b, h.crcs[i])
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeHeader decodes the header of a view file and checks that the lengths in
// it add up to the file's.
func decodeHeader(file []byte) (*header, error) {
	if len(file) < headerSize || string(file[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: no view file", chunk.ErrCorrupt)
	}
	if v := le.Uint32(file[len(magic):]); v != version {
		return nil, fmt.Errorf("%w: view file of version %d, not %d", chunk.ErrCorrupt, v, version)
	}
	sum := headerSize - 4
	if le.Uint32(file[sum:]) != crc32.Checksum(file[:sum], castagnoli) {
		return nil, fmt.Errorf("%w: checksum of the header", chunk.ErrCorrupt)
	}
	if n := le.Uint32(file[len(magic)+4:]); n != numSections {
		return nil, fmt.Errorf("%w: %d sections, not %d", chunk.ErrCorrupt, n, numSections)
	}
	var h header
	end := int64(headerSize)
	for i := range h.lens {
		row := file[fixedHeader+i*12:]
		n := le.Uint64(row)
		if n > uint64(len(file)) || n%uint64(sections[i].row) != 0 {
			return nil, fmt.Errorf("%w: section %s has length %d in a file of %d", chunk.ErrCorrupt, sections[i].name, n, len(file))
		}
		h.lens[i], h.crcs[i] = int64(n), le.Uint32(row[8:])
		end += int64(n)
	}
	if end != int64(len(file)) {
		return nil, fmt.Errorf("%w: sections of %d bytes in a file of %d", chunk.ErrCorrupt, end, len(file))
	}
	return &h, nil
}

// split returns the sections of a view file by h, after it has compared their
// checksums.
func (h *header) split(file []byte) (secs [numSections][]byte, err error) {
	off := int64(headerSize)
	for i, n := range h.lens {
		secs[i] = file[off : off+n : off+n]
		if crc32.Checksum(secs[i], castagnoli) != h.crcs[i] {
			return secs, fmt.Errorf("%w: checksum of section %s at offset %d", chunk.ErrCorrupt, sections[i].name, off)
		}
		off += n
	}
	return secs, nil
}

// An inodeRec is a row of the inodes. What a and b are depends on the type:
//
//	file     first extent, number of extents
//	dir      first dirent, number of dirents
//	symlink  first byte of the target, its length
//	device   major, minor
type inodeRec struct {
	mode, uid, gid, nlink uint32
	size                  int64 // of a file; of a directory: the number of its parent
	sec                   int64
	nsec                  uint32
	xattrs                uint32 // number of the set, from 1 on; 0 for none
	a, b                  uint32
}

func (r *inodeRec) append(p []byte) []byte {
	p = le.AppendUint32(p, r.mode)
	p = le.AppendUint32(p, r.uid)
	p = le.AppendUint32(p, r.gid)
	p = le.AppendUint32(p, r.nlink)
	p = le.AppendUint64(p, uint64(r.size))
	p = le.AppendUint64(p, uint64(r.sec))
	p = le.AppendUint32(p, r.nsec)
	p = le.AppendUint32(p, r.xattrs)
	p = le.AppendUint32(p, r.a)
	return le.AppendUint32(p, r.b)
}

func decodeInode(p []byte) inodeRec {
	p = p[:inodeRow]
	return inodeRec{
		mode:   le.Uint32(p),
		uid:    le.Uint32(p[4:]),
		gid:    le.Uint32(p[8:]),
		nlink:  le.Uint32(p[12:]),
		size:   int64(le.Uint64(p[16:])),
		sec:    int64(le.Uint64(p[24:])),
		nsec:   le.Uint32(p[32:]),
		xattrs: le.Uint32(p[36:]),
		a:      le.Uint32(p[40:]),
		b:      le.Uint32(p[44:]),
	}
}

// appendDirent appends a row of the dirents: the inode's number, and where the
// name ends in the names. It starts where the one before ends.
func appendDirent(p []byte, ino, end uint32) []byte {
	return le.AppendUint32(le.AppendUint32(p, ino), end)
}

func appendExtent(p []byte, e chunk.Extent) []byte {
	p = le.AppendUint64(p, uint64(e.Off))
	p = le.AppendUint32(p, uint32(e.Len))
	p = le.AppendUint32(p, e.Chunk)
	return le.AppendUint32(p, uint32(e.At))
}

func decodeExtent(p []byte) chunk.Extent {
	p = p[:extentRow]
	return chunk.Extent{
		Off:   int64(le.Uint64(p)),
		Len:   int64(le.Uint32(p[8:])),
		Chunk: le.Uint32(p[12:]),
		At:    int32(le.Uint32(p[16:])),
	}
}

func appendSpan(p []byte, s SpanRow) []byte {
	p = le.AppendUint32(p, s.Blob)
	p = append(p, byte(s.Codec), s.Bits, byte(s.Seal), 0)
	p = le.AppendUint32(p, s.First)
	p = le.AppendUint32(p, s.Count)
	p = le.AppendUint64(p, uint64(s.Off))
	p = le.AppendUint64(p, uint64(s.Len))
	p = le.AppendUint64(p, uint64(s.Start))
	p = le.AppendUint32(p, s.Window.Chunk)
	p = le.AppendUint32(p, uint32(s.Window.Off))
	p = le.AppendUint32(p, uint32(s.Window.Len))
	return le.AppendUint32(p, uint32(s.Opened))
}

func decodeSpan(p []byte) SpanRow {
	p = p[:spanRow]
	return SpanRow{
		Blob:  le.Uint32(p),
		Codec: chunk.Codec(p[4]),
		Bits:  p[5],
		First: le.Uint32(p[8:]),
		Count: le.Uint32(p[12:]),
		Off:   int64(le.Uint64(p[16:])),
		Len:   int64(le.Uint64(p[24:])),
		Start: int64(le.Uint64(p[32:])),
		Window: WindowRow{
			Chunk: le.Uint32(p[40:]),
			Off:   int32(le.Uint32(p[44:])),
			Len:   int32(le.Uint32(p[48:])),
		},
		Seal:   chunk.Codec(p[6]),
		Opened: int32(le.Uint32(p[52:])),
	}
}

func appendChunk(p []byte, c ChunkRow) []byte {
	sum := c.ID.Sum()
	p = append(p, sum[:]...)
	p = le.AppendUint64(p, uint64(c.At))
	p = le.AppendUint32(p, uint32(c.Size))
	p = le.AppendUint32(p, c.Span)
	return append(p, byte(c.ID.Algorithm()), 0, 0, 0)
}

// decodeChunk decodes a row of the chunks. The ID is zero if its algorithm is
// unknown, which Ref.Check refuses.
func decodeChunk(p []byte) ChunkRow {
	p = p[:chunkRow]
	id, err := chunk.NewID(chunk.Algorithm(p[48]), [chunk.SumSize]byte(p))
	if err != nil {
		id = chunk.ID{}
	}
	return ChunkRow{
		Ref:  chunk.Ref{ID: id, Size: int32(le.Uint32(p[40:]))},
		Span: le.Uint32(p[44:]),
		At:   int64(le.Uint64(p[32:])),
	}
}
