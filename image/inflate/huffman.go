package inflate

import "encoding/binary"

const badSymbol = "bad symbol or distance"

// multiples are the least multiples of 1 to 7 that are 8 or more.
var multiples = [8]uint8{1: 8, 2: 8, 3: 9, 4: 8, 5: 10, 6: 12, 7: 14}

// huffman decodes symbols until out is filled up to stop or the block ends.
func (z *Reader) huffman(stop int) error {
	for z.w < stop && z.state == stateHuffman {
		if z.in.n-z.in.pos < inputSlack {
			if z.in.fill(); z.in.n-z.in.pos < inputSlack {
				if err := z.symbol(); err != nil {
					return err
				}
				continue
			}
		}
		if !z.symbols(stop) {
			return z.bad(badSymbol)
		}
	}
	return nil
}

// symbols decodes symbols while inputSlack bytes of input are buffered, until
// out is filled up to stop or the block ends. It reports whether it met with
// nothing bad. It is one function, and long, because its state lives in
// registers.
func (z *Reader) symbols(stop int) (ok bool) {
	var (
		in    = &z.in.buf
		pos   = z.in.pos
		limit = z.in.n - inputSlack
		bits  = z.bits
		nbits = z.nbits
		out   = &z.out
		w     = z.w
		lit   = z.lit
		dist  = z.dist
		floor = z.floor()
	)
	ok = true
loop:
	for w < stop && pos <= limit {
		bits |= binary.LittleEndian.Uint64(in[pos:]) << (nbits & 63)
		pos += int((63 - nbits) >> 3)
		nbits |= 56
		e := lit[bits&(1<<litBits-1)]
		if e&entryLiteral != 0 {
			bits >>= e & 31
			nbits -= uint(e & 31)
			out[w] = byte(e >> 16)
			w++
			if e = lit[bits&(1<<litBits-1)]; e&entryLiteral != 0 {
				bits >>= e & 31
				nbits -= uint(e & 31)
				out[w] = byte(e >> 16)
				w++
				if e = lit[bits&(1<<litBits-1)]; e&entryLiteral != 0 {
					bits >>= e & 31
					nbits -= uint(e & 31)
					out[w] = byte(e >> 16)
					w++
					continue
				}
			}
			bits |= binary.LittleEndian.Uint64(in[pos:]) << (nbits & 63)
			pos += int((63 - nbits) >> 3)
			nbits |= 56
		}
		if e&entrySpecial != 0 {
			if e&entrySub != 0 {
				bits >>= litBits
				nbits -= litBits
				e = lit[uint32(bits)&(1<<(e>>8&15)-1)+e>>16]
			}
			switch {
			case e&entryLiteral != 0:
				bits >>= e & 31
				nbits -= uint(e & 31)
				out[w] = byte(e >> 16)
				w++
				continue
			case e&entryEnd != 0:
				bits >>= e & 31
				nbits -= uint(e & 31)
				z.state = stateBlock
				break loop
			case e&entrySpecial != 0:
				ok = false
				break loop
			}
		}
		n := int(uint32(bits)&(1<<(e&31)-1)>>(e>>8&15) + e>>16)
		bits >>= e & 31
		nbits -= uint(e & 31)

		e = dist[bits&(1<<distBits-1)]
		if e&entrySpecial != 0 {
			if e&entrySub != 0 {
				bits >>= distBits
				nbits -= distBits
				e = dist[uint32(bits)&(1<<(e>>8&15)-1)+e>>16]
			}
			if e&entrySpecial != 0 {
				ok = false
				break
			}
		}
		d := int(uint32(bits)&(1<<(e&31)-1)>>(e>>8&15) + e>>16)
		bits >>= e & 31
		nbits -= uint(e & 31)

		src := w - d
		if src < floor {
			if src < z.hist {
				ok = false
				break
			}
			z.refs.note(src, n)
		}
		switch {
		case d >= 8 && (n <= 32 || d < n):
			for i := 0; i < n; i += 8 {
				binary.LittleEndian.PutUint64(out[w+i:], binary.LittleEndian.Uint64(out[src+i:]))
			}
		case d >= 8:
			copy(out[w:w+n], out[src:src+n])
		default:
			// A short pattern repeats at any multiple of its length too.
			for i := range 8 {
				out[w+i] = out[src+i]
			}
			far := w - int(multiples[d])
			for i := 8; i < n; i += 8 {
				binary.LittleEndian.PutUint64(out[w+i:], binary.LittleEndian.Uint64(out[far+i:]))
			}
		}
		w += n
	}
	z.in.pos, z.bits, z.nbits, z.w = pos, bits, nbits, w
	return ok
}

// symbol decodes one symbol where the input may end before it does. Nothing
// comes of a symbol that is not there in full.
func (z *Reader) symbol() error {
	if err := z.refill(); err != nil {
		return err
	}
	e := lookup(z, z.lit[:], litBits)
	switch {
	case e&entryLiteral != 0:
		z.take(uint(e & 31))
		if err := z.overrun(); err != nil {
			return err
		}
		z.out[z.w] = byte(e >> 16)
		z.w++
		return nil
	case e&(entrySpecial|entryEnd) == entrySpecial|entryEnd:
		z.take(uint(e & 31))
		if err := z.overrun(); err != nil {
			return err
		}
		z.state = stateBlock
		return nil
	case e&entrySpecial != 0:
		return z.bad(badSymbol)
	}
	n := z.value(e)
	e = lookup(z, z.dist[:], distBits)
	if e&entrySpecial != 0 {
		return z.bad(badSymbol)
	}
	d := z.value(e)
	if err := z.overrun(); err != nil {
		return err
	}
	src := z.w - d
	if src < z.floor() {
		if src < z.hist {
			return z.bad(badSymbol)
		}
		z.refs.note(src, n)
	}
	for i := 0; i < n; {
		i += copy(z.out[z.w+i:z.w+n], z.out[src:z.w+i])
	}
	z.w += n
	return nil
}

// lookup returns the entry of the next symbol. The bits that lead to a subtable
// are used up, those of the entry are not.
func lookup(z *Reader, table []uint32, mainBits uint) uint32 {
	e := table[z.bits&(1<<mainBits-1)]
	if e&entryLiteral == 0 && e&(entrySpecial|entrySub) == entrySpecial|entrySub {
		z.take(mainBits)
		e = table[uint32(z.bits)&(1<<(e>>8&15)-1)+e>>16]
	}
	return e
}

// value returns the length or distance of an entry and uses up its bits.
func (z *Reader) value(e uint32) int {
	code := uint(e >> 8 & 15)
	return int(e>>16) + int(z.take(uint(e&31))>>code)
}

// floor returns the first byte of out that can be referred to with no further
// ado: those before are out of reach, or noted.
func (z *Reader) floor() int {
	if z.refs != nil {
		return max(z.hist, z.refs.at)
	}
	return z.hist
}
