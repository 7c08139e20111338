package fusefs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// maxReaders is how many goroutines wait for requests at a time.
	maxReaders = 4

	// minRequest is the size of the least buffer that the kernel takes for
	// requests, in bytes.
	minRequest = 8192
)

// A server reads requests from a mount's descriptor, has them answered and writes the
// replies.
type server struct {
	device *os.File
	proto  *fuse.ProtocolServer

	requests chan []byte // buffers; a reader has one while it waits
	replies  bufferPool

	idle  atomic.Int32  // readers that wait
	gone  chan struct{} // closed when there will be no more requests
	end   sync.Once     // closes gone
	loops sync.WaitGroup
}

// newServer returns a server that has answered INIT, with its reply.
func newServer(fsys *filesystem, options *fuse.MountOptions, init []byte) (*server, []byte, error) {
	s := &server{
		proto:    fuse.NewProtocolServer(fsys, options),
		requests: make(chan []byte, maxReaders),
		gone:     make(chan struct{}),
	}
	reply := make([]byte, minRequest)
	n, status := s.proto.HandleRequest([][]byte{init}, [][]byte{reply})
	if !status.Ok() || n < int(outLen) || order.Uint32(reply[4:]) != 0 {
		return nil, nil, fmt.Errorf("no agreement with the kernel on INIT (%v, %d bytes)", status, n)
	}
	return s, reply[:n], nil
}

// serve answers requests until there are no more. It returns at once.
func (s *server) serve(maxWrite uint32) error {
	size := max(minRequest, int(maxWrite)+int(unsafe.Sizeof(fuse.WriteIn{})))
	for range maxReaders {
		buf, err := requestBuffer(size)
		if err != nil {
			return err
		}
		s.requests <- buf
	}
	s.loops.Go(s.loop)
	return nil
}

// requestBuffer returns memory that requests can be read into at any time. While the
// process is being killed the kernel can no longer give it pages that it lacks: a
// request that is copied to where one is missing fails, and with it what a user of the
// mount does. So all pages are there from the start; and they are shared, though with
// nobody, as those are not taken from a process that is killed for want of memory.
func requestBuffer(size int) ([]byte, error) {
	p, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	return p, os.NewSyscallError("mmap", err)
}

// free gives the memory of requests back. No loop may be running.
func (s *server) free() {
	for {
		select {
		case buf := <-s.requests:
			unix.Munmap(buf)
		default:
			return
		}
	}
}

// loop reads requests and answers them, and sees to it that meanwhile there is
// another one that reads. It ends when there are enough, or no more requests.
func (s *server) loop() {
	for {
		var buf []byte
		select {
		case buf = <-s.requests:
		default:
			return // enough of us wait
		}
		s.idle.Add(1)
		n, err := s.read(buf)
		last := s.idle.Add(-1) == 0
		// A few bytes: names and numbers. Who waits for minutes for an answer keeps
		// nobody from reading.
		request := append([]byte(nil), buf[:max(n, 0)]...)
		s.requests <- buf
		switch {
		case errors.Is(err, unix.ENOENT):
			continue // the request was interrupted while it was read
		case err != nil:
			s.end.Do(func() { close(s.gone) })
			return
		}
		if last {
			s.loops.Go(s.loop)
		}
		s.answer(request)
	}
}

// read reads one request.
func (s *server) read(buf []byte) (n int, err error) {
	return s.on(func(fd int) (int, error) { return unix.Read(fd, buf) })
}

// on calls f with the descriptor, which is not closed meanwhile, until no signal
// comes between.
func (s *server) on(f func(fd int) (int, error)) (n int, err error) {
	conn, err := s.device.SyscallConn()
	if err != nil {
		return 0, err
	}
	closed := conn.Control(func(fd uintptr) {
		n, err = retry(func() (int, error) { return f(int(fd)) })
	})
	return n, errors.Join(closed, err)
}

// answer answers a request.
func (s *server) answer(request []byte) {
	if len(request) < int(unsafe.Sizeof(fuse.InHeader{})) {
		return // it has no number by which it could be answered
	}
	out := s.replies.get(replySize(request))
	defer s.replies.put(out)
	n, status := s.proto.HandleRequest([][]byte{request}, [][]byte{out})
	switch {
	case n == 0 && status.Ok():
		return // nobody waits for an answer
	case n == 0, int(order.Uint32(out)) != n:
		if status.Ok() {
			status = fuse.EIO // the reply has no room
		}
		n = int(replyHeader)
		order.PutUint32(out, uint32(n))
		order.PutUint32(out[4:], uint32(-status))
		copy(out[8:16], request[8:16]) // its number
	}
	// What can go wrong is that the request was interrupted, or the mount is gone or
	// left: then nobody waits for the answer here.
	_, _ = s.on(func(fd int) (int, error) { return unix.Write(fd, out[:n]) })
}

// Where requests say how much they want.
const (
	inOpcode   = unsafe.Offsetof(fuse.InHeader{}.Opcode)
	readSize   = unsafe.Offsetof(fuse.ReadIn{}.Size)
	xattrSize  = unsafe.Sizeof(fuse.InHeader{})
	ioctlSize  = unsafe.Offsetof(fuse.IoctlIn{}.OutSize)
	smallReply = 8192 // what has no data; the target of a link may have 4,095 bytes
)

// The requests that want data, by the numbers of the protocol.
const (
	opRead        = 15
	opGetXattr    = 22
	opListXattr   = 23
	opReaddir     = 28
	opIoctl       = 39
	opReaddirPlus = 44
)

// replySize returns how many bytes the reply to a request may have.
func replySize(request []byte) int {
	at := uintptr(0)
	switch order.Uint32(request[inOpcode:]) {
	case opRead, opReaddir, opReaddirPlus:
		at = readSize
	case opGetXattr, opListXattr:
		at = xattrSize
	case opIoctl:
		at = ioctlSize
	}
	if at == 0 || len(request) < int(at)+4 {
		return smallReply
	}
	return smallReply + int(min(order.Uint32(request[at:]), 16<<20))
}

// A bufferPool keeps buffers of a few sizes. Its zero value is ready for use.
type bufferPool [4]sync.Pool

// bufferSize returns the size of the buffers in a pool.
func bufferSize(pool int) int { return smallReply + [...]int{0, 16 << 10, 128 << 10, 1 << 20}[pool] }

// get returns a buffer of at least size bytes.
func (p *bufferPool) get(size int) []byte {
	for i := range p {
		if have := bufferSize(i); size <= have {
			if buf, ok := p[i].Get().(*[]byte); ok {
				return *buf
			}
			return make([]byte, have)
		}
	}
	return make([]byte, size)
}

// put gives a buffer back.
func (p *bufferPool) put(buf []byte) {
	for i := range p {
		if len(buf) == bufferSize(i) {
			p[i].Put(&buf)
		}
	}
}

var order = binary.NativeEndian
