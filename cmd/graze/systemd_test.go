package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
)

// A fakeSystemd has a descriptor store, as systemd has one for each service.
type fakeSystemd struct {
	socket string

	mu    sync.Mutex // guards store
	store map[string]*os.File
}

// startSystemd starts one that ends with the test.
func startSystemd(t *testing.T) *fakeSystemd {
	t.Helper()
	dir, err := os.MkdirTemp("", "systemd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &fakeSystemd{socket: filepath.Join(dir, "notify"), store: make(map[string]*os.File)}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: s.socket})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		text, oob := make([]byte, 4096), make([]byte, 256)
		for {
			n, oobn, _, _, err := conn.ReadMsgUnix(text, oob)
			if err != nil {
				return
			}
			var fds []int
			if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(msgs) == 1 {
				fds, _ = unix.ParseUnixRights(&msgs[0])
			}
			s.take(string(text[:n]), fds)
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-ended
	})
	return s
}

// take does what a notification says.
func (s *fakeSystemd) take(text string, fds []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := strings.Split(text, "\n")
	name := ""
	for _, line := range lines {
		if text, ok := strings.CutPrefix(line, "FDNAME="); ok {
			name = text
		}
	}
	switch {
	case slices.Contains(lines, "FDSTORE=1") && len(fds) == 1:
		s.store[name] = os.NewFile(uintptr(fds[0]), name)
		return
	case slices.Contains(lines, "FDSTOREREMOVE=1") && s.store[name] != nil:
		s.store[name].Close()
		delete(s.store, name)
	}
	for _, fd := range fds {
		unix.Close(fd) // that of a barrier
	}
}

// held returns how many descriptors there are in the store.
func (s *fakeSystemd) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.store)
}

// passes returns what systemd gives a service that it starts.
func (s *fakeSystemd) passes(t *testing.T) (env []string, files []*os.File) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, f := range s.store {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		own := os.NewFile(uintptr(fd), name)
		t.Cleanup(func() { own.Close() })
		names, files = append(names, name), append(files, own)
	}
	env = []string{"NOTIFY_SOCKET=" + s.socket, "FDSTORE=64"}
	if len(names) > 0 {
		env = append(env, "LISTEN_FDS="+strconv.Itoa(len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}
	return env, files
}

// TestSystemdStore: where systemd has a store for the node, that holds the mounts, and
// there is no keeper.
func TestSystemdStore(t *testing.T) {
	reg := startRegistry(t)
	systemd := startSystemd(t)
	n := newKeptNode(t)
	n.flags = []string{"--keep-mounts", "auto"}
	n.before = []string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`}
	n.env, n.files = systemd.passes(t)
	n.start(t)
	ref := reg.push(t, smallImage(t, imagetest.Plain()), "small:1")
	first, second := n.mount(t, ref), n.mount(t, ref)
	u := startUser(t, first)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		n.end(t, sig)
		n.env, n.files = systemd.passes(t)
		if len(n.files) != 2 {
			t.Errorf("systemd holds %d descriptors", len(n.files))
		}
		n.start(t)
		n.serves(t, first, second)
		pause(t, 50*time.Millisecond)
	}
	u.stop(t)
	if pid := n.keeper(t); pid != 0 {
		t.Errorf("there is a keeper, process %d", pid)
	}
	graze(t, "umount", second)
	n.serves(t, first)
	eventually(t, "systemd holds one mount", func() bool { return systemd.held() == 1 })
	n.end(t, syscall.SIGINT)
	if left := systemd.held(); left != 0 {
		t.Errorf("at the end systemd holds %d descriptors", left)
	}
}
