package fusefs

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A gate holds the reads of a tree up.
type gate struct {
	open    chan struct{} // reads go on when it is closed
	waiting atomic.Int64
	ended   atomic.Int64 // reads whose context ended while they waited
}

// hold makes reads of the tree wait at the gate that it returns.
func hold(tree *memTree) *gate {
	g := &gate{open: make(chan struct{})}
	tree.readAt = func(ctx context.Context, ino uint64, p []byte, off int64) (int, error) {
		g.waiting.Add(1)
		select {
		case <-g.open:
			return tree.read(ctx, ino, p, off)
		case <-ctx.Done():
			g.ended.Add(1)
			return 0, ctx.Err()
		}
	}
	return g
}

func (g *gate) waitForRead(t *testing.T) {
	t.Helper()
	waitFor(t, "a read", func() bool { return g.waiting.Load() > 0 })
}

// heldTree has two files of 8 KiB whose reads are held up.
func heldTree() (*memTree, *gate) {
	tree := newTree()
	tree.file("/file", 0o644, pattern(8192))
	tree.file("/other", 0o644, pattern(8192))
	return tree, hold(tree)
}

// TestInterrupt ends processes that wait for a page: some by a signal that is
// deadly by default, those in Go, which handle that one, by SIGKILL.
func TestInterrupt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		reader func(file string) *exec.Cmd
		signal os.Signal
		told   bool // whether the kernel tells that nobody waits any more
	}{
		{"direct", func(file string) *exec.Cmd {
			return exec.Command("dd", "if="+file, "of=/dev/null", "iflag=direct", "bs=4096")
		}, unix.SIGTERM, true},
		{"mapped", func(file string) *exec.Cmd { return helper("random", file).Cmd }, os.Kill, true},
		// These wait for what the kernel reads ahead.
		{"buffered", func(file string) *exec.Cmd { return exec.Command("cat", file) }, unix.SIGTERM, false},
		{"mapped ahead", func(file string) *exec.Cmd { return helper("mmap", file).Cmd }, os.Kill, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree, g := heldTree()
			m := serve(t, tree)
			c := &child{Cmd: tt.reader(m.path("file"))}
			c.start(t)
			g.waitForRead(t)
			if err := c.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			if err := c.Wait(); err == nil || !strings.Contains(err.Error(), tt.signal.String()) {
				t.Errorf("the process ended with %v", err)
			}
			if tt.told {
				waitFor(t, "the end of the read", func() bool { return m.Stats().InFlight == 0 })
				if s := m.Stats(); g.ended.Load() == 0 || s.Interrupted == 0 || s.Failed != 0 {
					t.Errorf("%d contexts ended; stats: %+v", g.ended.Load(), s)
				}
			}
			close(g.open)
		})
	}
}

// TestSignal sends signals that a process handles while it waits for a page.
// They must not come between.
func TestSignal(t *testing.T) {
	for _, reader := range []string{"random", "direct"} {
		t.Run(reader, func(t *testing.T) { testSignal(t, reader) })
	}
}

func testSignal(t *testing.T, reader string) {
	tree, g := heldTree()
	m := serve(t, tree)
	c := helper(reader, m.path("file"))
	c.Stdout = nil
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.start(t)
	lines := bufio.NewScanner(out)
	lines.Scan()
	tid, err := strconv.Atoi(lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	g.waitForRead(t)
	tick := time.NewTicker(watchInterval / 10)
	defer tick.Stop()
	for range 30 {
		<-tick.C
		if err := unix.Tgkill(c.Process.Pid, tid, unix.SIGUSR1); err != nil {
			t.Fatalf("%v: %s", err, &c.out)
		}
	}
	close(g.open)
	lines.Scan()
	if want := strconv.Itoa(int(tree.find("/file").data[4096])); lines.Text() != want {
		t.Errorf("the process read %q, not %s", lines.Text(), want)
	}
	if err := c.Wait(); err != nil {
		t.Error(err, c.out.String())
	}
	if n := g.ended.Load(); n != 0 {
		t.Errorf("the contexts of %d reads ended", n)
	}
}

// TestShutdown ends the server while processes wait for pages.
func TestShutdown(t *testing.T) {
	tree, g := heldTree()
	m := serve(t, tree)
	var children []*child
	for how, name := range map[string]string{"read": "file", "random": "other"} {
		c := helper(how, m.path(name))
		c.start(t)
		children = append(children, c)
	}
	g.waitForRead(t)
	waitFor(t, "reads of all", func() bool { return g.waiting.Load() >= 2 })
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	for _, c := range children {
		if err := c.Wait(); err == nil {
			t.Errorf("%v read what was not there: %s", c.Args, &c.out)
		}
	}
	if s := m.Stats(); s.InFlight != 0 || s.Failed != 0 {
		t.Errorf("stats: %+v", s)
	}
	if !strings.Contains(m.warned(), "from those who use it") {
		t.Errorf("warned of %q", m.warned())
	}
}

// TestShutdownStuck ends a server whose Files don't mind their context.
func TestShutdownStuck(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as the server waits")
	}
	tree := newTree()
	tree.file("/file", 0o644, pattern(100))
	release, reading := make(chan struct{}), make(chan struct{})
	var once sync.Once
	tree.readAt = func(ctx context.Context, ino uint64, p []byte, off int64) (int, error) {
		once.Do(func() { close(reading) })
		<-release
		return tree.read(ctx, ino, p, off)
	}
	needFUSE(t)
	m := &mounted{dir: openDir(t)}
	server, err := Mount(m.dir, tree, tree, Config{Source: testSource, Trace: m.trace()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- server.Run(ctx) }()
	<-server.Ready()
	c := helper("read", m.dir+"/file")
	c.start(t)
	<-reading
	cancel()
	if err := <-result; err == nil || !strings.Contains(err.Error(), "reads go on") {
		t.Errorf("run: %v", err)
	}
	if at, err := topMount(m.dir); at != nil || err != nil {
		t.Errorf("%v is mounted (%v)", at, err)
	}
	if err := c.Wait(); err == nil {
		t.Error("the process read what was not there")
	}
	close(release)
}

// TestShutdownElsewhere ends a server whose mount has been cloned, as it is for
// an overlay.
func TestShutdownElsewhere(t *testing.T) {
	tree := newTree()
	tree.file("/file", 0o644, []byte("data"))
	m := serve(t, tree)
	bind := t.TempDir()
	if err := unix.Mount(m.dir, bind, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(bind, unix.MNT_DETACH)
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.ReadFile(filepath.Join(bind, "file")); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("read of the clone: %v", err)
	}
}

func TestRunDone(t *testing.T) {
	needFUSE(t)
	tree := newTree()
	dir := t.TempDir()
	server, err := Mount(dir, tree, tree, Config{Source: testSource})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := server.Run(ctx); err != nil {
		t.Error(err)
	}
	if at, err := topMount(dir); at != nil || err != nil {
		t.Errorf("%v is mounted (%v)", at, err)
	}
}

// TestUnmount lets someone else take the mount away.
func TestUnmount(t *testing.T) {
	tree, g := heldTree()
	close(g.open)
	needFUSE(t)
	m := &mounted{dir: openDir(t)}
	server, err := Mount(m.dir, tree, tree, Config{Source: testSource, Trace: m.trace()})
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- server.Run(context.Background()) }()
	endPolls(t, m.dir)

	f, err := os.Open(m.dir + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Unmount(m.dir, false); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), m.dir) {
		t.Errorf("unmount of what is in use: %v", err)
	}
	if err := Unmount(m.dir, true); err != nil {
		t.Errorf("lazy unmount: %v", err)
	}
	if p, err := io.ReadAll(f); err != nil || len(p) != 8192 {
		t.Errorf("read after a lazy unmount: %d bytes, %v", len(p), err)
	}
	select {
	case err := <-result:
		t.Fatalf("the server ended while a file was open: %v", err)
	default:
	}
	f.Close()
	if err := <-result; err != nil {
		t.Error(err)
	}
	if got := m.warned(); got != "" {
		t.Errorf("warned of %q", got)
	}
}

// TestAbort ends the connection with the means of the kernel, which leaves the
// mount in the table, while a process waits for a page.
func TestAbort(t *testing.T) {
	tree, g := heldTree()
	m := serve(t, tree)
	c := helper("read", m.path("file"))
	c.start(t)
	g.waitForRead(t)
	if err := unix.Unmount(m.dir, unix.MNT_FORCE); err != unix.EBUSY {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("the process read what was not there")
	}
	waitFor(t, "the mount to be taken away", func() bool {
		at, err := topMount(m.dir)
		return at == nil && err == nil
	})
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	if s := m.Stats(); g.ended.Load() == 0 || s.Failed != 0 {
		t.Errorf("%d contexts ended; stats: %+v", g.ended.Load(), s)
	}
	if !strings.Contains(m.warned(), "aborted") {
		t.Errorf("warned of %q", m.warned())
	}
}

func TestUnmountOther(t *testing.T) {
	needFUSE(t)
	plain, tmpfs := t.TempDir(), t.TempDir()
	if err := unix.Mount("graze-test", tmpfs, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(tmpfs, 0)
	for dir, want := range map[string]string{
		plain:          "nothing is mounted",
		tmpfs:          "of type tmpfs",
		plain + "/a/b": "no such file",
	} {
		if err := Unmount(dir, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("unmount %s: %v; want %s", dir, err, want)
		}
	}
}

func TestMountTarget(t *testing.T) {
	tree := newTree()
	tree.file("/file", 0o644, nil)
	m := serve(t, tree)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		dir  string
		cfg  Config
		want string
	}{
		{filepath.Join(dir, "none"), Config{}, "mkdir -p"},
		{filepath.Join(dir, "none", "none"), Config{}, "mkdir -p"},
		{file, Config{}, "not a directory"},
		{m.dir, Config{}, "running graze"},
		{dir, Config{ReadAhead: -1}, "read-ahead"},
		{dir, Config{MaxBackground: 1 << 16}, "background"},
		{dir, Config{Source: "a\x00b"}, "NUL"},
	} {
		_, err := Mount(tt.dir, tree, tree, tt.cfg)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.dir) {
			t.Errorf("mount on %s with %+v: %v; want %s", tt.dir, tt.cfg, err, tt.want)
		}
	}

	// Over a directory that is not empty, by way of a symbolic link.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	over := &mounted{dir: dir}
	server, err := Mount(link, tree, tree, Config{Source: testSource})
	if err != nil {
		t.Fatal(err)
	}
	over.run(t, server)
	if server.Dir() != dir {
		t.Errorf("mounted on %s, not %s", server.Dir(), dir)
	}
	if err := over.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("what the mount hid: %v", err)
	}
}

// TestMountTable checks what mount(8) shows, and the kernel's settings.
func TestMountTable(t *testing.T) {
	m := serve(t, newTree())
	at, err := topMount(m.dir)
	if err != nil || at == nil {
		t.Fatal(at, err)
	}
	if at.FSType != "fuse.graze" || at.Source != testSource {
		t.Errorf("type %s, source %s", at.FSType, at.Source)
	}
	options := at.Options + "," + at.VFSOptions
	for _, want := range []string{"ro", "default_permissions", "allow_other"} {
		if !strings.Contains(","+options+",", ","+want+",") {
			t.Errorf("no option %s in %s", want, options)
		}
	}
	for _, not := range []string{"nosuid", "nodev", "noexec"} {
		if strings.Contains(options, not) {
			t.Errorf("option %s in %s", not, options)
		}
	}
	if strings.Contains(m.warned(), "read-ahead") {
		t.Log(m.warned())
	} else {
		kb, err := os.ReadFile("/sys/class/bdi/" + strconv.Itoa(m.session.Major) + ":" + strconv.Itoa(m.session.Minor) + "/read_ahead_kb")
		if err != nil || strings.TrimSpace(string(kb)) != "1024" {
			t.Errorf("read-ahead of %s KiB, %v", kb, err)
		}
	}
}

// TestStale mounts where a server was killed.
func TestStale(t *testing.T) {
	needFUSE(t)
	dir := openDir(t)
	killServer(t, dir)
	m := &mounted{dir: dir}
	tree := newTree()
	server, err := Mount(dir, tree, tree, Config{Source: testSource, Trace: m.trace()})
	if err != nil {
		t.Fatal(err)
	}
	m.run(t, server)
	if !strings.Contains(m.warned(), "had died") {
		t.Errorf("warned of %q", m.warned())
	}
	if err := m.stop(); err != nil {
		t.Error(err)
	}
	for range 10 {
		killServer(t, dir)
		if err := Unmount(dir, false); err != nil {
			t.Errorf("unmount of a dead mount: %v", err)
		}
	}
}

// killServer leaves a dead mount on dir.
func killServer(t *testing.T, dir string) {
	t.Helper()
	c := helper("serve", dir)
	c.start(t)
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	waitFor(t, "the mount", func() bool {
		at, err := topMount(dir)
		return err == nil && at != nil
	})
	c.Process.Kill() // wherever it is in starting to serve
	c.Wait()
	if _, err := os.ReadFile(filepath.Join(dir, "none")); !errors.Is(err, unix.ENOTCONN) {
		t.Fatalf("the mount is not dead: %v", err)
	}
}

// TestNoInheritance checks that a child of the server does not keep the mount
// alive.
func TestNoInheritance(t *testing.T) {
	m := serve(t, newTree())
	out, err := exec.Command("ls", "-l", "/proc/self/fd").CombinedOutput()
	if err != nil {
		t.Skip(err)
	}
	if strings.Contains(string(out), "/dev/fuse") {
		t.Errorf("a child of the server of %s has:\n%s", m.dir, out)
	}
}
