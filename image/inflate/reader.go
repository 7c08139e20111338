package inflate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// WindowSize is the most that a deflate stream can refer back, in bytes.
	WindowSize = 32 << 10
	// maxMatch is the longest that a symbol can copy, in bytes.
	maxMatch = 258
	// outputSize is how much can be decoded ahead of the caller, in bytes.
	outputSize = 64 << 10
	// full is where decoding stops at the latest; it can go beyond by what one
	// round of the fast loop decodes after it was entered just before.
	full = WindowSize + outputSize
	// outputSlack is that, two literals and a match, and the 7 bytes that copies
	// by words may write too many.
	outputSlack = 2 + maxMatch + 7
)

// ErrCorrupt says that data are not what an encoder makes.
var ErrCorrupt = errors.New("corrupt deflate data")

// A state says what a Reader does next.
type state uint8

const (
	stateEnd     state = iota // nothing: the stream has ended
	stateBlock                // read the header of a block, or end
	stateStored               // copy a stored block
	stateHuffman              // decode symbols
)

// A Reader decodes one deflate stream at a time. The zero value has none, and
// reads as if it had come to the end of one; Start or Resume begins another.
type Reader struct {
	in    *Input
	bits  uint64 // the next bits of the stream, lowest first
	nbits uint   // how many of them count; those above are right but loaded again

	// out holds up to WindowSize bytes of history, then what is not yet read.
	out  [full + outputSlack]byte
	r, w int
	base int64 // offset in all that was decoded of out[0]
	hist int   // first byte of out that the stream may refer to
	err  error // comes after what is not yet read

	lit    *litTable
	dist   *distTable
	ownLit litTable
	ownDis distTable
	final  bool
	stored int // bytes left of a stored block
	state  state

	observer Observer
	refs     *References // notes what lies before refs.at, if not nil
}

// Reset lets go of the input and the observer, and begins to count at zero.
func (z *Reader) Reset() {
	z.in, z.observer, z.refs = nil, nil, nil
	z.r, z.w, z.base, z.hist = 0, 0, 0, 0
	z.final, z.state, z.err = false, stateEnd, nil
}

// Start begins a stream at the input's next byte. What was not read of the one
// before is lost.
func (z *Reader) Start(in *Input) {
	z.in = in
	z.bits, z.nbits = 0, 0
	z.r, z.hist = z.w, z.w
	z.final, z.state, z.err = false, stateBlock, nil
	z.refs = nil
}

// Resume begins within a stream, at the header of a block that starts skip bits,
// at most 7, into the input's next byte. It may refer to the bytes of window, at
// most WindowSize, as those before it.
func (z *Reader) Resume(in *Input, skip uint8, window []byte) {
	z.base += int64(z.w)
	z.w = copy(z.out[:WindowSize], window)
	z.base -= int64(z.w)
	z.Start(in)
	z.hist = 0
	if z.err = z.refill(); z.err == nil {
		z.take(uint(skip & 7))
		z.err = z.overrun()
		z.unload()
	}
}

// Offset returns how many bytes were read from the streams since Reset.
func (z *Reader) Offset() int64 { return z.base + int64(z.r) }

// Peek returns the next bytes without reading them: at most n, and at least one
// unless there is an error. It is io.EOF at the end of the stream.
func (z *Reader) Peek(n int) ([]byte, error) {
	if z.r == z.w && n > 0 {
		if z.fill(n); z.r == z.w {
			return nil, z.err
		}
	}
	return z.out[z.r:min(z.w, z.r+n)], nil
}

// Discard passes over n bytes that Peek returned.
func (z *Reader) Discard(n int) { z.r += n }

// Read returns decoded bytes, and io.EOF at the end of the stream.
func (z *Reader) Read(p []byte) (int, error) {
	q, err := z.Peek(len(p))
	z.r += len(q)
	return copy(p, q), err
}

// fill decodes n bytes, or what there is room for, after all others were read. A
// reason to stop earlier is left in z.err.
func (z *Reader) fill(n int) {
	if full-z.w < min(n, outputSize) {
		z.slide()
	}
	stop := z.w + min(n, full-z.w)
	if z.observer != nil {
		z.observe(stop)
	} else {
		for z.w < stop && z.err == nil {
			z.err = z.decode(stop)
		}
	}
	z.unload()
}

// slide makes room in out.
func (z *Reader) slide() {
	shift := z.w - WindowSize
	copy(z.out[:], z.out[shift:z.w])
	z.w, z.r = WindowSize, WindowSize
	z.base += int64(shift)
	z.hist = max(z.hist-shift, 0)
	if z.refs != nil {
		z.refs.at -= shift
	}
}

// decode decodes until out is filled up to stop, or a little beyond it, or the
// state changes. At the end of the stream it returns io.EOF.
func (z *Reader) decode(stop int) error {
	switch z.state {
	case stateBlock:
		return z.block()
	case stateStored:
		return z.copyStored(stop)
	case stateHuffman:
		return z.huffman(stop)
	}
	return io.EOF
}

// refill makes at least 56 bits available, those beyond the end of the source
// being zero.
func (z *Reader) refill() error {
	if z.in.n-z.in.pos < inputSlack {
		if z.in.fill(); z.in.err != nil {
			if err := z.overrun(); err != nil {
				return err
			}
		}
	}
	z.bits |= binary.LittleEndian.Uint64(z.in.buf[z.in.pos:]) << (z.nbits & 63)
	z.in.pos += int((63 - z.nbits) >> 3)
	z.nbits |= 56
	return nil
}

// overrun returns an error if more bits were used than the source has.
func (z *Reader) overrun() error {
	if z.in.err != nil && z.in.pos<<3-int(z.nbits) > z.in.n<<3 {
		return z.in.short()
	}
	return nil
}

// take returns the next n bits, which must have been made available.
func (z *Reader) take(n uint) uint {
	v := uint(z.bits) & (1<<n - 1)
	z.bits >>= n
	z.nbits -= n
	return v
}

// unload puts the bytes back of which no bit was used.
func (z *Reader) unload() {
	if z.in == nil {
		return
	}
	z.in.pos = min(z.in.pos-int(z.nbits>>3), z.in.n)
	z.nbits &= 7
	z.bits &= 1<<z.nbits - 1
}

// bitPos returns the offset of the next bit of the encoded bytes.
func (z *Reader) bitPos() int64 { return z.in.Offset()<<3 - int64(z.nbits) }

// bad returns ErrCorrupt with what is wrong and where, if that is not that the
// stream ends early.
func (z *Reader) bad(what string) error {
	if err := z.overrun(); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s at byte %d", ErrCorrupt, what, z.bitPos()>>3)
}
