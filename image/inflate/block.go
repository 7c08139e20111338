package inflate

import (
	"encoding/binary"
	"io"
)

// block reads the header of a block.
func (z *Reader) block() error {
	if z.final {
		z.state = stateEnd
		return io.EOF
	}
	if err := z.refill(); err != nil {
		return err
	}
	final := z.take(1) == 1
	switch z.take(2) {
	case 0:
		if err := z.startStored(); err != nil {
			return err
		}
	case 1:
		z.lit, z.dist = fixedTables()
		z.state = stateHuffman
	case 2:
		if err := z.readTables(); err != nil {
			return err
		}
		z.lit, z.dist = &z.ownLit, &z.ownDis
		z.state = stateHuffman
	default:
		return z.bad("reserved block type")
	}
	z.final = final
	return z.overrun()
}

// startStored reads the lengths of a stored block.
func (z *Reader) startStored() error {
	if err := z.overrun(); err != nil {
		return err
	}
	z.take(z.nbits & 7)
	z.unload()
	p := z.in.peek(4)
	if len(p) < 4 {
		return z.in.short()
	}
	n, not := binary.LittleEndian.Uint16(p), binary.LittleEndian.Uint16(p[2:])
	if n != ^not {
		return z.bad("stored block with unequal lengths")
	}
	z.in.pos += 4
	z.stored = int(n)
	z.state = stateStored
	return nil
}

// copyStored copies bytes of a stored block until out is filled up to stop.
func (z *Reader) copyStored(stop int) error {
	for z.stored > 0 && z.w < stop {
		if z.in.pos == z.in.n {
			if z.in.fill(); z.in.pos == z.in.n {
				return z.in.short()
			}
		}
		n := min(z.stored, stop-z.w, z.in.n-z.in.pos)
		copy(z.out[z.w:z.w+n], z.in.buf[z.in.pos:z.in.pos+n])
		z.in.pos += n
		z.w += n
		z.stored -= n
	}
	if z.stored == 0 {
		z.state = stateBlock
	}
	return nil
}

// codeOrder is the order in which the lengths of the code lengths' codes stand.
var codeOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// readTables reads the codes of a block with dynamic Huffman codes.
func (z *Reader) readTables() error {
	nlit, ndist, ncode := int(z.take(5))+257, int(z.take(5))+1, int(z.take(4))+4
	if nlit > maxLit || ndist > maxDist {
		return z.bad("too many symbols")
	}
	var codeLens [19]uint8
	for i := range ncode {
		if err := z.refill(); err != nil {
			return err
		}
		codeLens[codeOrder[i]] = uint8(z.take(3))
	}
	var codes [1 << codeBits]uint32
	if !buildTable(codes[:], codeBits, codeLens[:], codeSymbols[:]) {
		return z.bad("bad code lengths")
	}
	var lens [maxLit + maxDist]uint8
	if err := z.readLengths(&codes, lens[:nlit+ndist]); err != nil {
		return err
	}
	if !buildTable(z.ownLit[:], litBits, lens[:nlit], litSymbols[:]) {
		return z.bad("bad literal codes")
	}
	if !buildTable(z.ownDis[:], distBits, lens[nlit:nlit+ndist], distSymbols[:]) {
		return z.bad("bad distance codes")
	}
	return nil
}

// readLengths reads the lengths of the codes of all symbols.
func (z *Reader) readLengths(codes *[1 << codeBits]uint32, lens []uint8) error {
	for i := 0; i < len(lens); {
		if err := z.refill(); err != nil {
			return err
		}
		e := codes[z.bits&(1<<codeBits-1)]
		if e&entrySpecial != 0 {
			return z.bad("bad code length")
		}
		z.take(uint(e & 31))
		value, repeat := uint8(0), 1
		switch sym := e >> 16; sym {
		case 16:
			if i == 0 {
				return z.bad("no code length to repeat")
			}
			value, repeat = lens[i-1], 3+int(z.take(2))
		case 17:
			repeat = 3 + int(z.take(3))
		case 18:
			repeat = 11 + int(z.take(7))
		default:
			value = uint8(sym)
		}
		if repeat > len(lens)-i {
			return z.bad("too many code lengths")
		}
		for range repeat {
			lens[i] = value
			i++
		}
	}
	return nil
}
