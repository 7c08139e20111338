package inflate

import (
	"math/bits"
	"sync"
)

// Decoding tables for the Huffman codes of deflate (RFC 1951, section 3.2).
//
// A table is indexed by the next bits of the stream. Codes that are longer than
// the main part's index lead to a subtable for the bits that remain. An entry
// holds everything that a symbol needs, so that the decoding loop looks up once
// and shifts once for a symbol and its extra bits:
//
//	bits 0-4    bits to consume: the code's, and the extra bits after it
//	bits 8-11   bits of the code alone; for a subtable, the bits of its index
//	bits 16-30  literal, base of a length or distance, or index of a subtable
//	bit 31      set for a literal
//
// and the flags below.
const (
	entryLiteral = 1 << 31
	entrySpecial = 1 << 5 // neither a literal nor a length or distance
	entrySub     = 1 << 6 // with entrySpecial: leads to a subtable
	entryEnd     = 1 << 7 // with entrySpecial: end of the block

	litBits  = 11
	distBits = 8
	codeBits = 7

	// The largest tables that complete codes of 288 and 32 symbols, with at most
	// 15 bits each, can need for these main parts.
	litTableLen  = 2342
	distTableLen = 402

	maxCodeLen = 15
	maxLit     = 286
	maxDist    = 30
	endOfBlock = 256
)

type (
	litTable  [litTableLen]uint32
	distTable [distTableLen]uint32
)

// What the symbols mean, as the table entries without the bits of the codes.
var (
	litSymbols  = makeLitSymbols()
	distSymbols = makeDistSymbols()
	codeSymbols = makeCodeSymbols()
)

func makeLitSymbols() (t [288]uint32) {
	for i := range endOfBlock {
		t[i] = entryLiteral | uint32(i)<<16
	}
	t[endOfBlock] = entrySpecial | entryEnd
	base := uint32(3)
	for i := 257; i < 285; i++ {
		extra := uint32(0)
		if i >= 265 {
			extra = uint32(i-261) / 4
		}
		t[i] = base<<16 | extra
		base += 1 << extra
	}
	t[285] = 258 << 16
	t[286], t[287] = entrySpecial, entrySpecial
	return t
}

func makeDistSymbols() (t [32]uint32) {
	base := uint32(1)
	for i := range maxDist {
		extra := uint32(0)
		if i >= 4 {
			extra = uint32(i-2) / 2
		}
		t[i] = base<<16 | extra
		base += 1 << extra
	}
	t[30], t[31] = entrySpecial, entrySpecial
	return t
}

func makeCodeSymbols() (t [19]uint32) {
	for i := range t {
		t[i] = uint32(i) << 16
	}
	return t
}

// fixedTables returns the tables of the fixed Huffman codes.
var fixedTables = sync.OnceValues(func() (*litTable, *distTable) {
	var lens [288]uint8
	for i := range lens {
		switch {
		case i < 144 || i >= 280:
			lens[i] = 8
		case i < 256:
			lens[i] = 9
		default:
			lens[i] = 7
		}
	}
	for i := 256; i < 280; i++ {
		lens[i] = 7
	}
	lit, dist := new(litTable), new(distTable)
	var dlens [32]uint8
	for i := range dlens {
		dlens[i] = 5
	}
	if !buildTable(lit[:], litBits, lens[:], litSymbols[:]) || !buildTable(dist[:], distBits, dlens[:], distSymbols[:]) {
		panic("inflate: the fixed Huffman codes are not complete")
	}
	return lit, dist
})

// buildTable fills table for the canonical code that gives symbol i a code of
// lens[i] bits, none if that is 0. It reports whether the code is one that may
// be used: complete, or of no symbol, or of one symbol with one bit.
func buildTable(table []uint32, mainBits uint, lens []uint8, symbols []uint32) bool {
	var count [maxCodeLen + 1]int
	for _, n := range lens {
		count[n]++
	}
	used := len(lens) - count[0]
	count[0] = 0
	left := 1
	for _, n := range count[1:] {
		if left = left<<1 - n; left < 0 {
			return false
		}
	}
	if left != 0 && (used > 1 || used == 1 && count[1] != 1) {
		return false
	}

	// Sort the symbols by the length of their codes.
	var first [maxCodeLen + 2]int
	for n := 1; n <= maxCodeLen; n++ {
		first[n+1] = first[n] + count[n]
	}
	var sorted [288]uint16
	for i, n := range lens {
		if n > 0 {
			sorted[first[n]] = uint16(i)
			first[n]++
		}
	}

	main := table[:1<<mainBits]
	for i := range main {
		main[i] = entrySpecial
	}
	b := tableBuilder{table: table, mainBits: mainBits, next: 1 << mainBits, prefix: -1, count: count}
	code, length := 0, uint(0)
	for _, sym := range sorted[:used] {
		n := uint(lens[sym])
		code <<= n - length
		length = n
		rev := int(bits.Reverse16(uint16(code)) >> (16 - n))
		if !b.add(rev, n, symbols[sym]) {
			return false
		}
		code++
	}
	return true
}

// A tableBuilder adds the codes of a table by rising length.
type tableBuilder struct {
	table    []uint32
	mainBits uint
	next     int                 // first free entry
	prefix   int                 // main part's index of the current subtable
	sub      int                 // the current subtable
	subBits  uint                // bits of its index
	count    [maxCodeLen + 1]int // codes not yet added, by length
}

// add enters a symbol whose code has n bits, rev being the code in the order in
// which its bits are read.
func (b *tableBuilder) add(rev int, n uint, symbol uint32) bool {
	defer func() { b.count[n]-- }()
	if n <= b.mainBits {
		e := symbol + uint32(n) | uint32(n)<<8
		for i := rev; i < 1<<b.mainBits; i += 1 << n {
			b.table[i] = e
		}
		return true
	}
	if prefix := rev & (1<<b.mainBits - 1); prefix != b.prefix {
		// The subtable must be as wide as the longest code with this prefix.
		b.prefix, b.sub, b.subBits = prefix, b.next, n-b.mainBits
		for space := b.count[n]; space < 1<<b.subBits && b.mainBits+b.subBits < maxCodeLen; {
			b.subBits++
			space = space<<1 + b.count[b.mainBits+b.subBits]
		}
		b.next += 1 << b.subBits
		if b.next > len(b.table) {
			return false
		}
		b.table[prefix] = entrySpecial | entrySub | uint32(b.subBits)<<8 | uint32(b.sub)<<16
	}
	rest := n - b.mainBits
	e := symbol + uint32(rest) | uint32(rest)<<8
	for i := rev >> b.mainBits; i < 1<<b.subBits; i += 1 << rest {
		b.table[b.sub+i] = e
	}
	return true
}
