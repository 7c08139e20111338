package node

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"graze/origin"
)

// TestMountAgain has somebody else unmount a folder. Until the node's mount there has
// ended, nothing is mounted anew: the kernel would give it the same number, and the
// end of the first would take the second away.
func TestMountAgain(t *testing.T) {
	if fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	} else {
		fuse.Close()
	}
	ln := serveRegistry(t, func(http.ResponseWriter, *http.Request) bool { return false })
	n, err := Open(Config{State: t.TempDir(), Origin: origin.Config{PlainHTTP: true, Dial: ln.dial}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	close(n.restoring)
	dir := t.TempDir()
	mounted := make(chan error, 1)
	go func() {
		_, err := n.Mount(t.Context(), "r.test/a:1", dir, MountOptions{IndexOptions: IndexOptions{Build: true}})
		mounted <- err
	}()
	var first *Mount
	select {
	case first = <-n.serve:
	case err := <-mounted:
		t.Fatal(err)
	}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	if m, err := n.mountOn(now, first.info.Dir); m != first || err != nil {
		t.Errorf("while it is mounted there is %p, not %p; %v", m, first, err)
	}
	if err := unix.Unmount(first.info.Dir, 0); err != nil {
		t.Fatal(err)
	}
	if m, err := n.mountOn(now, first.info.Dir); m != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("one that is about to end is not waited for: %p, %v", m, err)
	}
	first.run(t.Context())
	if err := first.Err(); err != nil {
		t.Error(err)
	}
	<-mounted // it may have been ready for a moment
	if m, err := n.mountOn(now, first.info.Dir); m != nil || err != nil {
		t.Errorf("afterwards there is %p, %v", m, err)
	}
}
