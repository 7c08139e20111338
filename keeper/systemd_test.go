package keeper

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

// A fakeSystemd keeps the descriptors that come to a notification socket, as
// systemd does.
type fakeSystemd struct {
	path string
	conn *net.UnixConn
	done sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	names []string
	fds   []int
	texts []string
}

func startSystemd(t *testing.T) *fakeSystemd {
	t.Helper()
	s := &fakeSystemd{path: filepath.Join(filepath.Dir(socketPath(t)), "notify")}
	var err error
	s.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: s.path})
	if err != nil {
		t.Fatal(err)
	}
	s.done.Go(s.run)
	t.Cleanup(func() {
		s.conn.Close()
		s.done.Wait()
		closeAll(s.fds)
	})
	return s
}

func (s *fakeSystemd) run() {
	text, oob := make([]byte, 4096), make([]byte, 256)
	for {
		n, oobn, _, _, err := s.conn.ReadMsgUnix(text, oob)
		if err != nil {
			return
		}
		fds, err := rights(oob[:oobn])
		if err != nil {
			return
		}
		s.take(string(text[:n]), fds)
	}
}

// take does what a message says.
func (s *fakeSystemd) take(text string, fds []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fields := make(map[string]string)
	for line := range strings.SplitSeq(text, "\n") {
		key, value, _ := strings.Cut(line, "=")
		fields[key] = value
	}
	switch name := fields["FDNAME"]; {
	case fields["FDSTORE"] == "1" && len(fds) == 1:
		s.names, s.fds = append(s.names, name), append(s.fds, fds[0])
		s.texts = append(s.texts, text)
		return
	case fields["FDSTOREREMOVE"] == "1":
		for i := slices.Index(s.names, name); i >= 0; i = slices.Index(s.names, name) {
			unix.Close(s.fds[i])
			s.names, s.fds = slices.Delete(s.names, i, i+1), slices.Delete(s.fds, i, i+1)
		}
	}
	closeAll(fds) // that of a barrier too
}

// held returns what is held, by name and by number, and the messages that it came
// with.
func (s *fakeSystemd) held() (names []string, fds []int, texts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.names), slices.Clone(s.fds), slices.Clone(s.texts)
}

// TestSystemd: what a service has put is passed to it when it starts again, and
// not after it has dropped it.
func TestSystemd(t *testing.T) {
	systemd := startSystemd(t)
	s, err := OpenSystemd(Environment{NotifySocket: systemd.path}, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	r, w := pipe(t)
	for _, name := range []string{"mine", "theirs"} {
		if err := s.Put(name, w); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put("a:b", w); err == nil {
		t.Error("a name that systemd would refuse is sent to it")
	}
	stored, fds, texts := systemd.held()
	if !slices.Equal(stored, []string{"mine", "theirs"}) {
		t.Fatalf("systemd holds %q", stored)
	}
	if !strings.Contains(texts[0], "FDPOLL=0") {
		t.Errorf("systemd is told %q", texts[0])
	}
	w.Close()

	_, out := helper("service")
	c := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0"`, os.Args[0])
	c.Env = append(os.Environ(), helperEnv+"=service", "NOTIFY_SOCKET="+systemd.path,
		"LISTEN_FDS=2", "LISTEN_FDNAMES="+strings.Join(stored, ":"))
	for _, fd := range fds {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(own), "stored")
		defer f.Close()
		c.ExtraFiles = append(c.ExtraFiles, f)
	}
	c.Stdout, c.Stderr = out, out
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := read(t, r, 4); got != "mine" {
		t.Errorf("the pipe gave %q", got)
	}
	if got, _, _ := systemd.held(); !slices.Equal(got, []string{"theirs"}) {
		t.Errorf("then systemd holds %q", got)
	}
}

// TestEnvironment: only what is meant for this very process is taken.
func TestEnvironment(t *testing.T) {
	pid := itoa(os.Getpid())
	for _, tt := range []struct {
		env  Environment
		want []string
	}{
		{Environment{}, nil},
		{Environment{ListenPID: pid, ListenFDs: "2", ListenNames: "a:b"}, []string{"a", "b"}},
		{Environment{ListenPID: "1", ListenFDs: "2", ListenNames: "a:b"}, nil},
		{Environment{ListenPID: pid, ListenFDs: "3", ListenNames: "a:b"}, nil},
		{Environment{ListenPID: pid, ListenFDs: "x", ListenNames: "a"}, nil},
	} {
		if got := tt.env.inherited(); !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %q, want %q", tt.env, got, tt.want)
		}
	}
	for store, want := range map[string]bool{"": false, "0": false, "64": true, "x": false} {
		if got := (Environment{NotifySocket: "/n", Store: store}).HasStore(); got != want {
			t.Errorf("FDSTORE=%s: %v", store, got)
		}
	}
	if _, err := OpenSystemd(Environment{}, nil); err == nil || !strings.Contains(err.Error(), "FileDescriptorStoreMax") {
		t.Errorf("without systemd: %v", err)
	}
}
