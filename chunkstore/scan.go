package chunkstore

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"

	"graze/chunk"
)

// A scan is what was found in a stretch of a segment.
type scan struct {
	records []record
	end     int64 // of the last sound record, or where the stretch begins
	damaged bool  // there is something else between or behind the records
	err     error // of reading; what lies behind it may be sound
}

// scanRecords looks for records in r, the segment with number seg and the given
// size, from offset from on. It believes only those whose chunk has the digest
// that the header says. Where there is none, it goes on at the next place that
// looks like one, so that damage costs only what it hit. It needs memory for one
// chunk.
func scanRecords(r io.ReaderAt, seg uint32, from, size int64) scan {
	size = min(size, math.MaxUint32)
	sc := scan{end: from}
	var buf []byte
	for off := from; off < size; {
		ref, b, err := readRecord(r, off, size, buf)
		buf = b
		if err == nil {
			l := loc{seg: seg, off: uint32(off), size: uint32(ref.Size)}
			sc.records = append(sc.records, record{ref.ID, l})
			off = l.end()
			sc.end = off
			continue
		}
		sc.damaged = true
		if !errors.Is(err, chunk.ErrCorrupt) {
			sc.err = err
		}
		if off, err = findRecord(r, off+1, size); err != nil {
			sc.err = err
			break
		}
	}
	return sc
}

// readRecord checks the record at off wholly. It returns buf, grown as needed.
// An error wraps chunk.ErrCorrupt unless it is one of reading.
func readRecord(r io.ReaderAt, off, size int64, buf []byte) (chunk.Ref, []byte, error) {
	var head [recordHeaderSize]byte
	if size-off < recordHeaderSize {
		return chunk.Ref{}, buf, chunk.ErrCorrupt
	}
	if err := readFull(r, head[:], off); err != nil {
		return chunk.Ref{}, buf, err
	}
	ref, err := decodeRecordHeader(head[:])
	if err != nil {
		return ref, buf, errors.Join(chunk.ErrCorrupt, err)
	}
	n := recordSize(uint32(ref.Size))
	if n > size-off {
		return ref, buf, chunk.ErrCorrupt // torn
	}
	n -= recordHeaderSize
	buf = slices.Grow(buf[:0], int(n))[:n]
	if err := readFull(r, buf, off+recordHeaderSize); err != nil {
		return ref, buf, err
	}
	table := int(n) - int(ref.Size)
	if _, err := ref.Verify(buf[table:]); err != nil {
		return ref, buf, err
	}
	if err := checkBlocks(buf[:table], nil, buf[table:], nil); err != nil {
		return ref, buf, errors.Join(chunk.ErrCorrupt, err)
	}
	return ref, buf, nil
}

// findRecord returns the first offset from off on at which a record may begin,
// and size if there is none.
func findRecord(r io.ReaderAt, off, size int64) (int64, error) {
	buf := make([]byte, 64<<10)
	for size-off >= recordHeaderSize {
		p := buf[:min(int64(len(buf)), size-off)]
		if err := readFull(r, p, off); err != nil {
			return off, err
		}
		if i := bytes.Index(p, []byte(recordMagic)); i >= 0 {
			return off + int64(i), nil
		}
		off += int64(len(p) - len(recordMagic) + 1)
	}
	return size, nil
}

// readFull fills p from off on.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
