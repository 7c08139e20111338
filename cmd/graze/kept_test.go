package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
	"graze/node"
)

// A keptNode is a node whose mounts outlive its processes, which are started and
// ended by the test.
type keptNode struct {
	state  string
	binary string
	env    []string
	before []string // the command line that runs the binary
	flags  []string
	files  []*os.File // what it gets as descriptors 3 and up

	cmd    *exec.Cmd // nil while no process runs
	exited chan error
	stderr *bytes.Buffer // of the process that runs now, or ran last; to be read when it has ended
}

// newKeptNode returns a node that does not run yet. At the end of the test all of it
// must go away, and leave nothing.
func newKeptNode(t testing.TB, flags ...string) *keptNode {
	t.Helper()
	needFUSE(t)
	dir, err := os.MkdirTemp("", "graze") // t.TempDir may be too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	n := &keptNode{state: dir, binary: os.Args[0], flags: append([]string{"--keep-mounts", "keeper"}, flags...)}
	t.Cleanup(func() {
		n.giveUp(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

// start runs the node and waits until it answers.
func (n *keptNode) start(t testing.TB) {
	t.Helper()
	if err := n.tryStart(); err != nil {
		t.Fatal(err)
	}
}

// command returns a process of the node that does not run yet.
func (n *keptNode) command() *exec.Cmd {
	args := append(slices.Clone(n.before), n.binary, "node", "--state", n.state)
	args = append(args, n.flags...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(append(os.Environ(), runEnv+"=1"), n.env...)
	cmd.ExtraFiles = n.files
	return cmd
}

func (n *keptNode) tryStart() error {
	n.cmd = n.command()
	n.stderr, n.exited = new(bytes.Buffer), make(chan error, 1)
	n.cmd.Stderr = n.stderr
	stdout, err := n.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := n.cmd.Start(); err != nil {
		return err
	}
	r := bufio.NewReader(stdout)
	line, _ := r.ReadString('\n')
	cmd, exited := n.cmd, n.exited
	go func() {
		_, _ = io.Copy(io.Discard, r)
		exited <- cmd.Wait()
	}()
	if !strings.Contains(line, "answering") {
		n.cmd = nil
		return fmt.Errorf("graze node: %w\n%s", <-exited, n.stderr)
	}
	return nil
}

// end sends the node's process a signal and waits for its end.
func (n *keptNode) end(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(sig)
	err := <-n.exited
	n.cmd = nil
	if err != nil && sig != syscall.SIGKILL {
		t.Errorf("graze node: %v\n%s", err, n.stderr)
	}
}

// mount has the node mount an image.
func (n *keptNode) mount(t testing.TB, ref string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	graze(t, append([]string{"mount", "--node", node.Socket(n.state), ref, dir}, flags...)...)
	return dir
}

// mounts returns what the running node says that it has mounted.
func (n *keptNode) mounts(t testing.TB) (dirs []string) {
	t.Helper()
	remote, err := node.Dial(node.Socket(n.state))
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	s, err := remote.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.Mounts {
		dirs = append(dirs, m.Dir)
	}
	slices.Sort(dirs)
	return dirs
}

// serves waits until the node has these mounts, and no others.
func (n *keptNode) serves(t testing.TB, dirs ...string) {
	t.Helper()
	slices.Sort(dirs)
	eventually(t, fmt.Sprintf("the mounts are those on %q", dirs), func() bool { return slices.Equal(n.mounts(t), dirs) })
}

// keeper returns the process that holds the node's mounts; 0 if there is none. It is
// the one that has locked the socket.
func (n *keptNode) keeper(t testing.TB) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(keeperSocket(n.state)+".lock", &st); errors.Is(err, unix.ENOENT) {
		return 0
	} else if err != nil {
		t.Fatal(err)
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line) // 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF
		if len(f) > 5 && f[1] == "FLOCK" && strings.HasSuffix(f[5], fmt.Sprintf("%02x:%d", unix.Minor(st.Dev), st.Ino)) {
			pid, err := strconv.Atoi(f[4])
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	return 0
}

// giveUp ends everything of the node, whatever state it is in, and fails the test if
// something is left.
func (n *keptNode) giveUp(t testing.TB) {
	t.Helper()
	dirs, err := node.MountDirs(n.state)
	if err != nil {
		t.Error(err)
	}
	if out, code := grazeCode(t, "umount", "--all", "--force", "--state", n.state); code != 0 {
		t.Errorf("umount: exit code %d\n%s", code, out)
	}
	n.end(t, syscall.SIGINT)
	eventually(t, "the keeper ends", func() bool { return n.keeper(t) == 0 })
	for _, dir := range dirs {
		if at := mountsAt(t, dir); len(at) > 0 {
			t.Errorf("left in the mount table: %q", at)
		}
	}
	if _, err := os.Stat(keeperSocket(n.state)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the keeper's socket is left: %v", err)
	}
}

// mountsAt returns the lines of the mount table for a folder and those below it.
func mountsAt(t testing.TB, dir string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; at == dir || strings.HasPrefix(at, dir+"/") {
			lines = append(lines, line)
		}
	}
	return lines
}

// pause lets other processes work for a while.
func pause(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// userEnv makes the test binary use a mount, as the programs of a container do.
const userEnv = "GRAZE_TEST_USER"

// A user is a process that uses the mount of a smallImage in all ways that there are,
// over and over.
type user struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bytes.Buffer
}

// startUser starts a user. It is using the mount when startUser returns.
func startUser(t testing.TB, dir string) *user {
	t.Helper()
	u := &user{cmd: exec.Command(os.Args[0]), out: new(bytes.Buffer)}
	u.cmd.Env = append(os.Environ(), userEnv+"="+dir)
	u.cmd.Stderr = u.out
	stdin, err := u.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	u.stdin = stdin
	stdout, err := u.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = u.cmd.Process.Kill()
		_ = u.cmd.Wait() // unless the test has
	})
	r := bufio.NewReader(stdout)
	if line, _ := r.ReadString('\n'); line != "using\n" {
		t.Fatalf("the user of the mount: %v %s", u.cmd.Wait(), u.out)
	}
	return u
}

// stop ends a user, and fails the test if it has noticed anything.
func (u *user) stop(t testing.TB) {
	t.Helper()
	u.stdin.Close()
	if err := u.cmd.Wait(); err != nil {
		t.Errorf("the user of the mount: %v\n%s", err, u.out)
	}
}

// runUser uses the mount of a smallImage until its standard input ends.
func runUser(root string) error {
	want := imagetest.Random(1, 5<<20)
	file := filepath.Join(root, "big/random")
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	direct, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	mapped, err := unix.Mmap(fd, 0, len(want), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	numbers, err := inodes(root)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	fmt.Println("using")
	buf, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for round := 0; ; round++ {
		select {
		case <-ended:
			fmt.Printf("%d rounds\n", round)
			return nil
		default:
		}
		// What the kernel has kept would need no server.
		if err := errors.Join(unix.Madvise(mapped, unix.MADV_DONTNEED), unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)); err != nil {
			return err
		}
		at := rand.IntN(len(want)/len(buf)-1) * len(buf)
		if mapped[at] != want[at] {
			return fmt.Errorf("round %d: mapped byte %d is wrong", round, at)
		}
		for how, fd := range map[string]int{"direct": direct, "open": fd} {
			if n, err := unix.Pread(fd, buf, int64(at)); err != nil || !bytes.Equal(buf[:n], want[at:at+len(buf)]) {
				return fmt.Errorf("round %d: %s read of %d bytes at %d: %w", round, how, n, at, errors.Join(err, errors.New("wrong bytes")))
			}
		}
		if p, err := os.ReadFile(file); err != nil || !bytes.Equal(p, want) {
			return fmt.Errorf("round %d: opened again, %d bytes: %w", round, len(p), errors.Join(err, errors.New("wrong bytes")))
		}
		if now, err := inodes(root); err != nil || !slices.Equal(now, numbers) {
			return fmt.Errorf("round %d: inodes are %q, not %q: %w", round, now, numbers, errors.Join(err, errors.New("others")))
		}
	}
}

// inodes returns the names and the numbers of all files in a tree.
func inodes(root string) (list []string, err error) {
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		list = append(list, fmt.Sprintf("%s %d", name, st.Ino))
		return nil
	})
	return list, err
}
