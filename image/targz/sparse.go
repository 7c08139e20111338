package targz

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
)

// Fields of a header block, and of the blocks that continue an old GNU sparse
// map.
const (
	sizeField    = 124
	sizeFieldLen = 12
	typeField    = 156

	sparseInHeader  = 386 // map of 4 pairs
	sparseHeaderLen = 4
	extendedField   = 482 // whether more follow
	sparseBlockLen  = 21  // pairs of a block that continues the map
	sparseNumberLen = 12
	extendedInBlock = sparseBlockLen * 2 * sparseNumberLen
)

const (
	paxSparseMap   = "GNU.sparse.map"
	paxSparseMajor = "GNU.sparse.major"
	paxSparseMinor = "GNU.sparse.minor"
)

// sparseMap appends the fragments of a sparse file to frags and reports whether
// the file is one. It applies the rules of archive/tar, which has accepted the
// same map.
func (t *tarReader) sparseMap(hdr *tar.Header, frags []fragment) ([]fragment, bool, error) {
	var numbers []int64
	var err error
	major, minor := hdr.PAXRecords[paxSparseMajor], hdr.PAXRecords[paxSparseMinor]
	switch {
	case hdr.Typeflag == tar.TypeGNUSparse:
		numbers, err = t.oldSparseMap()
	case major == "1" && minor == "0":
		numbers, err = t.dataSparseMap()
	case major == "0" && (minor == "0" || minor == "1"),
		major == "" && minor == "" && hdr.PAXRecords[paxSparseMap] != "":
		numbers, err = parseNumbers(strings.Split(hdr.PAXRecords[paxSparseMap], ","))
	default:
		return frags, false, nil
	}
	if err != nil || len(numbers)%2 != 0 {
		return frags, false, errSparse
	}
	end := int64(0)
	for i := 0; i < len(numbers); i += 2 {
		off, n := numbers[i], numbers[i+1]
		if off < end || n < 0 || off > hdr.Size-n {
			return frags, false, errSparse
		}
		if end = off + n; n > 0 {
			frags = append(frags, fragment{off, n})
		}
	}
	return frags, true, nil
}

// parseNumbers parses decimal numbers; a single empty string stands for none.
func parseNumbers(words []string) ([]int64, error) {
	if len(words) == 1 && words[0] == "" {
		return nil, nil
	}
	numbers := make([]int64, len(words))
	for i, w := range words {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers[i] = n
	}
	return numbers, nil
}

// mainHeader returns the header block of the entry itself and what archive/tar
// has read after it.
func (t *tarReader) mainHeader() (block, after []byte, err error) {
	p := t.headers
	// What is left of the entry before is padding.
	pad := int(-t.base & (blockSize - 1))
	for skip := int64(pad); ; {
		if skip > int64(len(p)-blockSize) {
			return nil, nil, errInternal
		}
		p = p[skip:]
		block, after = p[:blockSize], p[blockSize:]
		switch block[typeField] {
		case tar.TypeXHeader, tar.TypeGNULongName, tar.TypeGNULongLink:
			n, err := number(block[sizeField:][:sizeFieldLen])
			if err != nil || n > maxHeaders {
				return nil, nil, errInternal
			}
			skip = blockSize + (n+blockSize-1)&^(blockSize-1)
		default:
			return block, after, nil
		}
	}
}

// storedSize returns how many bytes of data follow the headers and map of a
// sparse file.
func (t *tarReader) storedSize(hdr *tar.Header) (int64, error) {
	block, after, err := t.mainHeader()
	if err != nil {
		return 0, err
	}
	var n int64
	if s := hdr.PAXRecords[paxSize]; s != "" {
		n, err = strconv.ParseInt(s, 10, 64)
	} else {
		n, err = number(block[sizeField:][:sizeFieldLen])
	}
	if hdr.Typeflag != tar.TypeGNUSparse {
		n -= int64(len(after)) // the map is part of the data
	}
	if err != nil || n < 0 {
		return 0, errSparse
	}
	return n, nil
}

// oldSparseMap returns the numbers of a map in the header block and in blocks
// after it.
func (t *tarReader) oldSparseMap() (numbers []int64, err error) {
	block, after, err := t.mainHeader()
	if err != nil {
		return nil, err
	}
	pairs, more := block[sparseInHeader:][:sparseHeaderLen*2*sparseNumberLen], block[extendedField]
	for {
		for ; len(pairs) > 0 && pairs[0] != 0; pairs = pairs[2*sparseNumberLen:] {
			off, err := number(pairs[:sparseNumberLen])
			if err != nil {
				return nil, err
			}
			n, err := number(pairs[sparseNumberLen : 2*sparseNumberLen])
			if err != nil {
				return nil, err
			}
			numbers = append(numbers, off, n)
		}
		if more == 0 {
			return numbers, nil
		}
		if len(after) < blockSize {
			return nil, errInternal
		}
		pairs, more = after[:extendedInBlock], after[extendedInBlock]
		after = after[blockSize:]
	}
}

// dataSparseMap returns the numbers of a map that stands before the data: their
// count in pairs, then they themselves, a number a line.
func (t *tarReader) dataSparseMap() ([]int64, error) {
	_, after, err := t.mainHeader()
	if err != nil {
		return nil, err
	}
	line, rest, _ := bytes.Cut(after, []byte{'\n'})
	pairs, err := strconv.ParseInt(string(line), 10, 64)
	if err != nil || pairs < 0 || pairs > int64(len(rest)) {
		return nil, errSparse
	}
	numbers := make([]int64, 0, 2*pairs)
	for range 2 * pairs {
		if line, rest, _ = bytes.Cut(rest, []byte{'\n'}); len(line) == 0 {
			return nil, errSparse
		}
		n, err := strconv.ParseInt(string(line), 10, 64)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// number parses a numeric field: octal digits, or a big-endian number if the
// first bit is set.
func number(p []byte) (int64, error) {
	if p[0]&0x80 == 0 {
		s, _, _ := bytes.Cut(bytes.Trim(p, " \x00"), []byte{0})
		if len(s) == 0 {
			return 0, nil
		}
		return strconv.ParseInt(string(s), 8, 64)
	}
	var wide [16]byte
	copy(wide[len(wide)-len(p):], p)
	wide[len(wide)-len(p)] &^= 0x80
	hi, lo := binary.BigEndian.Uint64(wide[:]), binary.BigEndian.Uint64(wide[8:])
	if p[0]&0x40 != 0 || hi != 0 || lo > math.MaxInt64 {
		return 0, errSparse // negative or too large
	}
	return int64(lo), nil
}
