package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// testSource marks the mounts of the tests in the mount table.
const testSource = "graze-fusefs-test"

// helperEnv makes the test binary run one of helpers.
const helperEnv = "GRAZE_FUSEFS_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	removeDead()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

// removeDead takes mounts away that an earlier run left when it was killed.
func removeDead() {
	mounts, _ := mountinfo.GetMounts(nil)
	for _, m := range mounts {
		if m.FSType == fsType && m.Source == testSource && errors.Is(answers(m.Mountpoint), unix.ENOTCONN) {
			unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
		}
	}
}

// needFUSE skips a test where it can't mount.
func needFUSE(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("mounting needs FUSE: ", err)
	}
}

// A mounted is a mount that a test has made.
type mounted struct {
	*Server
	dir  string
	stop func() error // ends Run and returns what it returned

	mu       sync.Mutex // guards the fields below
	failures []Failure
	warnings []string
}

// serve mounts a tree for the time of a test.
func serve(t testing.TB, tree *memTree) *mounted {
	t.Helper()
	needFUSE(t)
	m := &mounted{dir: openDir(t)}
	server, err := Mount(m.dir, tree, tree, Config{Source: testSource, Trace: m.trace()})
	if err != nil {
		t.Fatal(err)
	}
	m.run(t, server)
	return m
}

// openDir makes a directory that all users can reach, unlike t.TempDir.
func openDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fusefs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs the server in the background until stop or the end of the test.
func (m *mounted) run(t testing.TB, server *Server) {
	t.Helper()
	m.Server = server
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- server.Run(ctx) }()
	m.stop = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() {
		if err := m.stop(); err != nil {
			t.Error(err)
		}
		if at, err := topMount(m.dir); err != nil || at != nil {
			t.Errorf("after the test, %v is mounted on %s (%v)", at, m.dir, err)
			unix.Unmount(m.dir, unix.MNT_DETACH)
		}
	})
	endPolls(t, m.dir)
}

// endPolls makes the kernel learn that files of a mount can't be polled, so that
// it never asks for it again. The runtime polls what it opens, and stands still
// meanwhile: in the process of the server, which a test is, that is for good.
func endPolls(t testing.TB, dir string) {
	t.Helper()
	c := helper("poll", dir)
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s", err, &c.out)
	}
}

func (m *mounted) trace() Trace {
	return Trace{
		Failed: func(f Failure) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.failures = append(m.failures, f)
		},
		Warned: func(msg string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.warnings = append(m.warnings, msg)
		},
	}
}

// warned returns what the mount has warned of.
func (m *mounted) warned() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.warnings, "\n")
}

func (m *mounted) path(name string) string { return filepath.Join(m.dir, name) }

// A child is a process that runs one of helpers.
type child struct {
	*exec.Cmd
	out bytes.Buffer
}

// helper prepares a process that runs a helper. Whatever waits in the kernel
// for a page of the mount must be in another process than the server: a page
// fault holds up the Go runtime.
func helper(name string, args ...string) *child {
	c := &child{Cmd: exec.Command("/proc/self/exe", args...)}
	c.Env = append(os.Environ(), helperEnv+"="+name)
	c.Stdout, c.Stderr = &c.out, &c.out
	return c
}

// start starts the process and kills it at the end of the test.
func (c *child) start(t *testing.T) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill() })
}

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

// tool runs a program of the system and returns what it prints.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// asNobody makes a process run without privileges.
func asNobody(c *child) {
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}
