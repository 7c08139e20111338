package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
	"graze/registry"
)

// runEnv makes the test binary behave as graze itself. A mount has to be served
// by another process than the one that reads it.
const runEnv = "GRAZE_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runEnv) != "" {
		main()
	}
	for env, run := range map[string]func(settings string) error{liarEnv: runLiar, strangerEnv: runStranger} {
		if settings := os.Getenv(env); settings != "" {
			if err := run(settings); err != nil {
				fmt.Fprintln(os.Stderr, env, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	if dir := os.Getenv(userEnv); dir != "" {
		if err := runUser(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if dir := plainBinary.dir; dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// needFUSE skips a test where nothing can be mounted.
func needFUSE(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skip("mounting needs FUSE: ", err)
	} else {
		f.Close()
	}
}

// needTools skips a test where a program is missing.
func needTools(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed", name)
		}
	}
}

// A testRegistry is an embedded registry that listens on a free port.
type testRegistry struct {
	*registry.Registry
	addr string
	stop func() // ends it before the test does
}

// startRegistry starts an embedded registry that ends with the test.
func startRegistry(t testing.TB) *testRegistry {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startRegistryOn(t, ln)
}

// startRegistryOn is startRegistry on a listener, which it closes.
func startRegistryOn(t testing.TB, ln net.Listener) *testRegistry {
	t.Helper()
	reg, err := registry.New(t.TempDir(), registry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- registry.Serve(ctx, ln, reg, registry.Config{}) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-served, reg.Close()); err != nil {
			t.Error("registry: ", err)
		}
	})
	t.Cleanup(stop)
	return &testRegistry{Registry: reg, addr: ln.Addr().String(), stop: stop}
}

// push puts an image into the registry under a name, and returns the reference.
func (r *testRegistry) push(t testing.TB, img *imagetest.Image, name string) string {
	t.Helper()
	if err := img.Push(t.Context(), r.addr, name); err != nil {
		t.Fatal("push: ", err)
	}
	return r.addr + "/" + name
}

// stats returns what the registry has counted, once it has answered all that it
// was asked.
func (r *testRegistry) stats(t testing.TB) map[registry.Kind]registry.Count {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.Idle(ctx); err != nil {
		t.Fatal("registry: ", err)
	}
	return r.Stats()
}

// blobBytes returns how many requests for blobs the registry has answered, and
// with how many bytes.
func (r *testRegistry) blobBytes(t testing.TB) registry.Count {
	t.Helper()
	return r.stats(t)[registry.KindBlob]
}

// requests returns how many requests of all kinds the registry has answered.
func (r *testRegistry) requests(t testing.TB) (n int64) {
	t.Helper()
	for _, c := range r.stats(t) {
		n += c.Requests
	}
	return n
}

// graze runs a command of graze in this process and returns what it printed.
func graze(t testing.TB, args ...string) string {
	t.Helper()
	out, code := grazeCode(t, args...)
	if code != 0 {
		t.Fatalf("graze %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// grazeCode is graze for commands that may fail: the output is that of both
// streams then.
func grazeCode(t testing.TB, args ...string) (string, int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	if code != 0 {
		return stdout.String() + stderr.String(), code
	}
	return stdout.String(), code
}

// A testMount is a running 'graze mount'.
type testMount struct {
	dir    string
	cmd    *exec.Cmd
	exited chan error
	stderr *bytes.Buffer // to be read once exited has answered
	ready  struct {
		Reference    string
		Digest       string
		Format       string
		Stale        bool
		Layers       []struct{ Digest, Format, Index string }
		Files        int64
		Milliseconds int64
	}
}

// mount runs 'graze mount' in a process of its own and waits until it says that
// the mount is ready. The mount ends with the test, if not before.
func mount(t testing.TB, ref string, flags ...string) *testMount {
	t.Helper()
	m, err := tryMount(t, ref, flags...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tryMount is mount for mounts that may fail.
func tryMount(t testing.TB, ref string, flags ...string) (*testMount, error) {
	t.Helper()
	return mountWith(t, os.Args[0], ref, flags...)
}

// mountWith is tryMount with another binary of graze than the one under test.
func mountWith(t testing.TB, binary, ref string, flags ...string) (*testMount, error) {
	t.Helper()
	m := &testMount{dir: t.TempDir(), exited: make(chan error, 1), stderr: new(bytes.Buffer)}
	args := append([]string{"mount", "--json", ref, m.dir}, flags...)
	m.cmd = exec.Command(binary, args...)
	m.cmd.Env = append(os.Environ(), runEnv+"=1")
	m.cmd.Stderr = m.stderr
	stdout, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	lines := make(chan []byte, 1)
	go func() {
		r := bufio.NewReader(stdout)
		line, _ := r.ReadBytes('\n')
		lines <- line
		_, _ = io.Copy(io.Discard, r)
		m.exited <- m.cmd.Wait()
		close(m.exited)
	}()
	t.Cleanup(func() { m.stop(t) })
	line := <-lines
	if len(line) == 0 {
		return nil, fmt.Errorf("graze mount: %w\n%s", <-m.exited, m.stderr)
	}
	return m, json.Unmarshal(line, &m.ready)
}

// stop interrupts the mount's process and waits for its end, which must leave no
// mount behind.
func (m *testMount) stop(t testing.TB) {
	t.Helper()
	_ = m.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	if err := <-m.exited; err != nil {
		t.Errorf("graze mount: %v\n%s", err, m.stderr)
	}
	if isMounted(m.dir) {
		t.Errorf("%s is still mounted", m.dir)
		_ = unix.Unmount(m.dir, unix.MNT_DETACH)
	}
}

// kill ends the mount's process without warning and takes the dead mount away.
func (m *testMount) kill() {
	_ = m.cmd.Process.Kill()
	<-m.exited
	_ = unix.Unmount(m.dir, unix.MNT_DETACH)
}

// isMounted reports whether something is mounted on dir.
func isMounted(dir string) bool {
	var a, b unix.Stat_t
	if err := unix.Lstat(dir, &a); err != nil {
		return true // a dead mount
	}
	if err := unix.Lstat(filepath.Dir(dir), &b); err != nil {
		return false
	}
	return a.Dev != b.Dev
}

// runCommand runs a command whose output matters only if it fails.
func runCommand(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
