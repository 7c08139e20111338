package inflate

import (
	"bytes"
	"math/bits"
)

// stride is how many bytes are decoded between two calls of an observer, at
// most, but for a match that goes beyond it.
const stride = 1 << 10

// An Observer is told how a Reader gets on.
type Observer interface {
	// Decoded is called when p, maybe nothing, has been decoded since the last
	// call: where a block ends, where the header of one does, and in between
	// at least every few KiB of decoded or encoded bytes. It may use the reader's
	// Block, BitOffset, Window, Encoded, Watch and Unwatch.
	Decoded(p []byte)
}

// Observe makes o the reader's observer, until Reset.
func (z *Reader) Observe(o Observer) { z.observer = o }

// observe decodes like fill does, step by step.
func (z *Reader) observe(stop int) {
	for z.w < stop && z.err == nil {
		at := z.w
		if z.err = z.decode(min(z.w+stride, stop)); z.err == nil {
			z.observer.Decoded(z.out[at:z.w])
		}
	}
}

// Block reports whether the stream goes on with the header of a block.
func (z *Reader) Block() bool { return z.state == stateBlock && !z.final }

// BitOffset returns the offset in the encoded bytes, counted in bits, at which
// decoding goes on.
func (z *Reader) BitOffset() int64 { return z.bitPos() }

// Decoded returns how many bytes have been decoded since Reset, whether they
// were read or not.
func (z *Reader) Decoded() int64 { return z.base + int64(z.w) }

// Window returns the bytes that the stream may refer to from here on.
func (z *Reader) Window() []byte { return z.out[max(z.hist, z.w-WindowSize):z.w] }

// Encoded returns the encoded bytes from the given offset to the last one of
// which a bit has been used. The offset must be no smaller than the place of the
// observer's last call.
func (z *Reader) Encoded(from int64) []byte {
	to := min(z.in.pos-int(z.nbits>>3), z.in.n)
	return z.in.buf[min(int(from-z.in.base), to):to]
}

// Watch begins to note which of the bytes of the window the rest of the stream
// refers to.
func (z *Reader) Watch() *References {
	z.refs = &References{at: z.w}
	return z.refs
}

// Unwatch ends what Watch began.
func (z *Reader) Unwatch() { z.refs = nil }

// References are the bytes of a window that are referred to from behind it.
type References struct {
	at   int // where the window ends in the reader's buffer
	used [WindowSize / 64]uint64
}

// note enters that the n bytes from src on are referred to.
func (r *References) note(src, n int) {
	from := src - r.at + WindowSize
	for i := from; i < min(from+n, WindowSize); {
		// Set the bits of one word.
		to := min(from+n, WindowSize, i|63+1)
		r.used[i>>6] |= (1<<(to-i) - 1) << (i & 63)
		i = to
	}
}

// first returns the first byte in use, or WindowSize.
func (r *References) first() int {
	for i, w := range r.used {
		if w != 0 {
			return i<<6 + bits.TrailingZeros64(w)
		}
	}
	return WindowSize
}

// Trim returns the window from its first byte in use on, with those that are not
// in use set to zero. It is nil if none is in use.
func (r *References) Trim(window []byte) []byte {
	first := r.first()
	if first == WindowSize {
		return nil
	}
	missing := WindowSize - len(window)
	w := bytes.Clone(window[first-missing:])
	for i := range w {
		if k := first + i; r.used[k>>6]>>(k&63)&1 == 0 {
			w[i] = 0
		}
	}
	return w
}
