package node

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/chunk"
	"graze/origin"
)

// smallDisk mounts a disk of some MiB for the rest of a test.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	} else {
		fuse.Close()
	}
	dir := t.TempDir()
	if err := unix.Mount("graze-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves no room on a disk.
func fill(t *testing.T, dir string) (name string) {
	t.Helper()
	name = filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, neverEnds{}); !errors.Is(err, unix.ENOSPC) {
		t.Fatal("the disk is not full: ", err)
	}
	return name
}

// neverEnds is a reader without an end.
type neverEnds struct{}

func (neverEnds) Read(p []byte) (int, error) { return len(p), nil }

// TestMountOnFullDisk mounts an image on a node that has never seen it and whose disk
// is full, and reads it.
func TestMountOnFullDisk(t *testing.T) {
	state := smallDisk(t, "32m")
	ln := serveRegistry(t, func(http.ResponseWriter, *http.Request) bool { return false })
	n, err := Open(Config{State: state, StoreLimit: 8 << 20, Origin: origin.Config{PlainHTTP: true, Dial: ln.dial}})
	if err != nil {
		t.Fatal(err)
	}
	filler := fill(t, state)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := n.Mount(ctx, "r.test/a:1", t.TempDir(), MountOptions{IndexOptions: IndexOptions{Build: true}})
	if err != nil {
		t.Fatal(err)
	}
	// By another process: who serves a mount must not use it.
	if out, err := exec.Command("cat", filepath.Join(m.Info().Dir, "a")).CombinedOutput(); err != nil || string(out) != "x" {
		t.Errorf("%q, %v", out, err)
	}
	if !n.reserve.given {
		t.Error("the reserve is there, and so there was room all the time")
	}

	// With what was the reserve gone, too, it is an error that says so.
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	fill(t, state)
	full := n.withRoom(func() error { return &os.PathError{Op: "write", Path: "x", Err: unix.ENOSPC} })
	if full == nil || !strings.Contains(full.Error(), "make room there") {
		t.Errorf("an error that does not say what to do: %v", full)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	n.reserve.mu.Lock()
	n.reserve.tried = n.reserve.tried.Add(-reserveTries)
	n.reserve.mu.Unlock()
	if n.reserve.tight() {
		t.Error("with room on the disk the reserve has not come back")
	}
}

// TestUncachedReadsOff: in a drill, what the disk has no room for can't be read.
func TestUncachedReadsOff(t *testing.T) {
	drill, err := ParseDrill([]string{"uncached-reads"})
	if err != nil {
		t.Fatal(err)
	}
	ln := serveRegistry(t, func(http.ResponseWriter, *http.Request) bool { return false })
	n, err := Open(Config{State: smallDisk(t, "32m"), StoreLimit: 8 << 20, Drill: drill, Origin: origin.Config{PlainHTTP: true, Dial: ln.dial}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	defer func() {
		cancel()
		<-ran
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	img, err := n.Resolve(ctx, "r.test/a:1")
	if err != nil {
		t.Fatal(err)
	}
	n.reserve.given, n.reserve.tried = true, time.Now().Add(time.Hour)
	tree, err := n.OpenTree(ctx, img, IndexOptions{Build: true, Keep: func(chunk.Verified) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	ino := uint64(0)
	for i := uint64(1); ino == 0 && i < 16; i++ {
		for range tree.View.Extents(i, 0, 1) {
			ino = i
		}
	}
	if _, err := tree.Files.ReadAt(ctx, ino, make([]byte, 1), 0); !errors.Is(err, errNotKept) {
		t.Errorf("inode %d is read: %v", ino, err)
	}
	if _, err := ParseDrill([]string{"gravity"}); err == nil {
		t.Error("gravity can be turned off")
	}
}
