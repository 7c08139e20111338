package inflate

import (
	"bytes"
	stdflate "compress/flate"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"graze/image/inflate/inflatetest"

	"github.com/klauspost/compress/flate"
)

// skewed returns n bytes of a distribution so skewed that the codes of some are
// as long as they can be.
func skewed(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(bits.LeadingZeros64(rng.Uint64())*7 + rng.IntN(2))
	}
	return p
}

// contents are what streams of tests hold.
var contents = map[string][]byte{
	"nothing":  nil,
	"one byte": {'x'},
	"text":     inflatetest.Text(1, 400_000),
	"noise":    inflatetest.Noise(1, 120_000),
	"zeros":    make([]byte, 200_000),
	"pairs":    bytes.Repeat([]byte("ab"), 60_000),
	"sevens":   bytes.Repeat([]byte("abcdefg"), 18_000),
	"skewed":   skewed(1, 150_000),
	"far back": bytes.Repeat(inflatetest.Noise(2, WindowSize), 3),
	"mixed":    bytes.Join([][]byte{inflatetest.Text(2, 70_000), inflatetest.Noise(3, 70_000), make([]byte, 70_000), inflatetest.Text(2, 70_000)}, nil),
}

// An encoding is a way to make a deflate stream.
type encoding struct {
	name   string
	encode func(t testing.TB, p []byte) []byte
}

// encodings are those of both libraries at all levels: Huffman only, stored,
// fastest to best, and with flushes.
func encodings() (all []encoding) {
	type writer interface {
		Write([]byte) (int, error)
		Flush() error
		Close() error
	}
	add := func(name string, flush int, open func(*bytes.Buffer) (writer, error)) {
		all = append(all, encoding{name, func(t testing.TB, p []byte) []byte {
			t.Helper()
			var b bytes.Buffer
			w, err := open(&b)
			if err != nil {
				t.Fatal(err)
			}
			for len(p) > 0 && err == nil {
				n := min(len(p), flush)
				if _, err = w.Write(p[:n]); err == nil && n < len(p) {
					err = w.Flush()
				}
				p = p[n:]
			}
			if err == nil {
				err = w.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			return b.Bytes()
		}})
	}
	for level := -2; level <= 9; level++ {
		add(fmt.Sprint("go ", level), 1<<30, func(b *bytes.Buffer) (writer, error) { return stdflate.NewWriter(b, level) })
		add(fmt.Sprint("klauspost ", level), 1<<30, func(b *bytes.Buffer) (writer, error) { return flate.NewWriter(b, level) })
	}
	add("flushed", 3001, func(b *bytes.Buffer) (writer, error) { return stdflate.NewWriter(b, 6) })
	return all
}

// A bitWriter writes deflate data by hand.
type bitWriter struct {
	p    []byte
	bits uint64
	n    uint
}

// write writes the low n bits of v, lowest first.
func (w *bitWriter) write(v uint64, n uint) {
	w.bits |= v << w.n
	for w.n += n; w.n >= 8; w.n -= 8 {
		w.p = append(w.p, byte(w.bits))
		w.bits >>= 8
	}
}

// code writes a Huffman code, highest bit first.
func (w *bitWriter) code(v uint64, n uint) {
	w.write(bits.Reverse64(v)>>(64-n), n)
}

// symbol writes a literal or length symbol in the fixed code.
func (w *bitWriter) symbol(s int) {
	switch v := uint64(s); {
	case s < 144:
		w.code(0x30+v, 8)
	case s < 256:
		w.code(0x190+v-144, 9)
	case s < 280:
		w.code(v-256, 7)
	default:
		w.code(0xc0+v-280, 8)
	}
}

// fixed begins a block with fixed codes.
func (w *bitWriter) fixed(final bool) {
	if final {
		w.write(1, 1)
	} else {
		w.write(0, 1)
	}
	w.write(1, 2)
}

// literals writes bytes.
func (w *bitWriter) literals(p []byte) {
	for _, b := range p {
		w.symbol(int(b))
	}
}

// match writes a copy of n bytes from d bytes before.
func (w *bitWriter) match(n, d int) {
	if n == maxMatch {
		w.symbol(285)
	} else {
		for s := 284; s > 256; s-- {
			if e := litSymbols[s]; int(e>>16) <= n {
				w.symbol(s)
				w.write(uint64(n-int(e>>16)), uint(e&31))
				break
			}
		}
	}
	for s := maxDist - 1; s >= 0; s-- {
		if e := distSymbols[s]; int(e>>16) <= d {
			w.code(uint64(s), 5)
			w.write(uint64(d-int(e>>16)), uint(e&31))
			break
		}
	}
}

// stored writes a stored block.
func (w *bitWriter) stored(final bool, p []byte) {
	if final {
		w.write(1, 3)
	} else {
		w.write(0, 3)
	}
	w.align()
	w.write(uint64(len(p)), 16)
	w.write(uint64(^uint16(len(p))), 16)
	w.p = append(w.p, p...)
}

// align goes on to a byte's beginning.
func (w *bitWriter) align() { w.write(0, -w.n&7) }

// end ends a block, and the stream's last byte.
func (w *bitWriter) end() []byte {
	w.symbol(256)
	w.align()
	return w.p
}
