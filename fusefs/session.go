package fusefs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// sessionVersion stands for all that the kernel is told once and then relies on:
// that it need not ask for OPEN, how long it may keep what, what inode numbers
// are. It changes when a server no longer can go on where this one stopped.
const sessionVersion = 1

// A Session is what was agreed with the kernel when a mount was made. With it,
// the mount's descriptor and the same tree, another process can go on serving
// the mount: see [Resume].
type Session struct {
	Version int    `json:"version"`
	Dir     string `json:"dir"`

	// The mount's device number, as stat(2) has it.
	Major int `json:"major"`
	Minor int `json:"minor"`

	// The kernel's INIT request and the reply to it, as they were read from and
	// written to the descriptor.
	Request []byte `json:"request"`
	Reply   []byte `json:"reply"`
}

// ErrNoResume: the mount dies with its server, because the kernel can't send
// requests again that the server has taken with it. Linux can from 6.9 on.
var ErrNoResume = errors.New("the kernel can't hand a mount to another process: it takes Linux 6.9 or later")

// Where the numbers stand in INIT requests and replies, in bytes.
const (
	inMinor  = unsafe.Offsetof(fuse.InitIn{}.Minor)
	inFlags  = unsafe.Offsetof(fuse.InitIn{}.Flags)
	inFlags2 = unsafe.Offsetof(fuse.InitIn{}.Flags2)
	inLen    = inFlags2 + 4

	replyHeader = unsafe.Sizeof(fuse.OutHeader{})
	outMinor    = replyHeader + unsafe.Offsetof(fuse.InitOut{}.Minor)
	outFlags    = replyHeader + unsafe.Offsetof(fuse.InitOut{}.Flags)
	outMaxWrite = replyHeader + unsafe.Offsetof(fuse.InitOut{}.MaxWrite)
	outFlags2   = replyHeader + unsafe.Offsetof(fuse.InitOut{}.Flags2)
	outLen      = outFlags2 + 4
)

// minInitBuffer is the least that can be read from the descriptor at a time.
const minInitBuffer = 8192

var order = binary.NativeEndian

// An agreement is what of an INIT reply both sides act by.
type agreement struct {
	minor    uint32 // of the protocol's version
	maxWrite uint32 // bytes in one request
	flags    uint64
}

// agreed returns what the reply says.
func (s *Session) agreed() agreement { return agreedIn(s.Reply) }

func agreedIn(reply []byte) agreement {
	return agreement{
		minor:    order.Uint32(reply[outMinor:]),
		maxWrite: order.Uint32(reply[outMaxWrite:]),
		flags:    uint64(order.Uint32(reply[outFlags:])) | uint64(order.Uint32(reply[outFlags2:]))<<32,
	}
}

// check returns an error if no server can go on from s. Kernels that have only
// the first 32 flags are older than what it takes.
func (s *Session) check() error {
	switch {
	case s.Version != sessionVersion:
		return fmt.Errorf("it was made by another version of graze, which left session %d and not %d", s.Version, sessionVersion)
	case len(s.Request) < int(inLen) || len(s.Reply) < int(outLen):
		return ErrNoResume
	}
	offered := uint64(order.Uint32(s.Request[inFlags:])) | uint64(order.Uint32(s.Request[inFlags2:]))<<32
	if offered&fuse.CAP_HAS_RESEND == 0 {
		return ErrNoResume
	}
	return nil
}

// readInit reads the INIT request, which the kernel sends when it mounts.
func readInit(device int) ([]byte, error) {
	buf := make([]byte, minInitBuffer)
	n, err := retry(func() (int, error) { return unix.Read(device, buf) })
	if err != nil {
		return nil, fmt.Errorf("read the kernel's INIT: %w", err)
	}
	return buf[:n], nil
}

// again returns the INIT request by which a server agrees to what was agreed
// before, and to no more.
func (s *Session) again() []byte {
	have := s.agreed()
	request := append([]byte(nil), s.Request...)
	order.PutUint32(request[inMinor:], have.minor)
	order.PutUint32(request[inFlags:], uint32(have.flags))
	order.PutUint32(request[inFlags2:], uint32(have.flags>>32))
	return request
}

// newServer makes a go-fuse server, which can only begin by answering INIT. It
// gets the request from a socket and puts the reply there; when the socket has
// been replaced by the device (see connect), it never knows. Fd is the number of
// its descriptor.
func newServer(fsys *filesystem, options *fuse.MountOptions, request []byte) (srv *fuse.Server, fd int, reply []byte, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("socket pair: %w", err)
	}
	defer unix.Close(pair[0])
	// Not 0, which go-fuse does not take for a number.
	fd, err = unix.FcntlInt(uintptr(pair[1]), unix.F_DUPFD_CLOEXEC, 3)
	unix.Close(pair[1])
	if err != nil {
		return nil, 0, nil, err
	}
	if _, err := unix.Write(pair[0], request); err != nil {
		unix.Close(fd)
		return nil, 0, nil, err
	}
	// From here on fd is the server's, which closes it if it fails, at the end of
	// Serve, or when it is collected.
	if srv, err = fuse.NewServer(fsys, fmt.Sprintf("/dev/fd/%d", fd), options); err != nil {
		return nil, 0, nil, err
	}
	reply = make([]byte, minInitBuffer)
	n, _, err := unix.Recvfrom(pair[0], reply, unix.MSG_DONTWAIT)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("read the reply to INIT: %w", err)
	}
	return srv, fd, reply[:n], nil
}

// connect makes descriptor fd, which stays the same number, lead to what device
// leads to.
func connect(fd, device int) error {
	if err := unix.Dup3(device, fd, unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("replace a descriptor: %w", err)
	}
	return nil
}

// retry calls f until no signal comes between.
func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
