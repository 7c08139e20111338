package keeper

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// read returns n bytes of a pipe.
func read(t *testing.T, r *os.File, n int) string {
	t.Helper()
	p := make([]byte, n)
	if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, p); err != nil {
		t.Fatal(err)
	}
	return string(p)
}

func names(c *Client) []string { return slices.Sorted(maps.Keys(c.Held())) }

// TestHold: what one client has put the next one gets, and can use. When nothing is
// held the keeper ends by itself, and leaves nothing.
func TestHold(t *testing.T) {
	path := socketPath(t)
	r, w := pipe(t)
	full, fill := pipe(t)
	if _, err := fill.WriteString("untouched"); err != nil {
		t.Fatal(err)
	}
	first := open(t, path)
	pid := keeperOf(t, first)
	if len(first.Held()) != 0 {
		t.Errorf("a new keeper holds %q", names(first))
	}
	for name, f := range map[string]*os.File{"pipe": w, "full": full, "other": w} {
		if err := first.Put(name, f); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(first.Drop("other"), first.Drop("never")); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	w.Close()
	full.Close()

	second := open(t, path)
	if keeperOf(t, second) != pid {
		t.Error("the second client has another keeper")
	}
	if got := names(second); !slices.Equal(got, []string{"full", "pipe"}) {
		t.Fatalf("the second client gets %q", got)
	}
	if _, err := second.Held()["pipe"].WriteString("hello"); err != nil {
		t.Error(err)
	}
	if got := read(t, r, 5); got != "hello" {
		t.Errorf("the pipe gave %q", got)
	}
	p := make([]byte, 20)
	if n, err := unix.Read(fdOf(second.Held()["full"]), p); err != nil || string(p[:n]) != "untouched" {
		t.Errorf("the keeper has left %q in the pipe (%v)", p[:n], err)
	}
	for name, f := range second.Held() {
		f.Close()
		if err := second.Drop(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Read(p); err != io.EOF {
		t.Errorf("somebody still has the pipe: %v", err)
	}
	second.Close()
	waitFor(t, "the keeper's end", func() bool { return gone(pid) })
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestOneAtATime: a client waits until the one before is gone, however it went.
func TestOneAtATime(t *testing.T) {
	path := socketPath(t)
	open(t, path).Close() // so that there is a keeper
	in, _ := pipe(t)
	c, out := helper("client", path)
	c.Stdin, c.Stdout = in, nil
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "held\n" {
		t.Fatalf("the client said %q: %s", line, out)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c, err := Open(short, path, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a second client is served beside the first: %v %v", c, err)
	}
	c.Process.Kill()
	second := open(t, path)
	defer second.Close()
	if got := names(second); !slices.Equal(got, []string{"stdin"}) {
		t.Errorf("it gets %q", got)
	}
}

// TestKeeperKilled: the client is told, and gets another keeper.
func TestKeeperKilled(t *testing.T) {
	path := socketPath(t)
	_, w := pipe(t)
	first := open(t, path)
	pid := keeperOf(t, first)
	if err := first.Put("pipe", w); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-first.Lost()
	if err := first.Put("pipe", w); !errors.Is(err, errLost) {
		t.Errorf("put: %v", err)
	}
	first.Close()
	second := open(t, path)
	defer second.Close()
	if len(second.Held()) != 0 || keeperOf(t, second) == pid {
		t.Errorf("process %d holds %q", keeperOf(t, second), names(second))
	}
	if err := second.Put("pipe", w); err != nil {
		t.Error(err)
	}
}

// TestEnded: what the other side has ended is let go of, and then the keeper ends: a
// file does not hold it.
func TestEnded(t *testing.T) {
	path := socketPath(t)
	r, w := pipe(t)
	c := open(t, path)
	pid := keeperOf(t, c)
	file, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := errors.Join(c.Put("pipe", w), c.Put("file", file)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	w.Close()
	c = open(t, path) // all this time the keeper has had something to hold
	if got := names(c); keeperOf(t, c) != pid || !slices.Equal(got, []string{"file", "pipe"}) {
		t.Errorf("the keeper holds %q", got)
	}
	for _, f := range c.Held() {
		f.Close()
	}
	c.Close()
	r.Close()
	waitFor(t, "the keeper's end", func() bool { return gone(pid) })
}

// TestSecondKeeper: there is one keeper for a socket.
func TestSecondKeeper(t *testing.T) {
	path := socketPath(t)
	c := open(t, path)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Run(ctx, path, Config{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside another: %v", err)
	}
}

// TestNoKeeper: what does not become a keeper is not waited for without end, and
// what can't be run not at all.
func TestNoKeeper(t *testing.T) {
	path := socketPath(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, path, []string{"/bin/true"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("true is no keeper: %v", err)
	}
	if _, err := Open(t.Context(), path, []string{path}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

// TestBadRequests: a client that talks nonsense is refused or sent away, and
// leaves no descriptor with the keeper.
func TestBadRequests(t *testing.T) {
	path := socketPath(t)
	_, w := pipe(t)
	c := open(t, path)
	defer func() { c.Close() }()
	for _, name := range []string{"", "UP", "a:b", "a\n", strings.Repeat("x", maxName+1)} {
		if err := c.Put(name, w); err == nil || !strings.Contains(err.Error(), "name") {
			t.Errorf("put under %q: %v", name, err)
		}
	}
	if _, err := c.ask(message{Op: opPut, Name: "none"}, -1); err == nil || !strings.Contains(err.Error(), "no descriptor") {
		t.Errorf("put of nothing: %v", err)
	}
	if _, err := c.ask(message{Op: "dance"}, fdOf(w)); err == nil || !strings.Contains(err.Error(), "dance") {
		t.Errorf("unknown request: %v", err)
	}
	fd := fdOf(w)
	for what, write := range map[string]func(conn *net.UnixConn) error{
		"no JSON":         func(conn *net.UnixConn) error { _, err := conn.Write([]byte("hello")); return err },
		"a long message":  func(conn *net.UnixConn) error { _, err := conn.Write(make([]byte, 2*maxMessage)); return err },
		"two descriptors": func(conn *net.UnixConn) error { return rightsOf(conn, fd, fd) },
		"many descriptors": func(conn *net.UnixConn) error {
			return rightsOf(conn, slices.Repeat([]int{fd}, 2*unixMaxRights)...)
		},
	} {
		if err := write(c.conn); err != nil {
			t.Fatal(err)
		}
		<-c.Lost()
		c.Close()
		if c = open(t, path); len(c.Held()) != 0 {
			t.Errorf("after %s, the keeper holds %q", what, names(c))
		}
	}
	pid := keeperOf(t, c)
	if list, err := os.ReadDir("/proc/" + itoa(pid) + "/fd"); err != nil {
		t.Error(err)
	} else {
		for _, e := range list {
			if to, _ := os.Readlink("/proc/" + itoa(pid) + "/fd/" + e.Name()); strings.HasPrefix(to, "pipe:") {
				t.Errorf("the keeper still has %s as %s", to, e.Name())
			}
		}
	}
}

// rightsOf sends a well-formed put with any number of descriptors.
func rightsOf(conn *net.UnixConn, fds ...int) error {
	_, _, err := conn.WriteMsgUnix([]byte(`{"op":"put","name":"x"}`), unix.UnixRights(fds...), nil)
	return err
}
