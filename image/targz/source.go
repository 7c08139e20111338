package targz

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"graze/chunk"
	"graze/image/inflate"
)

// A source decodes a layer as it is read. It must be read to its end, where it
// returns io.EOF; then rest holds the bytes of the layer that belong to no
// member or frame.
type source interface {
	io.Reader
	// pos returns the reader's place in the decoded stream.
	pos() int64
	// needed returns how many bytes of the layer are enough to decode it up to
	// pos.
	needed() int64
	// restart returns the last known place at or before pos from which the layer
	// can be decoded.
	restart() *restart
	// want says from which offset of the layer on restarts are of use.
	want(off int64)
	// cut reports whether pos is a good place to end a chunk, because a span of
	// at least size bytes that began at off could end here.
	cut(off, size int64) bool
	rest() io.Reader
}

// open returns a source for the layer that r reads, whatever its compression.
// The magic numbers are those that containerd looks for: all else is a tar.
func open(r io.Reader) (source, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	p, err := br.Peek(8)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(p, []byte(inflate.Magic)):
		return newGunzip(br), nil
	case bytes.HasPrefix(p, zstdMagic) || len(p) == 8 && isSkippable(p):
		return newUnzstd(br)
	}
	return &rawSource{r: br}, nil
}

// A rawSource is a layer that is not compressed.
type rawSource struct {
	r io.Reader
	n int64
}

func (s *rawSource) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	return n, err
}

func (s *rawSource) pos() int64            { return s.n }
func (s *rawSource) needed() int64         { return s.n }
func (s *rawSource) want(int64)            {}
func (s *rawSource) cut(int64, int64) bool { return false }
func (s *rawSource) rest() io.Reader       { return s.r }

func (s *rawSource) restart() *restart {
	return &restart{at: s.n, off: s.n, codec: chunk.Raw}
}

var (
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	errZstd   = errors.New("bad zstd data")
)

// isSkippable reports whether p begins with the magic number of a skippable
// frame.
func isSkippable(p []byte) bool {
	return binary.LittleEndian.Uint32(p)&^0xf == 0x184d2a50
}

// maxZstdWindow is the window that the readers of package codec have, in bytes.
const maxZstdWindow = 128 << 20

// An unzstd decodes Zstandard frames one by one, so as to know where each
// begins.
type unzstd struct {
	frame frameReader
	dec   *zstd.Decoder
	at    int64
	last  *restart // the frame that is being decoded
	ahead [1]byte  // a byte decoded to see whether the frame goes on
	have  bool     // ahead holds one
	err   error
}

func newUnzstd(br *bufio.Reader) (*unzstd, error) {
	dec, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(maxZstdWindow),
		zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	s := &unzstd{frame: frameReader{br: br}, dec: dec, last: &restart{codec: chunk.Zstd}}
	s.err = s.next()
	return s, nil
}

// next goes on to the next frame.
func (s *unzstd) next() error {
	if err := s.frame.begin(); err != nil {
		return err
	}
	s.last = &restart{at: s.at, off: s.frame.off, codec: chunk.Zstd}
	return s.dec.Reset(&s.frame)
}

func (s *unzstd) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for s.err == nil || s.have {
		var n int
		if s.have {
			n, p[0], s.have = 1, s.ahead[0], false
		} else {
			n, s.err = s.dec.Read(p)
		}
		s.at += int64(n)
		if s.err == nil && s.frame.done {
			// The frame may be over, which the decoder tells only with its next
			// byte. Whether it is decides where chunks are cut.
			var k int
			k, s.err = s.dec.Read(s.ahead[:])
			s.have = k > 0
		}
		if s.err != nil && !s.have {
			s.err = s.endFrame(s.err)
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, s.err
}

// endFrame goes on to the next frame if err is io.EOF, and else says where the
// error is.
func (s *unzstd) endFrame(err error) error {
	switch {
	case s.frame.err != nil:
		return s.frame.err
	case err == io.EOF && s.frame.done:
		return s.next()
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: frame at byte %d: %w", errZstd, s.last.off, err)
}

func (s *unzstd) pos() int64        { return s.at }
func (s *unzstd) needed() int64     { return s.frame.off }
func (s *unzstd) want(int64)        {}
func (s *unzstd) restart() *restart { return s.last }
func (s *unzstd) rest() io.Reader   { return s.frame.br }

func (s *unzstd) cut(off, size int64) bool {
	return s.last.at == s.at && s.last.off-off >= size
}

// A frameReader reads the bytes of one Zstandard frame (RFC 8878), and ends
// where it does.
type frameReader struct {
	br   *bufio.Reader
	off  int64 // offset in the layer of the next byte
	left int64 // bytes that are read before the next block's header
	sum  bool  // the frame has a checksum
	last bool  // the last block's header was read
	done bool  // the whole frame was read
	err  error // why a frame could not be read to its end
}

// begin goes on to the next frame. It returns io.EOF if none follows.
func (f *frameReader) begin() error {
	for {
		p, err := f.br.Peek(8)
		if err != nil && err != io.EOF {
			return err
		}
		if len(p) < 8 || !isSkippable(p) {
			break
		}
		n := 8 + int64(binary.LittleEndian.Uint32(p[4:]))
		k, err := io.CopyN(io.Discard, f.br, n)
		if f.off += k; err != nil {
			return noEOF(err)
		}
	}
	p, err := f.br.Peek(zstd.HeaderMaxSize)
	if err != nil && err != io.EOF {
		return err
	}
	if !bytes.HasPrefix(p, zstdMagic) {
		return io.EOF // what may follow is for the caller to judge
	}
	var h zstd.Header
	if err := h.Decode(p); err != nil {
		return fmt.Errorf("%w: frame at byte %d: %w", errZstd, f.off, err)
	}
	f.left, f.sum, f.last, f.done = int64(h.HeaderSize), h.HasCheckSum, false, false
	return nil
}

func (f *frameReader) Read(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	if f.left == 0 {
		if f.done {
			return 0, io.EOF
		}
		if f.err = f.block(); f.err != nil {
			return 0, f.err
		}
	}
	n, err := f.br.Read(p[:min(int64(len(p)), f.left)])
	f.off += int64(n)
	if f.left -= int64(n); f.left == 0 && f.last {
		f.done = true
	}
	if err != nil {
		f.err = noEOF(err)
	}
	return n, f.err
}

// block looks at the next block's header.
func (f *frameReader) block() error {
	p, err := f.br.Peek(3)
	if err != nil {
		return noEOF(err)
	}
	h := uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16
	f.left = 3 + int64(h>>3)
	if h>>1&3 == 1 {
		f.left = 3 + 1 // one byte, repeated
	}
	if f.last = h&1 == 1; f.last && f.sum {
		f.left += 4
	}
	return nil
}

// noEOF returns err, but io.ErrUnexpectedEOF for io.EOF.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
