package keeper

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// helperEnv makes the test binary run one of helpers.
const helperEnv = "GRAZE_KEEPER_HELPER"

// helpers are what the test binary can do as another process.
var helpers = map[string]func(args []string) error{
	"keeper":  runKeeper,
	"client":  runClient,
	"service": runService,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// testIdle is how long the tests' keepers wait for clients.
const testIdle = 300 * time.Millisecond

// runKeeper is a keeper on the socket args[0].
func runKeeper(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return Run(ctx, args[0], Config{Idle: testIdle})
}

// runClient has the keeper on the socket args[0] hold its standard input, says
// so, and waits for the end of standard error's pipe: until it is killed.
func runClient(args []string) error {
	c, err := Open(context.Background(), args[0], nil)
	if err != nil {
		return err
	}
	if err := c.Put("stdin", os.Stdin); err != nil {
		return err
	}
	fmt.Println("held")
	<-c.Lost()
	return nil
}

// runService is a service of systemd: it takes what is passed to it, writes to it,
// and removes it from the store.
func runService([]string) error {
	s, err := OpenSystemd(Environment{
		NotifySocket: os.Getenv("NOTIFY_SOCKET"),
		ListenPID:    os.Getenv("LISTEN_PID"),
		ListenFDs:    os.Getenv("LISTEN_FDS"),
		ListenNames:  os.Getenv("LISTEN_FDNAMES"),
	}, func(name string) bool { return name == "mine" })
	if err != nil {
		return err
	}
	for name, f := range s.Held() {
		if _, err := f.WriteString(name); err != nil {
			return err
		}
		if err := s.Drop(name); err != nil {
			return err
		}
	}
	return nil
}

// helper prepares a process that runs a helper.
func helper(name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), helperEnv+"="+name)
	out := new(bytes.Buffer)
	c.Stdout, c.Stderr = out, out
	return c, out
}

// socketPath returns a name for a keeper's socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "keeper") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "keep.sock")
}

// open is Open with a keeper that the test has ended when it is over.
func open(t *testing.T, path string) *Client {
	t.Helper()
	t.Setenv(helperEnv, "keeper")
	c, err := Open(t.Context(), path, []string{os.Args[0], path})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Held() {
		t.Cleanup(func() { f.Close() })
	}
	pid := keeperOf(t, c)
	t.Cleanup(func() {
		unix.Kill(pid, unix.SIGTERM)
		waitFor(t, "the keeper's end", func() bool { return gone(pid) })
	})
	return c
}

// keeperOf returns the process that a client talks to.
func keeperOf(t *testing.T, c *Client) int {
	t.Helper()
	raw, err := c.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	err = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	if err != nil || pid == 0 {
		t.Fatal("the keeper's process is not known: ", err)
	}
	return pid
}

func gone(pid int) bool { return unix.Kill(pid, 0) == unix.ESRCH }

// waitFor waits until cond holds, which something else will bring about.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// pipe returns both ends of a pipe.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}
