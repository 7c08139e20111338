package image

import "graze/chunk"

// A Seal says how the one chunk of a sealed span is decoded: see SpanRow.Seal.
type Seal struct {
	Codec  chunk.Codec
	Bits   uint8 // with chunk.Deflate: as in chunk.Span
	Size   int32 // decoded
	Window WindowRow
}

// Seal returns how the chunk of span n is decoded, if the span is sealed. The number
// must be below NumSpans.
func (v *View) Seal(n uint32) (s Seal, ok bool) {
	if v.opened(n) == 0 {
		return Seal{}, false
	}
	row := v.spanRow(n)
	return Seal{Codec: row.Seal, Bits: row.Bits, Size: row.Opened, Window: row.Window}, true
}

// FirstChunk returns the number of the first chunk of span n, which must be below
// NumSpans.
func (v *View) FirstChunk(n uint32) uint32 { return v.spanRow(n).First }

// opened returns how many bytes the chunk of span n decodes to if the span is
// sealed, and 0 if it is not.
func (v *View) opened(n uint32) int32 {
	return int32(le.Uint32(v.secs[secSpans][int(n)*spanRow+52:]))
}
