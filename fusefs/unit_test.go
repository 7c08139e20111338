package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// readRequest is what go-fuse passes to Read.
func readRequest(ino uint64, off uint64, size int, tid int) *fuse.ReadIn {
	in := &fuse.ReadIn{Offset: off, Size: uint32(size)}
	in.NodeId = ino
	in.Caller.Pid = uint32(tid)
	return in
}

func TestReadContext(t *testing.T) {
	for _, tt := range []struct {
		name   string
		caller int
		event  func(f *filesystem, cancel chan struct{})
		want   error // why the context ends; nil if the read goes on
	}{
		{"nothing", os.Getpid(), func(*filesystem, chan struct{}) {}, nil},
		{"interrupted", os.Getpid(), func(_ *filesystem, cancel chan struct{}) { close(cancel) }, nil},
		{"interrupted, caller unknown", 0, func(_ *filesystem, cancel chan struct{}) { close(cancel) }, errInterrupted},
		{"interrupted, caller gone", 1 << 30, func(_ *filesystem, cancel chan struct{}) { close(cancel) }, errInterrupted},
		{"closing", os.Getpid(), func(f *filesystem, _ chan struct{}) { close(f.closing) }, errClosing},
		{"dead", os.Getpid(), func(f *filesystem, _ chan struct{}) { f.dead = func() bool { return true } }, errClosing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFilesystem(nil, nil, Trace{})
				cancel := make(chan struct{})
				ctx := &readContext{fs: f, cancel: cancel, caller: uint32(tt.caller)}
				tt.event(f, cancel)
				var cause error
				select {
				case <-ctx.Done():
					if ctx.Err() != context.Canceled {
						t.Errorf("done, but Err is %v", ctx.Err())
					}
					cause = ctx.end()
				case <-time.After(time.Hour):
					if err := ctx.Err(); err != nil {
						t.Errorf("Err is %v", err)
					}
					cause = ctx.end()
				}
				if cause != tt.want {
					t.Errorf("ended because %v, want %v", cause, tt.want)
				}
				<-ctx.Done()
				if ctx.Err() == nil || ctx.end() != tt.want {
					t.Error("the end does not last")
				}
			})
		})
	}
}

// TestReadContextLate asks for Done when the read is over.
func TestReadContextLate(t *testing.T) {
	ctx := &readContext{fs: newFilesystem(nil, nil, Trace{})}
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := ctx.end(); err != nil {
		t.Error(err)
	}
	<-child.Done()
	late := &readContext{fs: newFilesystem(nil, nil, Trace{})}
	late.end()
	<-late.Done()
}

func TestBeingKilled(t *testing.T) {
	if beingKilled(uint32(unix.Gettid())) {
		t.Error("this thread is being killed")
	}
	if !beingKilled(0) || !beingKilled(1<<30) {
		t.Error("threads that are not there are not being killed")
	}
}

func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Failure
		r := reporter{hook: func(f Failure) { got = append(got, f) }}
		check := func(what string, n int, skipped int64) {
			t.Helper()
			if len(got) != n || n > 0 && got[n-1].Skipped != skipped {
				t.Errorf("%s: %d reports, want %d; last %+v, want %d skipped", what, len(got), n, got[len(got)-1], skipped)
			}
		}
		a, b := Failure{Err: errors.New("a")}, Failure{Err: errors.New("b")}
		r.failed(a)
		check("first", 1, 0)
		r.failed(a)
		r.failed(a)
		check("the same", 1, 0)
		r.failed(b)
		check("another", 2, 2)
		time.Sleep(reportWindow)
		r.failed(a)
		check("the same, later", 3, 0)
		for i := range 100 {
			r.failed(Failure{Err: fmt.Errorf("error %d", i)})
		}
		check("many", 2+reportLimit, 0)
		time.Sleep(reportWindow)
		r.failed(a)
		check("after many", 3+reportLimit, 101-reportLimit)
		(&reporter{}).failed(a)
	})
}

// TestReadAllocs bounds what a read that needs not wait allocates: its context
// and go-fuse's result.
func TestReadAllocs(t *testing.T) {
	tree := newTree()
	n := tree.file("/file", 0o644, pattern(1<<20))
	f := newFilesystem(tree, tree, Trace{})
	in, buf, cancel := readRequest(n.Ino, 0, 1<<20, os.Getpid()), make([]byte, 1<<20), make(chan struct{})
	allocs := testing.AllocsPerRun(100, func() {
		result, status := f.Read(cancel, in, buf)
		if !status.Ok() || result.Size() != 1<<20 {
			t.Fatal(result, status)
		}
	})
	if allocs > 2 {
		t.Errorf("a read allocates %v times", allocs)
	}
}

// TestLookupAllocs bounds what the metadata requests allocate.
func TestLookupAllocs(t *testing.T) {
	tree := newTree()
	tree.file("/file", 0o644, nil)
	f := newFilesystem(tree, tree, Trace{})
	header, attrIn := &fuse.InHeader{NodeId: 1}, &fuse.GetAttrIn{}
	attrIn.NodeId = 1
	var entry fuse.EntryOut
	var attr fuse.AttrOut
	allocs := testing.AllocsPerRun(100, func() {
		if !f.Lookup(nil, header, "file", &entry).Ok() || !f.GetAttr(nil, attrIn, &attr).Ok() {
			t.Fatal("lookup or getattr failed")
		}
	})
	if allocs > 0 {
		t.Errorf("a lookup and a getattr allocate %v times", allocs)
	}
}

// TestUnknown asks for inodes that the tree doesn't have, as a forged file
// handle makes the kernel do.
func TestUnknown(t *testing.T) {
	tree := newTree()
	tree.file("/file", 0o644, []byte("x"))
	f := newFilesystem(tree, tree, Trace{})
	for _, ino := range []uint64{0, 3, 1 << 40, ^uint64(0)} {
		header := &fuse.InHeader{NodeId: ino}
		getattr, read := &fuse.GetAttrIn{InHeader: *header}, readRequest(ino, 0, 1, 0)
		_, readlink := f.Readlink(nil, header)
		_, xattr := f.GetXAttr(nil, header, "user.x", nil)
		_, reading := f.Read(nil, read, make([]byte, 1))
		for name, status := range map[string]fuse.Status{
			"lookup of .":  f.Lookup(nil, header, ".", &fuse.EntryOut{}),
			"lookup of ..": f.Lookup(nil, header, "..", &fuse.EntryOut{}),
			"getattr":      f.GetAttr(nil, getattr, &fuse.AttrOut{}),
			"readlink":     readlink,
			"getxattr":     xattr,
			"read":         reading,
			"readdir":      f.ReadDir(nil, read, fuse.NewDirEntryList(make([]byte, 4096), 0)),
		} {
			if status.Ok() {
				t.Errorf("%s of inode %d is fine", name, ino)
			}
		}
	}
	for name, tt := range map[string]struct {
		in   *fuse.ReadIn
		want fuse.Status
	}{
		"read of a directory":     {readRequest(1, 0, 1, 0), fuse.EINVAL},
		"read at a huge offset":   {readRequest(2, ^uint64(0), 1, 0), fuse.OK},
		"read of nothing":         {readRequest(2, 0, 0, 0), fuse.OK},
		"read at the end of size": {readRequest(2, 1, 1, 0), fuse.OK},
	} {
		in := tt.in
		result, status := f.Read(nil, in, make([]byte, in.Size))
		if status != tt.want || status.Ok() && result.Size() != 0 {
			t.Errorf("%s: %v", name, status)
		}
	}
	if status := f.ReadDir(nil, readRequest(2, 0, 4096, 0), fuse.NewDirEntryList(make([]byte, 4096), 0)); status != fuse.ENOTDIR {
		t.Errorf("readdir of a file: %v", status)
	}
}
