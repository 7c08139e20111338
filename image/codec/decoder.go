package codec

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"

	"graze/chunk"
	"graze/image/inflate"
)

const (
	// skipSize is how much is decoded at a time of what lies between chunks, in
	// bytes.
	skipSize = 32 << 10
	// maxZstdWindow bounds what a frame can make the decoder hold, in bytes.
	maxZstdWindow = 128 << 20
	// maxPooled bounds the chunk buffers that are kept for later use, in bytes.
	maxPooled = 4 << 20
)

// A Decoder decodes runs of spans. Its zero value is ready for use, and it is
// safe for concurrent use; it keeps the state of finished decodes for later
// ones.
type Decoder struct {
	pool sync.Pool // of *state
}

// Decode reads the encoded bytes of a run of spans of one blob from src, whose
// first byte is the one at run[0].Off, and calls emit for each part of each
// span in order: emit(i, j, p) has in p the bytes of run[i].Parts[j], valid
// during the call. The run is sorted by Off, and by Start. The window holds the
// bytes of run[0].Window, and is nil if that is.
//
// Decode reads no more of src than up to the end of the run, and stops once it
// has emitted the last part. If the bytes can't be decoded the error wraps
// chunk.ErrCorrupt and tells the offset in the blob. An error of src, and
// io.ErrUnexpectedEOF if src ends before the run does, is returned wrapped and
// is not chunk.ErrCorrupt. An error of emit ends the decode and is returned as
// it is.
func (d *Decoder) Decode(src io.Reader, run []chunk.Span, window []byte, emit func(span, part int, p []byte) error) error {
	end, err := checkRun(run, window)
	if err != nil || len(run) == 0 {
		return err
	}
	st, _ := d.pool.Get().(*state)
	if st == nil {
		st = new(state)
	}
	defer func() {
		st.release()
		d.pool.Put(st)
	}()
	st.src.reset(src, run[0].Off, end)
	for i := range run {
		if err := st.open(&run[i], i == 0, window); err != nil {
			return st.explain(err)
		}
		for j := range run[i].Parts {
			p, err := st.part(&run[i], &run[i].Parts[j])
			if err != nil {
				return st.explain(err)
			}
			if err := emit(i, j, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRun returns the offset in the blob of the run's end, or what is wrong
// with the run.
func checkRun(run []chunk.Span, window []byte) (end int64, err error) {
	for i := range run {
		s := &run[i]
		if s.Off < 0 || s.Len < 0 || s.Off > math.MaxInt64-s.Len || s.Start < 0 || s.Bits > 7 {
			return 0, fmt.Errorf("%w: span %d has offset %d, length %d, start %d, bits %d",
				chunk.ErrCorrupt, i, s.Off, s.Len, s.Start, s.Bits)
		}
		if i > 0 && (s.Blob != run[i-1].Blob || s.Off < run[i-1].Off) {
			return 0, fmt.Errorf("%w: span %d of a run is of another blob or out of order", chunk.ErrCorrupt, i)
		}
		at := int64(0)
		for _, p := range s.Parts {
			if err := p.Check(); err != nil {
				return 0, fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
			}
			if p.At < at || p.At > math.MaxInt64-s.Start-int64(p.Size) {
				return 0, fmt.Errorf("%w: chunk %s lies at %d in its span, after one that ends at %d",
					chunk.ErrCorrupt, p.ID, p.At, at)
			}
			at = p.At + int64(p.Size)
		}
		end = max(end, s.Off+s.Len)
	}
	if len(run) > 0 {
		want := 0
		if w := run[0].Window; w != nil {
			want = int(w.Len)
		}
		if len(window) != want || want > inflate.WindowSize {
			return 0, fmt.Errorf("%w: window of %d bytes, the span names %d", chunk.ErrCorrupt, len(window), want)
		}
	}
	return end, nil
}

// A state is what one decode needs.
type state struct {
	src  source
	gz   *members // made on first use, like zd
	zd   *zstd.Decoder
	lz   block
	dec  io.Reader // decodes src: src.in itself, gz, zd or lz; nil before the first span
	code chunk.Codec
	at   int64  // where in the decoded bytes of the blob dec is
	buf  []byte // the current part
}

// release drops what belongs to the caller.
func (st *state) release() {
	st.src.release()
	st.dec, st.code = nil, 0
	if st.gz != nil {
		st.gz.release()
	}
	if st.zd != nil {
		st.zd.Reset(nil)
	}
	st.lz.release()
	if cap(st.buf) > maxPooled {
		st.buf = nil
	}
}

var (
	errOverlap = errors.New("span begins before the one before it ends")
	errEnd     = errors.New("encoded data ends before the chunk does")
	errDeflate = errors.New("deflate span does not follow a gzip or deflate span")
)

// open makes dec ready to read the parts of s.
func (st *state) open(s *chunk.Span, first bool, window []byte) error {
	if !first && s.Codec == chunk.Deflate {
		if st.code != chunk.Gzip && st.code != chunk.Deflate {
			return errDeflate
		}
		st.code = chunk.Deflate
		return nil // reached by decoding on
	}
	if st.src.in.Offset() > s.Off {
		// Bytes can't be read twice, but may be what is being decoded anyway.
		if s.Codec != st.code && (s.Codec != chunk.Gzip || st.code != chunk.Deflate) {
			return errOverlap
		}
		return nil
	}
	if err := st.src.skipTo(s.Off); err != nil {
		return err
	}
	st.code, st.at = s.Codec, s.Start
	switch s.Codec {
	case chunk.Raw:
		st.dec = &st.src.in
		return nil
	case chunk.Gzip, chunk.Deflate:
		if st.gz == nil {
			st.gz = new(members)
		}
		st.dec = st.gz
		if s.Codec == chunk.Gzip {
			return st.gz.start(&st.src.in)
		}
		st.gz.resume(&st.src.in, s.Bits, window)
		return nil
	case chunk.Zstd:
		return st.openZstd()
	case chunk.LZ4:
		st.dec = &st.lz
		return st.lz.start(&st.src.in, s.Len, s.Decoded())
	}
	return fmt.Errorf("unknown %s", s.Codec)
}

// openZstd starts at a Zstandard frame. The decoder reads a block at a time and
// no further than a frame's end, and starts no goroutine.
func (st *state) openZstd() (err error) {
	if st.zd == nil {
		st.zd, err = zstd.NewReader(nil,
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxWindow(maxZstdWindow),
			zstd.WithDecoderLowmem(true),
			zstd.IgnoreChecksum(true))
		if err != nil {
			return err
		}
	}
	st.dec = st.zd
	// Hiding all but Read keeps the decoder from decoding small sources at once.
	return st.zd.Reset(struct{ io.Reader }{&st.src.in})
}

// part returns the bytes of p, which is the next part of s.
func (st *state) part(s *chunk.Span, p *chunk.Part) ([]byte, error) {
	skip := s.Start + p.At - st.at
	if skip < 0 {
		return nil, errOverlap
	}
	if err := st.skip(skip); err != nil {
		return nil, err
	}
	if cap(st.buf) < int(p.Size) {
		st.buf = make([]byte, p.Size)
	}
	buf := st.buf[:p.Size]
	n, err := io.ReadFull(st.dec, buf)
	st.at += int64(n)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errEnd
	}
	return buf, err
}

// skip drops the next n decoded bytes.
func (st *state) skip(n int64) error {
	if n == 0 {
		return nil
	}
	if st.code == chunk.Raw {
		if n > math.MaxInt64-st.src.in.Offset() {
			return errEnd
		}
		err := st.src.skipTo(st.src.in.Offset() + n)
		st.at += n
		return endOf(err)
	}
	if cap(st.buf) < skipSize {
		st.buf = make([]byte, skipSize)
	}
	for n > 0 {
		k, err := st.dec.Read(st.buf[:min(n, int64(cap(st.buf)))])
		st.at += int64(k)
		n -= int64(k)
		if err != nil && n > 0 {
			return endOf(err)
		}
	}
	return nil
}

// endOf returns err, but errEnd if it says that there is nothing more to read.
func endOf(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errEnd
	}
	return err
}

// explain says for an error that ended a decode whether the source or its bytes
// were at fault.
func (st *state) explain(err error) error {
	if st.src.err != nil {
		return st.src.err
	}
	// The cause may be io.ErrUnexpectedEOF, which would pass for a transfer that
	// broke off; so it is told, not wrapped.
	return fmt.Errorf("%w: blob offset %d: %v", chunk.ErrCorrupt, st.src.in.Offset(), err)
}
