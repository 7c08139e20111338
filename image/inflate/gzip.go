package inflate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// Parts of a gzip member (RFC 1952, section 2.3).
const (
	// Magic is what a gzip member begins with: its two magic bytes, and the
	// number of the only compression method there is.
	Magic = "\x1f\x8b\x08"

	// HeaderLen is the length of a header without optional fields, in bytes.
	HeaderLen = 10
	// TrailerLen is the length of a trailer, in bytes.
	TrailerLen = 8

	flagHeaderCRC = 1 << 1
	flagExtra     = 1 << 2
	flagName      = 1 << 3
	flagComment   = 1 << 4
	flagsReserved = 7 << 5
)

// A Gzip decodes the members of a gzip file one by one, and verifies the
// checksum and the size of each that it decodes from its first byte to its last.
type Gzip struct {
	z      Reader
	in     *Input
	member bool // z decodes a member
	whole  bool // it was begun at its header, so that these count
	crc    uint32
	size   uint32 // modulo 1<<32
}

// Reset lets go of the input and the observer, and begins to count at zero.
func (g *Gzip) Reset() {
	g.z.Reset()
	g.in, g.member = nil, false
}

// Deflate returns the reader of the members' data, for its observation only.
func (g *Gzip) Deflate() *Reader { return &g.z }

// Next reads the header of a member. It returns io.EOF if the input does not go
// on with one.
func (g *Gzip) Next(in *Input) error {
	g.in, g.member = in, false
	if err := header(in); err != nil {
		return err
	}
	g.z.Start(in)
	g.member, g.whole, g.crc, g.size = true, true, 0, 0
	return nil
}

// Resume begins within a member: see Reader.Resume.
func (g *Gzip) Resume(in *Input, skip uint8, window []byte) {
	g.in = in
	g.z.Resume(in, skip, window)
	g.member, g.whole = true, false
}

// Offset returns how many bytes were read from the members since Reset.
func (g *Gzip) Offset() int64 { return g.z.Offset() }

// Peek returns the next bytes without reading them: at most n, and at least one
// unless there is an error. It is io.EOF at the end of a member, when its trailer
// has been read and found right.
func (g *Gzip) Peek(n int) ([]byte, error) {
	if !g.member {
		return nil, io.EOF
	}
	p, err := g.z.Peek(n)
	if err == io.EOF {
		if err = g.trailer(); err == nil {
			g.member, err = false, io.EOF
		}
		g.z.err = err
	}
	return p, err
}

// Discard passes over n bytes that Peek returned.
func (g *Gzip) Discard(n int) {
	if g.whole {
		g.crc = crc32.Update(g.crc, crc32.IEEETable, g.z.out[g.z.r:g.z.r+n])
		g.size += uint32(n)
	}
	g.z.Discard(n)
}

// Read returns decoded bytes, and io.EOF at the end of a member.
func (g *Gzip) Read(p []byte) (int, error) {
	q, err := g.Peek(len(p))
	n := copy(p, q)
	g.Discard(n)
	return n, err
}

// trailer reads the trailer of the member and compares it with the data.
func (g *Gzip) trailer() error {
	p := g.in.peek(TrailerLen)
	if len(p) < TrailerLen {
		return g.in.short()
	}
	if g.whole && binary.LittleEndian.Uint32(p) != g.crc {
		return bad(g.in, "wrong checksum of the data")
	}
	if g.whole && binary.LittleEndian.Uint32(p[4:]) != g.size {
		return bad(g.in, "wrong size of the data")
	}
	g.in.pos += TrailerLen
	return nil
}

// header reads a gzip header. It returns io.EOF, and has read nothing, if there
// is none.
func header(in *Input) error {
	p := in.peek(HeaderLen)
	if !bytes.HasPrefix(p, []byte(Magic)) {
		if len(p) < len(Magic) && in.err != nil {
			return in.err // an input that ends here does so as it should
		}
		return io.EOF
	}
	if len(p) < HeaderLen {
		return in.short()
	}
	flags := p[3]
	if flags&flagsReserved != 0 {
		return bad(in, "reserved flags are set")
	}
	sum := crc32.ChecksumIEEE(p)
	in.pos += HeaderLen
	var err error
	next := func() (b byte) {
		if err == nil {
			if b, err = in.readByte(); err == nil {
				sum = crc32.Update(sum, crc32.IEEETable, in.buf[in.pos-1:in.pos])
			}
		}
		return b
	}
	if flags&flagExtra != 0 {
		for range int(next()) | int(next())<<8 {
			next()
		}
	}
	for _, text := range []byte{flagName, flagComment} {
		for flags&text != 0 && next() != 0 && err == nil {
		}
	}
	if flags&flagHeaderCRC != 0 {
		want := uint16(sum)
		if got := uint16(next()) | uint16(next())<<8; err == nil && got != want {
			return bad(in, "wrong checksum of the header")
		}
	}
	return err
}

// bad returns ErrCorrupt for a gzip header or trailer.
func bad(in *Input, what string) error {
	return fmt.Errorf("%w: gzip: %s at byte %d", ErrCorrupt, what, in.Offset())
}
