package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/chaos"
	"graze/image/imagetest"
	"graze/node"
)

// startLoop starts a shell that reads a mount in a loop until the file stop is there.
// It ends with the first error, and the first number or sum that differs.
func startLoop(t testing.TB, dir string) (stop func()) {
	t.Helper()
	flag := filepath.Join(t.TempDir(), "stop")
	cmd := exec.Command("sh", "-ec", `cd "$0"
		look() { stat -c '%i %n' etc/motd etc/link big big/random; ls -R .; cat etc/motd; dd if=big/random iflag=direct bs=1M status=none | cksum; }
		first=$(look)
		while [ ! -e "$1" ]; do
			now=$(look)
			[ "$now" = "$first" ] || { echo "$first"; echo "then: $now"; exit 1; }
		done`, dir, flag)
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() {
		t.Helper()
		if err := os.WriteFile(flag, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the shell that reads the mount: %v\n%s", err, out)
		}
	}
}

// TestRestart kills and ends a node over and over, while it is used. The users see
// nothing of it.
func TestRestart(t *testing.T) {
	reg := startRegistry(t)
	n := newKeptNode(t)
	n.start(t)
	dir := n.mount(t, reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1"))
	u, stopLoop := startUser(t, dir), startLoop(t, dir)
	before := reg.requests(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range 20 {
		sig := syscall.SIGKILL
		if i%5 == 4 {
			sig = syscall.SIGTERM
		}
		// Also while it starts, and before anybody has noticed that it is there.
		pause(t, time.Duration(random.IntN(300))*time.Millisecond)
		n.end(t, sig)
		pause(t, time.Duration(random.IntN(100))*time.Millisecond)
		n.start(t)
	}
	n.serves(t, dir)
	u.stop(t)
	stopLoop()
	if after := reg.requests(t); after != before {
		t.Errorf("for 20 restarts the registry was asked %d times", after-before)
	}
	// With SIGINT it is over.
	n.end(t, syscall.SIGINT)
	if at := mountsAt(t, dir); len(at) > 0 {
		t.Errorf("after SIGINT there is %q", at)
	}
}

// TestUpgrade replaces a node by one of another binary, and that by the first.
func TestUpgrade(t *testing.T) {
	needTools(t, "go")
	other, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	reg := startRegistry(t)
	n := newKeptNode(t)
	n.start(t)
	dir := n.mount(t, reg.push(t, smallImage(t, imagetest.Zstd()), "small:1"))
	u := startUser(t, dir)
	for _, binary := range []string{other, n.binary} {
		n.end(t, syscall.SIGTERM)
		n.binary = binary
		n.start(t)
		n.serves(t, dir)
		pause(t, 100*time.Millisecond)
	}
	u.stop(t)
}

// TestExecWhileAway starts a program of an image that nobody has read yet, while no
// node is there.
func TestExecWhileAway(t *testing.T) {
	program, err := os.ReadFile("/bin/echo")
	if err != nil {
		t.Skip("there is no program to put into an image: ", err)
	}
	file := imagetest.File("bin/echo", program)
	file.Header.Mode = 0o755
	img, err := imagetest.Build([]imagetest.Layer{{Name: "base", Members: imagetest.Members(imagetest.Dir("bin/"), file)}}, imagetest.Gzip(6))
	if err != nil {
		t.Fatal(err)
	}
	reg := startRegistry(t)
	ref := reg.push(t, img, "echo:1")
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	n := newKeptNode(t)
	n.start(t)
	dir := n.mount(t, ref, "--index", "require")
	n.end(t, syscall.SIGKILL)

	// A shell, as this process would wait for the exec with all its threads.
	cmd := exec.Command("sh", "-c", `exec "$0" hello`, filepath.Join(dir, "bin/echo"))
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("without a node, the program has run: %v %s", err, out)
	case <-time.After(300 * time.Millisecond):
	}
	n.start(t)
	if err := <-ended; err != nil || out.String() != "hello\n" {
		t.Errorf("%v: %q", err, out)
	}
}

// TestKillWhileReading kills a node that waits for the registry for a reader.
func TestKillWhileReading(t *testing.T) {
	gate, err := chaos.NewGate("127.0.0.1:0", func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	reg := startRegistryOn(t, gate)
	ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	n := newKeptNode(t)
	n.start(t)
	dir := n.mount(t, ref, "--index", "require")
	if err := gate.Set(chaos.Swallow); err != nil {
		t.Fatal(err)
	}
	reader := exec.Command("cat", filepath.Join(dir, "big/random"))
	out := new(bytes.Buffer)
	reader.Stdout = out
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	waits := func() bool {
		s, err := os.ReadFile(fmt.Sprintf("/proc/%d/stack", reader.Process.Pid))
		return err == nil && (bytes.Contains(s, []byte("folio")) || bytes.Contains(s, []byte("fuse")) || bytes.Contains(s, []byte("filemap")))
	}
	eventually(t, "the reader waits", waits)
	for range 3 {
		n.end(t, syscall.SIGKILL)
		n.start(t)
		n.serves(t, dir)
		pause(t, 50*time.Millisecond)
	}
	// Nor does it keep a node from ending.
	n.end(t, syscall.SIGTERM)
	n.start(t)
	if err := gate.Set(chaos.Open); err != nil {
		t.Fatal(err)
	}
	if err := reader.Wait(); err != nil || !bytes.Equal(out.Bytes(), imagetest.Random(1, 5<<20)) {
		t.Errorf("the reader got %d bytes, %v", out.Len(), err)
	}
}

// TestKeeperKilled: a node whose keeper has died gets another one.
func TestKeeperKilled(t *testing.T) {
	reg := startRegistry(t)
	n := newKeptNode(t)
	n.start(t)
	dir := n.mount(t, reg.push(t, smallImage(t, imagetest.Plain()), "small:1"))
	u := startUser(t, dir)
	for range 3 {
		old := n.keeper(t)
		if err := unix.Kill(old, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another keeper has the mount", func() bool {
			pid := n.keeper(t)
			return pid != old && pid != 0 && holdsDevice(pid)
		})
		n.end(t, syscall.SIGKILL)
		n.start(t)
		n.serves(t, dir)
	}
	u.stop(t)
}

// holdsDevice reports whether a process has a FUSE descriptor.
func holdsDevice(pid int) bool {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	for _, e := range list {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); to == "/dev/fuse" {
			return true
		}
	}
	return false
}

// TestBothKilled: when the keeper dies with the node the mounts do, too. The next
// node makes them anew.
func TestBothKilled(t *testing.T) {
	reg := startRegistry(t)
	n := newKeptNode(t)
	n.start(t)
	dir := n.mount(t, reg.push(t, smallImage(t, imagetest.Plain()), "small:1"))
	file, err := unix.Open(filepath.Join(dir, "big/random"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	keeper := n.keeper(t)
	n.end(t, syscall.SIGKILL)
	if err := unix.Kill(keeper, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the mount ends", func() bool {
		var st unix.Statfs_t
		return unix.Statfs(dir, &st) == unix.ENOTCONN
	})
	reg.stop() // all that is needed is here
	n.start(t)
	n.serves(t, dir)
	if at := mountsAt(t, dir); len(at) != 1 {
		t.Errorf("in the mount table there is %q", at)
	}
	if p, err := exec.Command("cat", filepath.Join(dir, "big/random")).Output(); err != nil || !bytes.Equal(p, imagetest.Random(1, 5<<20)) {
		t.Errorf("read %d bytes, %v", len(p), err)
	}
	if _, err := unix.Pread(file, make([]byte, 4096), 0); err != unix.ENOTCONN {
		t.Errorf("who had the file open from before gets %v", err)
	}
}

// TestUnmountWhileAway unmounts while no node is there: what nobody uses, and what is
// in use.
func TestUnmountWhileAway(t *testing.T) {
	reg := startRegistry(t)
	n := newKeptNode(t)
	n.start(t)
	ref := reg.push(t, smallImage(t, imagetest.Plain()), "small:1")
	idle, used, third := n.mount(t, ref), n.mount(t, ref), n.mount(t, ref)
	// It has a file open, which it reads when its standard input ends.
	user := exec.Command("sh", "-c", `exec 3<"$0/big/random"; read -r line; dd iflag=direct bs=1M status=none <&3`, used)
	stdin, err := user.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out := new(bytes.Buffer)
	user.Stdout = out
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file is open", func() bool {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", user.Process.Pid))
		return strings.HasPrefix(to, used)
	})
	n.end(t, syscall.SIGKILL)
	graze(t, "umount", idle)
	if out, code := grazeCode(t, "umount", used); code != 1 || !strings.Contains(out, "in use") {
		t.Errorf("umount of what is in use: exit code %d\n%s", code, out)
	}
	graze(t, "umount", "--lazy", used)
	n.start(t)
	// The one that is in use has no folder any more, and is served.
	n.serves(t, used, third)
	stdin.Close()
	if err := user.Wait(); err != nil || !bytes.Equal(out.Bytes(), imagetest.Random(1, 5<<20)) {
		t.Errorf("who used it has read %d bytes, %v", out.Len(), err)
	}
	n.serves(t, third)
	n.end(t, syscall.SIGTERM)
	graze(t, "umount", "--all", "--state", n.state)
	n.start(t)
	n.serves(t)
	eventually(t, "the node has forgotten them", func() bool {
		dirs, err := node.MountDirs(n.state)
		return err == nil && len(dirs) == 0
	})
}

// TestMountWhileAway: who mounts on the folder of a node that is away does not take its
// mounts away.
func TestMountWhileAway(t *testing.T) {
	reg := startRegistry(t)
	n := newKeptNode(t)
	n.start(t)
	ref := reg.push(t, smallImage(t, imagetest.Plain()), "small:1")
	dir := n.mount(t, ref)
	u := startUser(t, dir)
	n.end(t, syscall.SIGKILL)
	if out, code := grazeCode(t, "mount", "--state", n.state, ref, t.TempDir()); code != 1 || !strings.Contains(out, dir) {
		t.Errorf("mount: exit code %d\n%s", code, out)
	}
	n.start(t)
	n.serves(t, dir)
	u.stop(t)
}

// TestForce takes a mount away whose users wait for a node that does not come.
func TestForce(t *testing.T) {
	reg := startRegistry(t)
	n := newKeptNode(t)
	n.start(t)
	dir := n.mount(t, reg.push(t, smallImage(t, imagetest.Plain()), "small:1"))
	n.end(t, syscall.SIGKILL)
	reader := exec.Command("dd", "iflag=direct", "bs=64k", "of=/dev/null", "if="+filepath.Join(dir, "big/random"))
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	graze(t, "umount", "--force", dir)
	if err := reader.Wait(); err == nil {
		t.Error("the reader has read what was not there")
	}
	eventually(t, "the keeper ends", func() bool { return n.keeper(t) == 0 })
}

// TestDamagedView damages what one of two mounts needs, while no node is there.
func TestDamagedView(t *testing.T) {
	for _, row := range []struct {
		name  string
		files []string // in the state folder
		lives bool     // the mount can be gone on with
	}{
		{"view", []string{"views/*"}, true}, // it can be made again, as it was
		{"all that is known", []string{"views/*", "layers/*", "refs/*", "blobs/sha256/*"}, false},
		{"record", []string{"mounts/*"}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			reg := startRegistry(t)
			n := newKeptNode(t)
			n.start(t)
			first := n.mount(t, reg.push(t, smallImage(t, imagetest.Gzip(6)), "first:1"))
			hurt := make(map[string]bool)
			for _, pattern := range row.files {
				for _, name := range glob(t, filepath.Join(n.state, pattern)) {
					hurt[name] = true
				}
			}
			second := n.mount(t, reg.push(t, otherImage(t), "second:1"))
			healthy, sick := startUser(t, second), startUser(t, first)
			n.end(t, syscall.SIGKILL)
			reg.stop()
			for name := range hurt {
				if st, err := os.Stat(name); err != nil {
					t.Fatal(err)
				} else if err := os.Truncate(name, st.Size()/2); err != nil {
					t.Fatal(err)
				}
			}
			n.start(t)
			if row.lives {
				n.serves(t, first, second)
				sick.stop(t)
			} else {
				if err := sick.cmd.Wait(); err == nil {
					t.Error("who uses the damaged mount gets no error")
				}
				n.serves(t, second)
			}
			healthy.stop(t)
			n.end(t, syscall.SIGTERM)
			if log := n.stderr.String(); !row.lives && !strings.Contains(log, "level=ERROR") {
				t.Errorf("the log has no error:\n%s", log)
			}
			if at := mountsAt(t, first); !row.lives && len(at) > 0 {
				t.Errorf("there is still %q", at)
			}
		})
	}
}

// otherImage has the file of a smallImage that users read, but nothing by digest.
func otherImage(t testing.TB) *imagetest.Image {
	t.Helper()
	img, err := imagetest.Build([]imagetest.Layer{{Name: "other", Members: imagetest.Members(
		imagetest.Dir("big/"),
		imagetest.File("big/random", imagetest.Random(1, 5<<20)),
	)}}, imagetest.Plain())
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil || len(list) == 0 {
		t.Fatalf("no file is %s (%v)", pattern, err)
	}
	return list
}

// TestKillWhileMounting kills a node at any moment of a mount. The next one knows
// what was completed, and takes the rest away.
func TestKillWhileMounting(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Plain()), "small:1")
	n := newKeptNode(t)
	n.start(t)
	n.mount(t, ref)
	var dirs []string
	for i := range 20 {
		dir := t.TempDir()
		dirs = append(dirs, dir)
		remote, err := node.Dial(node.Socket(n.state))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = remote.Mount(context.Background(), ref, dir, node.IndexOptions{})
		}()
		pause(t, time.Duration(4*i)*time.Millisecond)
		n.end(t, syscall.SIGKILL)
		<-ended
		remote.Close()
		n.start(t)
	}
	known := make(map[string]bool)
	eventually(t, "all mounts are served", func() bool {
		list, err := node.MountDirs(n.state)
		return err == nil && len(list) == len(n.mounts(t))
	})
	for _, dir := range n.mounts(t) {
		known[dir] = true
	}
	for _, dir := range dirs {
		at := mountsAt(t, dir)
		if known[dir] != (len(at) == 1) {
			t.Errorf("on %s there is %q", dir, at)
		}
		if !known[dir] {
			continue
		}
		if out, err := exec.Command("cat", filepath.Join(dir, "etc/motd")).CombinedOutput(); string(out) != "hello\n" {
			t.Errorf("%s: %q %v", dir, out, err)
		}
	}
	t.Logf("%d of %d mounts were completed", len(known)-1, len(dirs))
}

// TestSwitchedOff starts a node that keeps no mounts where one was that did.
func TestSwitchedOff(t *testing.T) {
	reg := startRegistry(t)
	n := newKeptNode(t)
	n.start(t)
	dir := n.mount(t, reg.push(t, smallImage(t, imagetest.Plain()), "small:1"))
	n.end(t, syscall.SIGKILL)
	n.flags = []string{"--keep-mounts", "nobody"}
	n.start(t)
	n.serves(t)
	eventually(t, "the mount ends", func() bool { return len(mountsAt(t, dir)) == 0 })
	eventually(t, "the keeper ends", func() bool { return n.keeper(t) == 0 })
}
