package fusefs

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Read gives the kernel bytes of a file. They are written to buf, which go-fuse
// takes from its pool and puts back when they have been sent.
func (f *filesystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	start := time.Now()
	f.ops.inFlight.Add(1)
	defer f.ops.inFlight.Add(-1)
	n, err := f.read(cancel, in, buf)
	f.ops.latency.Add(time.Since(start))
	if err != 0 {
		return nil, fuse.Status(err)
	}
	f.ops.readBytes.Add(int64(n))
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (f *filesystem) read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (int, unix.Errno) {
	attr, ok := f.tree.Attr(in.NodeId)
	switch {
	case !ok:
		return 0, unix.ESTALE
	case attr.Mode&unix.S_IFMT != unix.S_IFREG:
		return 0, unix.EINVAL
	case in.Offset >= uint64(attr.Size):
		return 0, 0
	}
	off := int64(in.Offset)
	p := buf[:min(int64(len(buf)), attr.Size-off)]

	f.gate.RLock()
	defer f.gate.RUnlock()
	ctx := &readContext{fs: f, cancel: cancel, caller: in.Caller.Pid}
	defer ctx.end() // if ReadAt panics: go-fuse recovers
	n, err := f.files.ReadAt(ctx, in.NodeId, p, off)
	ended := ctx.end()
	if n == len(p) {
		return n, 0 // whatever else happened, these are the bytes
	}
	if err == nil || errors.Is(err, io.EOF) {
		// The kernel would take a short read for the end of the file, and
		// show zeros.
		err = fmt.Errorf("got %d bytes: %w", n, io.ErrUnexpectedEOF)
	}
	return 0, f.errno(ended, Failure{Ino: in.NodeId, Off: off, Len: len(p), Err: err})
}

// errno is the answer to a read that failed, and counts and reports it. Ended
// is why the read's context was done before that, if it was.
func (f *filesystem) errno(ended error, failure Failure) unix.Errno {
	switch ended {
	case errInterrupted:
		f.ops.interrupted.Add(1)
		return unix.EINTR
	case errClosing:
		f.ops.interrupted.Add(1)
		return unix.ENOTCONN
	}
	f.ops.failed.Add(1)
	f.report.failed(failure)
	return unix.EIO
}

// panicked is the answer to a request whose handler panicked.
func (f *filesystem) panicked(v any) fuse.Status {
	f.ops.failed.Add(1)
	f.report.failed(Failure{Err: fmt.Errorf("panic: %v", v)})
	return fuse.EIO
}

// Why a read's context can end before the read does.
var (
	errInterrupted = errors.New("the process that reads is being killed")
	errClosing     = errors.New("the mount is being taken away")
)
