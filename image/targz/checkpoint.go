package targz

import (
	"bytes"
	"fmt"

	"graze/chunk"
	"graze/image/codec"
	"graze/image/inflate"
)

// A restart is a place at which the encoded layer can be decoded from.
type restart struct {
	at    int64 // place in the decoded stream
	off   int64 // place in the encoded stream
	codec chunk.Codec

	// The rest is for a deflate block within a gzip member.
	skip   uint8 // bits of the byte at off that belong to the block before
	window []byte
	refs   *inflate.References

	// What the stream goes on with, as far as the window matters, to try it out:
	// encoded from off on, and decoded.
	enc, dec []byte
}

// trim returns what of the window is in use: see inflate.References.Trim.
func (c *restart) trim() []byte {
	if c.codec != chunk.Deflate {
		return nil
	}
	return c.refs.Trim(c.window)
}

// try decodes what the stream goes on with from the checkpoint and the trimmed
// window alone, by the decoder that readers use. It fails if anything but the
// original comes out.
func (c *restart) try(d *codec.Decoder, window []byte) error {
	if c.codec != chunk.Deflate || len(c.dec) == 0 {
		return nil
	}
	id, err := chunk.NewID(chunk.SHA256, [chunk.SumSize]byte{})
	if err != nil {
		return err
	}
	s := chunk.Span{
		Len:   int64(len(c.enc)),
		Codec: chunk.Deflate,
		Bits:  c.skip,
		Parts: []chunk.Part{{Ref: chunk.Ref{ID: id, Size: int32(len(c.dec))}}},
	}
	if window != nil {
		s.Window = &chunk.Slice{Len: int32(len(window))}
	}
	err = d.Decode(bytes.NewReader(c.enc), []chunk.Span{s}, window, func(_, _ int, p []byte) error {
		if !bytes.Equal(p, c.dec) {
			return chunk.ErrCorrupt
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("checkpoint at byte %d does not give back the layer: %w", c.off, err)
	}
	return nil
}
