package peer

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// drained reports whether the other end of a link has all that was written to it,
// from err, by which reading has ended. An end that closes a TCP connection with
// bytes left to read resets it, and one that has not got them yet does not confirm
// them. How a libp2p stream ends says nothing: it is taken as drained.
func (l *link) drained(err error) bool {
	if l.way == Stream {
		return true
	}
	if timedOut(err) || errors.Is(err, net.ErrClosed) {
		return true // closed by this end, while nothing was asked
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false
	}
	tcp := l.tcp
	if l.out != nil {
		tcp = l.out.TCPConn
	}
	n, err := unconfirmed(tcp)
	return err == nil && n == 0
}

// unconfirmed returns how many of the bytes that were written to a connection the
// other end has not confirmed.
func unconfirmed(tcp *net.TCPConn) (n int, err error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n, errors.Join(err, cerr)
}
