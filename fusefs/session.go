package fusefs

import (
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
	outMaxPages = replyHeader + unsafe.Offsetof(fuse.InitOut{}.MaxPages)
	outFlags2   = replyHeader + unsafe.Offsetof(fuse.InitOut{}.Flags2)
	outLen      = outFlags2 + 4
)

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
	if s.offered()&fuse.CAP_HAS_RESEND == 0 {
		return ErrNoResume
	}
	return nil
}

// offered returns the flags of the kernel's INIT.
func (s *Session) offered() uint64 {
	return uint64(order.Uint32(s.Request[inFlags:])) | uint64(order.Uint32(s.Request[inFlags2:]))<<32
}

// readInit reads the INIT request, which the kernel sends when it mounts.
func readInit(device int) ([]byte, error) {
	buf := make([]byte, minRequest)
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

// retry calls f until no signal comes between.
func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
