package inflate

import "io"

const (
	inputSize = 64 << 10
	// inputPad is how many zero bytes follow the source's last one, so that
	// words may be loaded there.
	inputPad = 32
	// inputSlack is how many bytes the fast loop needs from its place on: it
	// loads two words for a symbol, the second up to 7 bytes after the first.
	inputSlack = 16
	// inputBack is how many used bytes are kept: those that may have to be put
	// back, and those that an observer may ask for after a step.
	inputBack = 4 << 10
	// maxEmptyReads is how often in a row a source may return nothing.
	maxEmptyReads = 100
)

// An Input is a buffer between a source of encoded bytes and what decodes them.
// It is an io.Reader, for what need not be decoded. The zero value is an input
// without any bytes.
type Input struct {
	r    io.Reader
	buf  [inputSize + inputPad]byte
	pos  int   // next byte to use
	n    int   // end of the bytes in buf
	base int64 // offset of buf[0]
	err  error // why the source has no more: io.EOF or its error; nil if it may
}

// Reset makes the input read from r, the first byte of which has the given
// offset. With nil it lets go of the source.
func (in *Input) Reset(r io.Reader, off int64) {
	in.r, in.pos, in.n, in.base, in.err = r, 0, 0, off, nil
	if r == nil {
		in.end(io.EOF)
	}
}

// Offset returns the offset of the next byte.
func (in *Input) Offset() int64 { return in.base + int64(in.pos) }

// end notes that the source has no more.
func (in *Input) end(err error) {
	in.err = err
	clear(in.buf[in.n : in.n+inputPad])
}

// fill reads from the source until at least inputSlack bytes are buffered or it
// ends. What was used more than inputBack bytes ago may be lost.
func (in *Input) fill() {
	if in.r == nil && in.err == nil {
		in.end(io.EOF)
	}
	for empty := 0; in.n-in.pos < inputSlack && in.err == nil; {
		// A source that returns little at a time must not cause a move each time.
		if shift := in.pos - inputBack; shift > 0 && in.n > inputSize/2 {
			in.n = copy(in.buf[:], in.buf[shift:in.n])
			in.pos -= shift
			in.base += int64(shift)
		}
		k, err := in.r.Read(in.buf[in.n:inputSize])
		in.n += k
		if empty++; k > 0 {
			empty = 0
		}
		if err == nil && empty == maxEmptyReads {
			err = io.ErrNoProgress
		}
		if err != nil {
			in.end(err)
		}
	}
}

// short returns the error for a stream that goes on where the source does not.
func (in *Input) short() error {
	if in.err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return in.err
}

// peek returns the next n bytes, at most inputSlack, or fewer where the source
// ends.
func (in *Input) peek(n int) []byte {
	if in.n-in.pos < n {
		in.fill()
	}
	return in.buf[in.pos:min(in.pos+n, in.n)]
}

// readByte returns the next byte.
func (in *Input) readByte() (byte, error) {
	p := in.peek(1)
	if len(p) == 0 {
		return 0, in.short()
	}
	in.pos++
	return p[0], nil
}

// Read returns bytes as they are.
func (in *Input) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if in.pos == in.n && len(p) >= inputSize && in.err == nil && in.r != nil {
		// Nothing is gained by the buffer.
		k, err := in.r.Read(p)
		in.base += int64(in.n + k)
		in.pos, in.n = 0, 0
		if err != nil {
			in.end(err)
		}
		if k > 0 || err != nil {
			return k, err
		}
	}
	if in.pos == in.n {
		if in.fill(); in.pos == in.n {
			return 0, in.err
		}
	}
	k := copy(p, in.buf[in.pos:in.n])
	in.pos += k
	return k, nil
}

// Skip passes over the next n bytes. It returns io.ErrUnexpectedEOF if there are
// fewer.
func (in *Input) Skip(n int64) error {
	for n > 0 {
		if in.pos == in.n {
			if in.fill(); in.pos == in.n {
				return in.short()
			}
		}
		k := min(n, int64(in.n-in.pos))
		in.pos += int(k)
		n -= k
	}
	return nil
}
