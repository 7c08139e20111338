package imagetest

import (
	"bytes"
	"fmt"
	"strconv"
)

const blockSize = 512

// A rawHeader is what the headers that are written by hand have in them. It
// knows the old formats only, which archive/tar doesn't write or not in full.
type rawHeader struct {
	name  string // at most 100 bytes
	kind  byte
	size  int64
	magic string // "ustar\x0000", "ustar  \x00" for GNU, or "" for the oldest format
	extra func(block []byte)
}

// bytes returns the header block.
func (h rawHeader) bytes() []byte {
	block := make([]byte, blockSize)
	copy(block[0:100], h.name)
	octal := func(field []byte, v int64) { copy(field, fmt.Sprintf("%0*o", len(field)-1, v)) }
	octal(block[100:108], 0o644)
	octal(block[108:116], 0)
	octal(block[116:124], 0)
	octal(block[124:136], h.size)
	octal(block[136:148], Epoch.Unix())
	block[156] = h.kind
	copy(block[257:265], h.magic)
	if h.extra != nil {
		h.extra(block)
	}
	copy(block[148:156], "        ")
	sum := 0
	for _, b := range block {
		sum += int(b)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return block
}

const (
	ustarMagic = "ustar\x0000"
	gnuMagic   = "ustar  \x00"
)

// padded returns p with zeros up to whole blocks.
func padded(p []byte) []byte {
	return append(p[:len(p):len(p)], make([]byte, -len(p)&(blockSize-1))...)
}

// member returns the member of header h with the given contents.
func (h rawHeader) member(body []byte) Member {
	h.size = int64(len(body))
	m := Member{Raw: append(h.bytes(), padded(body)...)}
	m.Header.Name = h.name // for messages
	return m
}

// paxHeader returns the extended header with the given records, key and value
// by turns.
func paxHeader(records ...string) []byte {
	var body bytes.Buffer
	for i := 0; i < len(records); i += 2 {
		rest := " " + records[i] + "=" + records[i+1] + "\n"
		n := len(rest)
		for len(strconv.Itoa(n))+len(rest) > n { // a record's length counts its own digits
			n++
		}
		body.WriteString(strconv.Itoa(n) + rest)
	}
	return rawHeader{name: "PaxHeaders/x", kind: 'x', magic: ustarMagic}.member(body.Bytes()).Raw
}

// A fragment is a stretch of a sparse file that is not a hole.
type fragment struct {
	off  int64
	data []byte
}

// sparsePAX returns a sparse file as GNU tar writes it since 2006: version 1.0
// of its extension of the PAX format, with the map in front of the data.
func sparsePAX(name string, size int64, frags []fragment) Member {
	body := fmt.Appendf(nil, "%d\n", len(frags))
	for _, f := range frags {
		body = fmt.Appendf(body, "%d\n%d\n", f.off, len(f.data))
	}
	body = padded(body)
	for _, f := range frags {
		body = append(body, f.data...)
	}
	raw := paxHeader(
		"GNU.sparse.major", "1",
		"GNU.sparse.minor", "0",
		"GNU.sparse.name", name,
		"GNU.sparse.realsize", strconv.FormatInt(size, 10),
	)
	m := rawHeader{name: "GNUSparseFile.0/sparse", kind: '0', magic: ustarMagic}.member(body)
	m.Raw = append(raw, m.Raw...)
	m.Header.Name = name
	return m
}

// sparsePAX01 returns a sparse file in version 0.1 of that extension, with the
// map in the extended header.
func sparsePAX01(name string, size int64, frags []fragment) Member {
	var list, body []byte
	for i, f := range frags {
		if i > 0 {
			list = append(list, ',')
		}
		list = fmt.Appendf(list, "%d,%d", f.off, len(f.data))
		body = append(body, f.data...)
	}
	raw := paxHeader(
		"GNU.sparse.name", name,
		"GNU.sparse.size", strconv.FormatInt(size, 10),
		"GNU.sparse.numblocks", strconv.Itoa(len(frags)),
		"GNU.sparse.map", string(list),
	)
	m := rawHeader{name: "GNUSparseFile.0/sparse01", kind: '0', magic: ustarMagic}.member(body)
	m.Raw = append(raw, m.Raw...)
	m.Header.Name = name
	return m
}

// sparseGNU returns a sparse file in the old GNU format, whose map begins in
// the header and goes on in blocks of its own.
func sparseGNU(name string, size int64, frags []fragment) Member {
	var body []byte
	for _, f := range frags {
		body = append(body, f.data...)
	}
	put := func(field []byte, frags []fragment) {
		for i, f := range frags {
			copy(field[24*i:], fmt.Sprintf("%011o", f.off))
			copy(field[24*i+12:], fmt.Sprintf("%011o", len(f.data)))
		}
	}
	inHeader := frags[:min(4, len(frags))]
	rest := frags[len(inHeader):]
	h := rawHeader{name: name, kind: 'S', size: int64(len(body)), magic: gnuMagic, extra: func(block []byte) {
		put(block[386:482], inHeader)
		if len(rest) > 0 {
			block[482] = 1
		}
		copy(block[483:495], fmt.Sprintf("%011o", size))
	}}
	raw := h.bytes()
	for len(rest) > 0 {
		block := make([]byte, blockSize)
		n := min(21, len(rest))
		put(block, rest[:n])
		if rest = rest[n:]; len(rest) > 0 {
			block[504] = 1
		}
		raw = append(raw, block...)
	}
	m := Member{Raw: append(raw, padded(body)...)}
	m.Header.Name = name
	return m
}
