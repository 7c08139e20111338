package codec

import (
	"errors"
	"io"

	"graze/image/inflate"
)

var errGzipHeader = errors.New("not a gzip member")

// members decodes gzip members one after the other.
type members struct {
	in *inflate.Input
	gz inflate.Gzip
}

// start begins at the header of a member.
func (m *members) start(in *inflate.Input) error {
	m.in = in
	err := m.gz.Next(in)
	if err == io.EOF {
		return errGzipHeader
	}
	return err
}

// resume begins within a member, at a deflate block that starts skip bits into
// the next byte and may refer to the bytes of window before it.
func (m *members) resume(in *inflate.Input, skip uint8, window []byte) {
	m.in = in
	m.gz.Resume(in, skip, window)
}

// release drops what belongs to the caller.
func (m *members) release() {
	m.in = nil
	m.gz.Reset()
}

// Read returns io.EOF where no further member follows.
func (m *members) Read(p []byte) (int, error) {
	for {
		n, err := m.gz.Read(p)
		if n > 0 || err == nil {
			return n, nil
		}
		if err == io.EOF {
			err = m.gz.Next(m.in)
		}
		if err != nil {
			return 0, err
		}
	}
}
