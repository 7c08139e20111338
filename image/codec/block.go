package codec

import (
	"bytes"
	"errors"
	"io"

	"github.com/pierrec/lz4/v4"

	"graze/chunk"
	"graze/image/inflate"
)

// maxBlock bounds an encoded LZ4 block in bytes: what does not compress grows a
// little.
const maxBlock = chunk.MaxSize + chunk.MaxSize/255 + 16

var errBlockSize = errors.New("LZ4 block is larger than a chunk can be")

// A block decodes one LZ4 block as a whole.
type block struct {
	enc, buf []byte // reused
	bytes.Reader
}

// start reads a block of n encoded bytes, which decodes to at least size bytes.
func (b *block) start(in *inflate.Input, n, size int64) error {
	if n > maxBlock || size > chunk.MaxSize {
		return errBlockSize
	}
	b.enc = grow(b.enc, int(n))
	if _, err := io.ReadFull(in, b.enc); err != nil {
		return endOf(err)
	}
	// The rest of the block, behind the last part, may be of any size.
	for {
		b.buf = grow(b.buf, int(size))
		k, err := lz4.UncompressBlock(b.enc, b.buf)
		if err == nil {
			b.Reset(b.buf[:k])
			return nil
		}
		if size == chunk.MaxSize {
			return err
		}
		size = min(2*size, chunk.MaxSize)
	}
}

// release drops what belongs to the caller, and what is too large to be kept.
func (b *block) release() {
	b.Reset(nil)
	if cap(b.enc) > maxPooled {
		b.enc = nil
	}
	if cap(b.buf) > maxPooled {
		b.buf = nil
	}
}

// grow returns a slice of n bytes in the place of p, whose bytes are lost.
func grow(p []byte, n int) []byte {
	if cap(p) < n {
		return make([]byte, n)
	}
	return p[:n]
}
