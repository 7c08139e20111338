package rafstest

import (
	"bytes"
	"fmt"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// A Compressor is a way to encode chunks.
type Compressor uint32

// The compressors, by their numbers in version 6.
const (
	None Compressor = 0
	LZ4  Compressor = 1
	Gzip Compressor = 2
	Zstd Compressor = 3
)

// encode returns p encoded by c; p itself if that is no shorter.
func (b *builder) encode(c Compressor, p []byte) (enc []byte, compressed bool, err error) {
	switch c {
	case None:
		return p, false, nil
	case LZ4:
		enc = make([]byte, lz4.CompressBlockBound(len(p)))
		var n int
		n, err = lz4.CompressBlock(p, enc, nil)
		enc = enc[:n]
	case Gzip:
		var buf bytes.Buffer
		w := gzip.NewWriter(&buf)
		w.Write(p) // a buffer takes all
		err = w.Close()
		enc = buf.Bytes()
	case Zstd:
		if b.zstd == nil {
			b.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		}
		if err == nil {
			enc = b.zstd.EncodeAll(p, nil)
		}
	default:
		err = fmt.Errorf("unknown compressor %d", c)
	}
	if err != nil || len(enc) == 0 || len(enc) >= len(p) {
		return p, false, err
	}
	return enc, true, nil
}
