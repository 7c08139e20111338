package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// protocolVersion is what both sides say first. A keeper outlives the version of
// the program that started it.
const protocolVersion = 1

// A message is one packet of the socket: a request, or a reply to it. It may have
// a descriptor with it.
type message struct {
	Op      string `json:"op,omitempty"`
	Version int    `json:"version,omitempty"` // of a hello
	Name    string `json:"name,omitempty"`    // of a descriptor
	Error   string `json:"error,omitempty"`   // why a request was not granted
}

// What a client asks for. Each is answered with one message of the same kind, but
// for list: it is answered with a message for each descriptor, and then one
// without a name.
const (
	opHello = "hello"
	opPut   = "put"
	opDrop  = "drop"
	opList  = "list"
)

const (
	maxMessage = 4096
	maxName    = 64
)

// checkName returns an error unless name is one to hold a descriptor under, here
// and with systemd.
func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("name of %d bytes, not of 1 to %d", len(name), maxName)
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("name %q has other than small letters, digits and -", name)
		}
	}
	return nil
}

// send sends m, with the descriptor fd unless that is negative.
func send(conn *net.UnixConn, m message, fd int) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	_, _, err = conn.WriteMsgUnix(text, rights, nil)
	return err
}

// receive returns the next message, and the descriptor that came with it: -1 if
// none did.
func receive(conn *net.UnixConn) (m message, fd int, err error) {
	text, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*unixMaxRights))
	n, oobn, flags, _, err := conn.ReadMsgUnix(text, oob)
	if err != nil {
		return m, -1, err
	}
	fds, err := rights(oob[:oobn])
	if err == nil {
		switch {
		case n == 0:
			err = net.ErrClosed
		case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1:
			err = errors.New("message is too large")
		default:
			err = json.Unmarshal(text[:n], &m)
		}
	}
	if err != nil {
		closeAll(fds)
		return m, -1, err
	}
	if len(fds) == 0 {
		return m, -1, nil
	}
	return m, fds[0], nil
}

// unixMaxRights is how many descriptors there is room for in a message. A second
// one is an error, and to be closed.
const unixMaxRights = 4

// rights returns the descriptors in a control message.
func rights(oob []byte) (fds []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		list, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			closeAll(fds)
			return nil, err
		}
		fds = append(fds, list...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// fdOf returns the number of a file, which stays the file's.
func fdOf(f *os.File) int { return int(f.Fd()) }
