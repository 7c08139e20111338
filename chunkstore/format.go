package chunkstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"graze/chunk"
)

// All numbers are little endian and all checksums CRC-32C.
//
// Every file starts with a header:
//
//	0   8  magic: "grazeseg" or "grazeidx"
//	8   4  format version
//	12  4  segment: its number; index: the number of the next new segment
//	16  4  0
//	20  4  checksum of the bytes before
//
// A segment goes on with records:
//
//	0   4  magic
//	4   1  digest algorithm
//	5   3  0
//	8   4  size of the chunk
//	12 32  digest
//	44  4  checksum of the bytes before
//	48  4  checksum of each block of the chunk, one after the other
//	.   .  the chunk
//
// The index goes on with entries:
//
//	0   1  kind
//	1   1  digest algorithm   (0 in a mark)
//	2   2  0
//	4   4  size of the chunk  (0 in a mark)
//	8  32  digest             (0 in a mark)
//	40  4  number of the segment
//	44  4  offset in the segment: of the record; in a mark, of the first byte
//	       that the log does not cover
//	48  4  checksum of the bytes before
const (
	formatVersion = 1

	fileHeaderSize   = 24
	recordHeaderSize = 48
	entrySize        = 52

	blockSize = 4096
	tableMax  = 4 * (chunk.MaxSize / blockSize)
)

const (
	segmentMagic = "grazeseg"
	indexMagic   = "grazeidx"
	recordMagic  = "\xc5gz\x1a"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// blocks returns the number of blocks of a chunk.
func blocks(size uint32) int64 { return (int64(size) + blockSize - 1) / blockSize }

// dataOffset returns where the chunk starts in its record.
func dataOffset(size uint32) int64 { return recordHeaderSize + 4*blocks(size) }

// recordSize returns the length of the record of a chunk.
func recordSize(size uint32) int64 { return dataOffset(size) + int64(size) }

func versionError(path string, version uint32) error {
	return fmt.Errorf("%s has format version %d, and this program knows only version %d: use the program that wrote it, or another directory",
		path, version, formatVersion)
}

// errFileHeader means that a file does not start with a sound header.
var errFileHeader = errors.New("file header is damaged")

func encodeFileHeader(magic string, number uint32) []byte {
	b := make([]byte, fileHeaderSize)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], formatVersion)
	binary.LittleEndian.PutUint32(b[12:], number)
	binary.LittleEndian.PutUint32(b[20:], checksum(b[:20]))
	return b
}

// decodeFileHeader returns the number in the header b of the file at path. The
// error is errFileHeader, or that of a version that must be left alone.
func decodeFileHeader(b []byte, magic, path string) (number uint32, err error) {
	if len(b) < fileHeaderSize || string(b[:8]) != magic || binary.LittleEndian.Uint32(b[20:]) != checksum(b[:20]) {
		return 0, errFileHeader
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != formatVersion {
		return 0, versionError(path, v)
	}
	return binary.LittleEndian.Uint32(b[12:]), nil
}

// appendRecordHead appends to b all of the record of chunk p that stands before
// its bytes.
func appendRecordHead(b []byte, id chunk.ID, p []byte) []byte {
	start := len(b)
	b = append(b, recordMagic...)
	b = append(b, byte(id.Algorithm()), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
	sum := id.Sum()
	b = append(b, sum[:]...)
	b = binary.LittleEndian.AppendUint32(b, checksum(b[start:]))
	for len(p) > 0 {
		n := min(len(p), blockSize)
		b = binary.LittleEndian.AppendUint32(b, checksum(p[:n]))
		p = p[n:]
	}
	return b
}

var errRecord = errors.New("record header is damaged")

// decodeRecordHeader returns the chunk whose record starts with b. Its size is
// within bounds.
func decodeRecordHeader(b []byte) (chunk.Ref, error) {
	if len(b) < recordHeaderSize || string(b[:4]) != recordMagic || binary.LittleEndian.Uint32(b[44:]) != checksum(b[:44]) {
		return chunk.Ref{}, errRecord
	}
	return decodeRef(b[4], binary.LittleEndian.Uint32(b[8:]), b[12:44])
}

func decodeRef(algorithm byte, size uint32, sum []byte) (chunk.Ref, error) {
	if size > chunk.MaxSize {
		return chunk.Ref{}, fmt.Errorf("chunk size %d is over %d", size, chunk.MaxSize)
	}
	id, err := chunk.NewID(chunk.Algorithm(algorithm), [chunk.SumSize]byte(sum))
	if err != nil {
		return chunk.Ref{}, err
	}
	ref := chunk.Ref{ID: id, Size: int32(size)}
	return ref, ref.Check()
}

// A kind says what an entry of the index means.
type kind uint8

const (
	// kindPut: the chunk lies at loc, and all before its end is on disk.
	kindPut kind = 1
	// kindDrop: the chunk no longer lies at loc.
	kindDrop kind = 2
	// kindMark: the entries before tell all that the segment holds up to loc.
	kindMark kind = 3
)

// An entry is one line of the index log.
type entry struct {
	kind kind
	id   chunk.ID
	loc  loc
}

func appendEntry(b []byte, e entry) []byte {
	start := len(b)
	b = append(b, byte(e.kind), byte(e.id.Algorithm()), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, e.loc.size)
	sum := e.id.Sum()
	b = append(b, sum[:]...)
	b = binary.LittleEndian.AppendUint32(b, e.loc.seg)
	b = binary.LittleEndian.AppendUint32(b, e.loc.off)
	return binary.LittleEndian.AppendUint32(b, checksum(b[start:]))
}

var errEntry = errors.New("entry is damaged")

func decodeEntry(b []byte) (entry, error) {
	if len(b) < entrySize || binary.LittleEndian.Uint32(b[48:]) != checksum(b[:48]) {
		return entry{}, errEntry
	}
	e := entry{kind: kind(b[0]), loc: loc{
		seg:  binary.LittleEndian.Uint32(b[40:]),
		off:  binary.LittleEndian.Uint32(b[44:]),
		size: binary.LittleEndian.Uint32(b[4:]),
	}}
	if b[2]|b[3] != 0 {
		return entry{}, errEntry
	}
	switch e.kind {
	case kindPut, kindDrop:
		ref, err := decodeRef(b[1], e.loc.size, b[8:40])
		e.id = ref.ID
		return e, err
	case kindMark:
		if b[1] != 0 || e.loc.size != 0 || [chunk.SumSize]byte(b[8:40]) != [chunk.SumSize]byte{} {
			return entry{}, errEntry
		}
		return e, nil
	}
	return entry{}, fmt.Errorf("entry has unknown kind %d", e.kind)
}
