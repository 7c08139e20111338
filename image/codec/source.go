package codec

import (
	"fmt"
	"io"

	"graze/image/inflate"
)

// A source reads the bytes of a blob and knows where it is. It tells a source
// that broke off from one that was delivered in full: the former leaves an
// error in err.
type source struct {
	in   inflate.Input // reads from the source itself, through Read
	r    io.Reader
	next int64 // offset in the blob of the byte that r returns next
	end  int64 // offset in the blob at which r is expected to end
	err  error // why r ended before it was read up to end
}

// reset makes s read from r, which starts at offset off of the blob and is
// expected to reach end.
func (s *source) reset(r io.Reader, off, end int64) {
	s.r, s.next, s.end, s.err = r, off, end, nil
	s.in.Reset(s, off)
}

// release drops the reader.
func (s *source) release() { s.reset(nil, 0, 0) }

// Read is for the buffer: everything else reads from s.in.
func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.next >= s.end {
		return 0, io.EOF
	}
	if rest := s.end - s.next; int64(len(p)) > rest {
		p = p[:rest]
	}
	n, err := s.r.Read(p)
	s.next += int64(n)
	switch {
	case err == nil || err == io.EOF && s.next == s.end:
		// Read is called again, or finds the end by itself.
		return n, nil
	case err == io.EOF:
		s.err = fmt.Errorf("blob offset %d of %d: %w", s.next, s.end, io.ErrUnexpectedEOF)
	default:
		s.err = fmt.Errorf("blob offset %d: %w", s.next, err)
	}
	return n, s.err
}

// skipTo moves on to offset off of the blob, which must not be behind.
func (s *source) skipTo(off int64) error { return s.in.Skip(off - s.in.Offset()) }
