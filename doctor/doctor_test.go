package doctor

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// fakeRegistry answers as a test wants.
type fakeRegistry struct {
	replies []Reply
	err     error
}

func (r fakeRegistry) Ping(context.Context, string) ([]Reply, error) { return r.replies, r.err }
func (r fakeRegistry) Resolve(context.Context, string) error         { return r.err }

// worst returns the worst finding of a check.
func worst(list []Finding, check string) Finding {
	out := Finding{Level: OK}
	for _, f := range list {
		if f.Check == check && (f.Level == Fail || f.Level == Warn && out.Level == OK || out.Found == "") {
			out = f
		}
	}
	return out
}

// write writes a file of a test and returns its name.
func write(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// listening returns the address of a listener.
func listening(t *testing.T, network, addr string) string {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

// TestBroken breaks one thing after the other.
func TestBroken(t *testing.T) {
	now := time.Now()
	oldFile := write(t, "old.key", "k")
	if err := os.Chtimes(oldFile, now, now.Add(-2*oldKey)); err != nil {
		t.Fatal(err)
	}
	good := func(string) error { return nil }
	key := write(t, "good.key", "k")
	closed := "127.0.0.1:1"
	open := listening(t, "tcp", "127.0.0.1:0")
	reply := func(r Reply) fakeRegistry { return fakeRegistry{replies: []Reply{r}} }
	for _, row := range []struct {
		name, check string
		level       Level
		want        string
		cfg         Config
	}{
		{"old kernel", "kernel", Fail, "too old", Config{Release: "4.19.0-27-amd64"}},
		{"kernel without resend", "kernel", Warn, "under way", Config{Release: "6.1.0-18-amd64"}},
		{"kernel without mapped owners", "kernel", Warn, "owners", Config{Release: "6.9.1"}},
		{"new kernel", "kernel", OK, "6.18", Config{Release: "6.18.0"}},
		{"odd kernel", "kernel", Warn, "no version", Config{Release: "plan9"}},
		{"no FUSE", "fuse", Fail, "can't be opened", Config{FUSE: "/dev/nowhere"}},
		{"no overlayfs", "overlay", Fail, "no overlayfs", Config{Filesystems: write(t, "filesystems", "nodev\tproc\n")}},
		{"few descriptors", "descriptors", Fail, "512", Config{Descriptors: 512}},
		{"not many descriptors", "descriptors", Warn, "4096", Config{Descriptors: 4096}},
		{"enough descriptors", "descriptors", OK, "65536", Config{Descriptors: 65536}},
		{"descriptors of the node", "descriptors", OK, "the node can", Config{Node: Node{Running: true, PID: os.Getpid()}}},
		{"state in /proc", "disk", Warn, "left", Config{State: "/proc/nowhere"}},
		{"state in memory", "disk", Warn, "in memory", Config{State: "/dev/shm/graze-nowhere"}},
		{"large store", "disk", Warn, "store-limit", Config{State: "/", StoreLimit: 1 << 60}},
		{"no key", "key", Fail, "nowhere", Config{KeyFile: "/nowhere/key", CheckKey: good}},
		{"bad key", "key", Fail, "typing error", Config{KeyFile: key, CheckKey: func(string) error { return errors.New("typing error") }}},
		{"old key", "key", Warn, "days old", Config{KeyFile: oldFile, CheckKey: good}},
		{"no node", "node", Warn, "no node runs", Config{State: "/x"}},
		{"another program", "node", Warn, "another program", Config{Node: Node{Running: true, PID: os.Getpid(), Program: key}}},
		{"no peers", "peers", Warn, "no other node", Config{KeyFile: key, CheckKey: good}},
		{"one peer away", "peers", Warn, "p1 can't be reached", Config{KeyFile: key, CheckKey: good, Peers: []Peer{{Name: "p1", Addr: closed}, {Name: "p2", Addr: open}}}},
		{"all peers away", "peers", Fail, "none of 1", Config{KeyFile: key, CheckKey: good, Peers: []Peer{{Name: "p1", Addr: closed}}}},
		{"a lying peer", "peers", Fail, "wrong chunks", Config{KeyFile: key, CheckKey: good, Peers: []Peer{{Name: "p2", Addr: open, Corrupt: 3}}}},
		{"good peers", "peers", OK, "1 of 1", Config{KeyFile: key, CheckKey: good, Peers: []Peer{{Name: "p2", Addr: open}}}},
		{"no containerd", "containerd", Fail, "does not answer", Config{Containerd: "/nowhere.sock"}},
		{"no image service", "kubelet", Fail, "does not answer", Config{ImageProxy: "/nowhere.sock"}},
		{"bad hosts.toml", "registry", Fail, "line 3", Config{Registries: []string{"r"}, Registry: fakeRegistry{err: errors.New("hosts.toml: line 3")}}},
		{"no registry", "registry", Fail, "no host of registry r answers", Config{Registries: []string{"r"}, Registry: reply(Reply{Own: true, Err: errors.New("refused")})}},
		{"no mirror", "registry", Warn, "mirror m of r", Config{Registries: []string{"r"}, Registry: fakeRegistry{replies: []Reply{{Host: "m", Err: errors.New("refused")}, {Own: true}}}}},
		{"slow clock", "registry", Warn, "clocks differ by 1m0s", Config{Registries: []string{"r"}, Registry: reply(Reply{Own: true, Date: now, Sent: now.Add(-time.Minute)})}},
		{"wrong clock", "registry", Fail, "clocks differ", Config{Registries: []string{"r"}, Registry: reply(Reply{Own: true, Date: now, Sent: now.Add(time.Hour)})}},
		{"good registry", "registry", OK, "registry r answers", Config{Registries: []string{"r"}, Registry: reply(Reply{Own: true, Date: now, Sent: now})}},
		{"no credentials", "image", Fail, "401", Config{Images: []string{"i"}, Registry: fakeRegistry{err: errors.New("status 401")}}},
		{"no image", "image", Fail, "404", Config{Images: []string{"i"}, Registry: fakeRegistry{err: errors.New("status 404")}}},
		{"good image", "image", OK, "can be pulled", Config{Images: []string{"i"}, Registry: fakeRegistry{}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := worst(Examine(t.Context(), row.cfg), row.check)
			if got.Level != row.level || !strings.Contains(got.Found, row.want) {
				t.Errorf("%+v, want %s with %q", got, row.level, row.want)
			}
			if got.Level == Fail && got.Do == "" {
				t.Errorf("%+v does not say what to do", got)
			}
		})
	}
}

// TestOverlay makes the real check, where that is possible.
func TestOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("mounting needs FUSE: ", err)
	}
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if got := worst(Examine(t.Context(), Config{}), "overlay"); got.Level != OK {
		t.Errorf("%+v", got)
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Count(string(after), "graze-doctor") != strings.Count(string(before), "graze-doctor") {
		t.Errorf("a mount stays: %v", err)
	}
}

// A fakeContainerd answers what the doctor asks.
type fakeContainerd struct {
	versionapi.UnimplementedVersionServer
	introspectionapi.UnimplementedIntrospectionServer
	plugins []*introspectionapi.Plugin
}

func (c *fakeContainerd) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: "9.9"}, nil
}

func (c *fakeContainerd) Plugins(context.Context, *introspectionapi.PluginsRequest) (*introspectionapi.PluginsResponse, error) {
	return &introspectionapi.PluginsResponse{Plugins: c.plugins}, nil
}

// serve answers on a socket, whose name it returns.
func (c *fakeContainerd) serve(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	versionapi.RegisterVersionServer(srv, c)
	introspectionapi.RegisterIntrospectionServer(srv, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(ln)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return socket
}

func TestPlugins(t *testing.T) {
	ours := filepath.Join(t.TempDir(), "graze.sock")
	listening(t, "unix", ours)
	plugin := func(address string, err *rpcstatus.Status) *introspectionapi.Plugin {
		return &introspectionapi.Plugin{Type: "io.containerd.snapshotter.v1", ID: "graze", Exports: map[string]string{"address": address}, InitErr: err}
	}
	for _, row := range []struct {
		name    string
		plugins []*introspectionapi.Plugin
		socket  string
		level   Level
		want    string
	}{
		{"not there", nil, ours, Fail, "knows no snapshotter"},
		{"broken", []*introspectionapi.Plugin{plugin(ours, &rpcstatus.Status{Code: 2, Message: "bad address"})}, ours, Fail, "bad address"},
		{"another socket", []*introspectionapi.Plugin{plugin("/run/other.sock", nil)}, ours, Fail, "/run/other.sock"},
		{"the node is away", []*introspectionapi.Plugin{plugin("/nowhere.sock", nil)}, "/nowhere.sock", Fail, "does not answer"},
		{"no socket is set", []*introspectionapi.Plugin{plugin("", nil)}, "", Fail, "name no socket"},
		// The process that listens is this test, which has no configuration.
		{"good", []*introspectionapi.Plugin{plugin(ours, nil)}, ours, Warn, "can't be looked at"},
	} {
		c := &fakeContainerd{plugins: row.plugins}
		got := worst(Examine(t.Context(), Config{Containerd: c.serve(t), Snapshotter: row.socket}), "containerd")
		if got.Level != row.level || !strings.Contains(got.Found, row.want) {
			t.Errorf("%s: %+v, want %s with %q", row.name, got, row.level, row.want)
		}
	}
}

func TestJudgeConfiguration(t *testing.T) {
	const transfer = "[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\nsnapshotter = 'graze'\n" +
		"[proxy_plugins.graze.exports]\nenable_remote_snapshot_annotations = 'true'\n"
	for _, row := range []struct {
		name, text string
		level      Level
		want       string
	}{
		{"1.6, another snapshotter", "[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'overlayfs'\n", Fail, "overlayfs"},
		{"1.6, no annotations", "[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'graze'\ndisable_snapshot_annotations = true\n", Fail, "disable_snapshot_annotations"},
		{"1.6, good", "[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'graze'\ndisable_snapshot_annotations = false\n", OK, ""},
		{"2, another snapshotter", "[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'overlayfs'\n" + transfer, Fail, "overlayfs"},
		{"2, transfer service", "[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'graze'\n", Warn, "transfer service"},
		{"2, good", "[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'graze'\n" + transfer, OK, ""},
		{"no TOML", "=", Warn, "can't be read"},
	} {
		list := judgeConfiguration([]byte(row.text))
		for i := range list {
			list[i].Check = "c"
		}
		if got := worst(list, "c"); got.Level != row.level || !strings.Contains(got.Found, row.want) {
			t.Errorf("%s: %+v, want %s with %q", row.name, list, row.level, row.want)
		}
	}
}

func TestImageDisk(t *testing.T) {
	const exports = "[proxy_plugins.graze.exports]\nroot = '/state/containerd'\n"
	for _, row := range []struct{ name, text, want string }{
		{"1.6, another snapshotter", "root = '/c'\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'overlayfs'\n" + exports, ""},
		{"1.6", "root = '/c'\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'graze'\n" + exports, "/c/io.containerd.snapshotter.v1.graze"},
		{"2", "root = '/c'\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'graze'\n" + exports, "/state/containerd"},
		{"2, not told", "root = '/c'\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'graze'\n", "/c/io.containerd.snapshotter.v1.graze"},
	} {
		if got := imageDisk([]byte(row.text)); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

// TestRealContainerd looks at a containerd that knows nothing of graze, whose
// configuration then changes.
func TestRealContainerd(t *testing.T) {
	program, err := exec.LookPath("containerd")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("containerd is not installed, or this is not root")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "config.toml")
	text := "version = 2\nroot = '" + dir + "/root'\nstate = '" + dir + "/state'\n[grpc]\naddress = '" + dir + "/sock'\n[plugins.'io.containerd.internal.v1.opt']\npath = '" + dir + "/opt'\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(config, time.Now(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-c", config)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // it was asked to end
	})
	find := func(want string) Finding {
		for _, f := range checkContainerd(t.Context(), &Config{Containerd: dir + "/sock", Snapshotter: dir + "/sock"}) {
			if strings.Contains(f.Found, want) {
				return f
			}
		}
		return Finding{}
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); find(" answers").Level != OK; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("containerd does not answer")
		}
	}
	if got := find("knows no snapshotter"); got.Level != Fail {
		t.Errorf("no plug-in: %+v", got)
	}
	if got := find(`unpacked by "overlayfs"`); got.Level != Fail {
		t.Errorf("another snapshotter: %+v", got)
	}
	if got := find("has changed since"); got.Level != "" {
		t.Errorf("an old configuration: %+v", got)
	}
	if err := os.Chtimes(config, time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := find("has changed since"); got.Level != Warn {
		t.Errorf("a new configuration: %+v", got)
	}
}
