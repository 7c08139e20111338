package peer

import (
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// sendPiece is the most bytes that are given to the system at a time; for each the
// client gets its time anew.
const sendPiece = 256 << 10

var pieces = sync.Pool{New: func() any { b := make([]byte, sendPiece); return &b }}

// A meter is asked before each piece of a body, and told how much of it was sent.
type meter interface {
	// next waits until a piece may be sent of what is left of the body, and
	// returns its size.
	next(l *link, left int64) int64
	wrote(n int)
}

// sendSection sends a chunk from its file.
func sendSection(l *link, s Section, m meter) error {
	if l.tcp != nil {
		return sendfile(l, s, m)
	}
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	for off := int64(0); off < s.Len(); {
		p := (*buf)[:m.next(l, s.Len()-off)]
		if _, err := s.File().ReadAt(p, s.Offset()+off); err != nil {
			return fmt.Errorf("read the chunk to send: %w", err)
		}
		n, err := l.Write(p)
		m.wrote(n)
		if err != nil {
			return err
		}
		off += int64(len(p))
	}
	return nil
}

// sendfile lets the kernel move the bytes. net.TCPConn.ReadFrom would do it too,
// but from the file's own offset, which all users of the file share.
func sendfile(l *link, s Section, m meter) error {
	to, err := l.tcp.SyscallConn()
	if err != nil {
		return err
	}
	from, err := s.File().SyscallConn()
	if err != nil {
		return err
	}
	off := s.Offset()
	for end := off + s.Len(); off < end; {
		piece := m.next(l, end-off)
		var n int
		var serr error
		cerr := from.Control(func(in uintptr) {
			err = to.Write(func(out uintptr) bool {
				for {
					n, serr = unix.Sendfile(int(out), int(in), &off, int(piece))
					if serr != unix.EINTR {
						return serr != unix.EAGAIN
					}
				}
			})
		})
		m.wrote(max(n, 0))
		switch {
		case cerr != nil:
			return cerr
		case err != nil:
			return err
		case serr != nil:
			return fmt.Errorf("sendfile: %w", serr)
		case n == 0:
			return fmt.Errorf("read the chunk to send: %w", io.ErrUnexpectedEOF)
		}
	}
	return nil
}
