package rafs

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"graze/chunk"
)

const (
	infoHeaderSize  = 4096
	infoMagic       = 0xb10bb10b
	infoV1Size      = 16
	infoV2Size      = 24
	infoContextSize = 40

	// maxMeta bounds the decoded meta of one blob, in bytes: that of a layer of
	// 8 GB read by contexts, each of which comes with 32 KiB.
	maxMeta = 256 << 20
	// maxWindow bounds what a Zstandard frame can make the decoder hold, in bytes.
	maxWindow = 128 << 20
)

// A meta is the chunk information of a blob: where each of its chunks is.
type meta struct {
	raw      []byte // decoded, without the header
	infos    []byte // rows of one of two sizes
	rowSize  int
	contexts []byte // rows: batches, or contexts of a gzip stream
	dicts    []byte // what the contexts need of the bytes before them
	dictsOff uint64 // where these are in the decoded meta
}

// A chunkInfo is a row of it.
type chunkInfo struct {
	usize, csize uint32
	coff         uint64
	flags        uint8
	context      uint32 // of a chunk in a batch or gzip stream
	at           uint32 // where the chunk is in what the context decodes to
}

// The flags of a chunkInfo.
const (
	infoCompressed = 1 << 0
	infoZRan       = 1 << 1
	infoBatch      = 1 << 2
	infoEncrypted  = 1 << 3
)

// parseMeta takes the decoded chunk information of a blob and its header apart.
func parseMeta(raw, header []byte, b *blob) (*meta, error) {
	if len(header) != infoHeaderSize || le.Uint32(header) != infoMagic || le.Uint32(header[infoHeaderSize-4:]) != infoMagic {
		return nil, fmt.Errorf("%w: chunk information has no header", chunk.ErrCorrupt)
	}
	if n := le.Uint32(header[12:]); n != b.chunkCount {
		return nil, fmt.Errorf("%w: chunk information of %d chunks for a blob of %d", chunk.ErrCorrupt, n, b.chunkCount)
	}
	m := &meta{raw: raw, rowSize: infoV1Size}
	if b.features&featureInfoV2 != 0 {
		m.rowSize = infoV2Size
	}
	var err error
	if m.infos, err = cut(raw, 0, uint64(b.chunkCount)*uint64(m.rowSize)); err != nil {
		return nil, fmt.Errorf("chunk information: %w", err)
	}
	if b.features&(featureBatch|featureZRan) == 0 {
		return m, nil
	}
	off, size, n := le.Uint64(header[40:]), le.Uint64(header[48:]), uint64(le.Uint32(header[56:]))
	all, err := cut(raw, off, size)
	if err == nil {
		m.contexts, err = cut(all, 0, n*infoContextSize)
	}
	if err != nil {
		return nil, fmt.Errorf("contexts: %w", err)
	}
	m.dicts, m.dictsOff = all[len(m.contexts):], off+uint64(len(m.contexts))
	return m, nil
}

// info returns the row of a chunk.
func (m *meta) info(index uint32) (c chunkInfo, err error) {
	row, err := cut(m.infos, uint64(index)*uint64(m.rowSize), uint64(m.rowSize))
	if err != nil {
		return c, fmt.Errorf("chunk information of chunk %d: %w", index, err)
	}
	u, v := le.Uint64(row), le.Uint64(row[8:])
	if m.rowSize == infoV1Size {
		c.usize = uint32(u>>44|u&0xf00<<12) + 1
		c.csize = uint32(v>>44|v>>20&0xf00000) + 1
		c.coff = v & 0xff_ffff_ffff
		if c.csize != c.usize {
			c.flags = infoCompressed
		}
		return c, nil
	}
	c.usize = uint32(u>>32&0xff_ffff) + 1
	c.flags = uint8(u >> 56)
	c.coff, c.csize = v&0xff_ffff_ffff, uint32(v>>40)
	if c.flags&(infoZRan|infoBatch) != 0 {
		data := le.Uint64(row[16:])
		c.context, c.at = uint32(data>>32), uint32(data)
	}
	return c, nil
}

// A zranContext is a place in a gzip stream from which it can be decoded.
type zranContext struct {
	inOff, outOff, dictOff  uint64
	inLen, outLen, dictSize uint32
	bits                    uint8 // of the byte before inOff that are still to be decoded
}

func (m *meta) zran(n uint32) (c zranContext, err error) {
	row, err := cut(m.contexts, uint64(n)*infoContextSize, infoContextSize)
	if err != nil {
		return c, fmt.Errorf("context %d: %w", n, err)
	}
	c = zranContext{
		inOff: le.Uint64(row), outOff: le.Uint64(row[8:]), dictOff: le.Uint64(row[16:]),
		inLen: le.Uint32(row[24:]), outLen: le.Uint32(row[28:]), dictSize: le.Uint32(row[32:]),
		bits: row[37],
	}
	if _, err := cut(m.dicts, c.dictOff, uint64(c.dictSize)); err != nil {
		return c, fmt.Errorf("window of context %d: %w", n, err)
	}
	if c.bits > 7 || c.bits > 0 && c.inOff == 0 {
		return c, fmt.Errorf("%w: context %d begins %d bits before byte %d", chunk.ErrCorrupt, n, c.bits, c.inOff)
	}
	return c, nil
}

// batch returns how long a batch is, encoded and decoded.
func (m *meta) batch(n uint32) (csize, usize uint32, err error) {
	row, err := cut(m.contexts, uint64(n)*infoContextSize, infoContextSize)
	if err != nil {
		return 0, 0, fmt.Errorf("batch %d: %w", n, err)
	}
	return le.Uint32(row), le.Uint32(row[4:]), nil
}

// unpack decodes p, which decodes to exactly n bytes.
func (c compressor) unpack(p []byte, n uint64) ([]byte, error) {
	if n > maxMeta {
		return nil, fmt.Errorf("%w: %d bytes of chunk information", ErrUnsupported, n)
	}
	var r io.Reader
	switch c {
	case plain:
		return cut(p, 0, n)
	case lz4Block:
		if n/255 > uint64(len(p)) {
			return nil, fmt.Errorf("%w: LZ4 block of %d bytes for %d", chunk.ErrCorrupt, len(p), n)
		}
		out := make([]byte, n)
		k, err := lz4.UncompressBlock(p, out)
		if err != nil || uint64(k) != n {
			return nil, fmt.Errorf("%w: LZ4 block decodes to %d bytes of %d: %v", chunk.ErrCorrupt, k, n, err)
		}
		return out, nil
	case gzipped:
		zr, err := gzip.NewReader(bytes.NewReader(p))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
		}
		defer zr.Close()
		r = zr
	case zstdFrame:
		zr, err := zstd.NewReader(bytes.NewReader(p), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
		}
		defer zr.Close()
		r = zr
	}
	// Grown as the bytes come: what is claimed need not be there.
	var out bytes.Buffer
	k, err := out.ReadFrom(io.LimitReader(r, int64(n)+1))
	if err != nil || uint64(k) != n {
		err = errors.Join(err, fmt.Errorf("%d bytes in place of %d", k, n))
		return nil, fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
	}
	return out.Bytes(), nil
}
