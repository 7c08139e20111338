package fusefs

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// keptTree is the tree of the servers that take a mount over from each other.
// Those of its reads that are held wait until their process ends.
func keptTree(held bool) *memTree {
	tree := newTree()
	for _, name := range []string{"/file", "/other", "/third"} {
		tree.file(name, 0o644, pattern(8192))
	}
	if held {
		hold(tree)
	}
	return tree
}

// A handover is what a server gives away of itself.
type handover struct {
	Session Session
	device  *os.File
}

// serveKept mounts keptTree on args[0], sends what another needs to take over
// through descriptor 3, and serves. On SIGTERM it leaves the mount.
func serveKept(args []string) error {
	tree := keptTree(args[1] == "held")
	s, err := Mount(args[0], tree, tree, Config{Source: testSource})
	if err != nil {
		return err
	}
	session, err := s.Session()
	if err != nil {
		return err
	}
	text, err := json.Marshal(session)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(3, text, unix.UnixRights(int(s.Device().Fd())), nil, 0); err != nil {
		return err
	}
	ctx, leave := context.WithCancelCause(context.Background())
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM)
	go func() {
		<-end
		leave(ErrLeave)
	}()
	return s.Run(ctx)
}

// serveResumed goes on with the mount whose session is args[0] and whose device is
// descriptor 3. On SIGTERM it takes the mount away and prints its counts.
func serveResumed(args []string) error {
	var session Session
	if err := json.Unmarshal([]byte(args[0]), &session); err != nil {
		return err
	}
	tree := keptTree(args[1] == "held")
	device := os.NewFile(3, "/dev/fuse")
	s, err := Resume(device, session, tree, tree, Config{})
	if err != nil {
		return err
	}
	device.Close()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	go func() {
		<-s.Ready()
		fmt.Println("serving")
	}()
	err = s.Run(ctx)
	fmt.Printf("interrupted %d failed %d\n", s.Stats().Interrupted, s.Stats().Failed)
	return err
}

// startKept starts a server in another process, and receives its mount.
func startKept(t *testing.T, dir, how string) (*child, handover) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer ours.Close()
	c := helper("kept", dir, how)
	c.ExtraFiles = []*os.File{theirs}
	c.start(t)
	theirs.Close()
	t.Cleanup(func() {
		c.Process.Kill()
		Abort(dir) // whatever is left
	})
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(text, oob)
	if err != nil || n == 0 {
		t.Fatalf("the server sent nothing: %v: %s", err, &c.out)
	}
	var h handover
	if err := json.Unmarshal(text[:n], &h.Session); err != nil {
		t.Fatal(err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		t.Fatal(msgs, err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		t.Fatal(fds, err)
	}
	h.device = os.NewFile(uintptr(fds[0]), "/dev/fuse")
	t.Cleanup(func() { h.device.Close() })
	return c, h
}

// resume starts a server that goes on with the mount.
func (h *handover) resume(t *testing.T, how string) *child {
	t.Helper()
	text, err := json.Marshal(h.Session)
	if err != nil {
		t.Fatal(err)
	}
	c := helper("resumed", string(text), how)
	c.ExtraFiles = []*os.File{h.device}
	c.Stdout = nil
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.start(t)
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "serving" {
		t.Fatalf("the second server does not serve: %v: %s", c.Wait(), &c.out)
	}
	return c
}

// blocked waits until a process waits for the server of a mount.
func blocked(t *testing.T, c *child) {
	t.Helper()
	waitFor(t, "a process to wait for the mount", func() bool {
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.Process.Pid))
		for _, task := range tasks {
			stack, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stack", c.Process.Pid, task.Name()))
			if strings.Contains(string(stack), "fuse_") || strings.Contains(string(stack), "filemap_") || strings.Contains(string(stack), "folio_wait") {
				return true
			}
		}
		return false
	})
}

// TestResume lets a server end while its users wait for it: those that it was
// asked by, and those that ask when it is gone. None of them sees it.
func TestResume(t *testing.T) {
	needFUSE(t)
	for how, end := range map[string]unix.Signal{"killed": unix.SIGKILL, "left": unix.SIGTERM} {
		t.Run(how, func(t *testing.T) {
			dir := openDir(t)
			first, h := startKept(t, dir, "held")
			users := []*child{helper("read", dir+"/file"), helper("mmap", dir+"/other")}
			for _, c := range users {
				c.start(t)
				blocked(t, c)
			}
			if err := first.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			if err := first.Wait(); err != nil && end == unix.SIGTERM {
				t.Errorf("%v: %s", err, &first.out)
			}
			users = append(users, helper("read", dir+"/third"))
			users[2].start(t)
			blocked(t, users[2])
			second := h.resume(t, "open")
			want := fmt.Sprintf("%x", sha256.Sum256(pattern(8192)))
			for _, c := range users {
				if err := c.Wait(); err != nil || c.out.String() != want {
					t.Errorf("%v: %v: %s", c.Args, err, &c.out)
				}
			}
			if err := second.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := second.Wait(); err != nil {
				t.Errorf("%v: %s", err, &second.out)
			}
			if at, err := topMount(dir); at != nil || err != nil {
				t.Errorf("%v is mounted (%v)", at, err)
			}
			if !ended(int(h.device.Fd())) {
				t.Error("the connection has not ended")
			}
		})
	}
}

// TestResumeInterrupted kills a process whose read was sent again.
func TestResumeInterrupted(t *testing.T) {
	needFUSE(t)
	dir := openDir(t)
	first, h := startKept(t, dir, "held")
	before, after := helper("direct", dir+"/file"), helper("direct", dir+"/other")
	for _, c := range []*child{before, after} {
		c.start(t)
		blocked(t, c)
	}
	first.Process.Kill()
	first.Wait()
	before.Process.Kill() // can't end: its request has been read
	h.resume(t, "held")
	after.Process.Kill()
	for _, c := range []*child{before, after} {
		if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("the process ended with %v: %s", err, &c.out)
		}
	}
}

// TestResumeEnded goes on with a mount that nobody uses any more.
func TestResumeEnded(t *testing.T) {
	needFUSE(t)
	dir := openDir(t)
	first, h := startKept(t, dir, "open")
	first.Process.Kill()
	first.Wait()
	if err := Unmount(dir, false); err != nil {
		t.Fatal(err)
	}
	tree := keptTree(false)
	if _, err := Resume(h.device, h.Session, tree, tree, Config{}); !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), dir) {
		t.Errorf("resume: %v", err)
	}
}

// TestAbortUnserved takes a mount away that has users and no server.
func TestAbortUnserved(t *testing.T) {
	needFUSE(t)
	dir := openDir(t)
	first, _ := startKept(t, dir, "held")
	user := helper("read", dir+"/file")
	user.start(t)
	blocked(t, user)
	first.Process.Kill()
	first.Wait()
	if err := Unmount(dir, false); !errors.Is(err, ErrBusy) {
		t.Errorf("unmount of what is in use: %v", err)
	}
	if err := Abort(dir); err != nil {
		t.Error(err)
	}
	if err := user.Wait(); err == nil {
		t.Errorf("the process read what was not there: %s", &user.out)
	}
	if err := Abort(dir); !errors.Is(err, ErrNotMounted) {
		t.Errorf("where nothing is: %v", err)
	}
}

// initRequest is an INIT request as a kernel sends it.
func initRequest(flags uint64) []byte {
	p := make([]byte, inLen+44)
	order.PutUint32(p, uint32(len(p)))
	order.PutUint32(p[4:], 26) // FUSE_INIT
	order.PutUint64(p[8:], 2)
	order.PutUint32(p[inMinor-4:], 7)
	order.PutUint32(p[inMinor:], 45)
	order.PutUint32(p[inFlags:], uint32(flags))
	order.PutUint32(p[inFlags2:], uint32(flags>>32))
	return p
}

// TestSameAgreement: what a server agreed to, the next one agrees to, whatever
// it would have agreed to by itself.
func TestSameAgreement(t *testing.T) {
	fsys := newFilesystem(nil, nil, Trace{})
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(o *fuse.MountOptions){
		"the same":      func(*fuse.MountOptions) {},
		"less":          func(o *fuse.MountOptions) { o.EnableAcl, o.DisableReadDirPlus, o.MaxWrite = false, true, 64<<10 },
		"more":          func(o *fuse.MountOptions) { o.EnableLocks, o.ExtraCapabilities = true, fuse.CAP_ATOMIC_O_TRUNC },
		"other caching": func(o *fuse.MountOptions) { o.ExplicitDataCacheControl = false },
	} {
		t.Run(name, func(t *testing.T) {
			options := mountOptions(fsys, cfg)
			change(options)
			s := Session{Version: sessionVersion, Request: initRequest(^uint64(0))}
			var err error
			if _, s.Reply, err = newServer(fsys, options, s.Request); err != nil {
				t.Fatal(err)
			}
			if err := s.check(); err != nil {
				t.Error(err)
			}
			_, reply, err := newServer(fsys, resumeOptions(fsys, cfg, s.agreed()), s.again())
			if err != nil {
				t.Fatal(err)
			}
			if got, want := agreedIn(reply), s.agreed(); got != want {
				t.Errorf("agreed to %+v, not %+v", got, want)
			}
		})
	}
}

// TestSessionCheck has sessions that no server can go on from.
func TestSessionCheck(t *testing.T) {
	good := Session{Version: sessionVersion, Request: initRequest(^uint64(0)), Reply: make([]byte, outLen)}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	version, request, reply, flag := good, good, good, good
	version.Version++
	request.Request = good.Request[:inLen-1]
	reply.Reply = good.Reply[:outLen-1]
	flag.Request = initRequest(^uint64(fuse.CAP_HAS_RESEND))
	if err := version.check(); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("another version: %v", err)
	}
	for name, s := range map[string]Session{"short request": request, "short reply": reply, "old kernel": flag, "none": {Version: sessionVersion}} {
		if err := s.check(); !errors.Is(err, ErrNoResume) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
