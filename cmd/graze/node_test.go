package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"graze/image/imagetest"
	"graze/node"
)

// A testNode is a running 'graze node'.
type testNode struct {
	state  string
	addr   string // ip:port of its gossip
	cmd    *exec.Cmd
	exited chan error
	stderr *bytes.Buffer // to be read once exited has answered
}

// freePort returns a port that is free for TCP and UDP on an address.
func freePort(t testing.TB, ip string) string {
	t.Helper()
	for range 100 {
		tcp, err := net.Listen("tcp", ip+":0")
		if err != nil {
			t.Fatal(err)
		}
		addr := tcp.Addr().String()
		udp, err := net.ListenPacket("udp", addr)
		tcp.Close()
		if err == nil {
			udp.Close()
			return addr
		}
	}
	t.Fatal("no port is free for TCP and UDP")
	return ""
}

// startNode runs 'graze node' in a process of its own until the end of the test.
func startNode(t testing.TB, key, name, rack string, join []string, flags ...string) *testNode {
	t.Helper()
	return startNodeWith(t, "", key, name, rack, join, flags...)
}

// startNodeWith is startNode with more tables of settings.
func startNodeWith(t testing.TB, tables, key, name, rack string, join []string, flags ...string) *testNode {
	t.Helper()
	n := &testNode{state: t.TempDir(), addr: freePort(t, "127.0.0.1"), exited: make(chan error, 1), stderr: new(bytes.Buffer)}
	config := filepath.Join(t.TempDir(), "node.toml")
	text := fmt.Sprintf("state = %q\nkeep-mounts = \"nobody\"\n[cluster]\nname = %q\nlisten = %q\ngossip = %q\np2p = %q\n",
		n.state, name, freePort(t, "127.0.0.1"), n.addr, freePort(t, "127.0.0.1"))
	if err := os.WriteFile(config, []byte(text+tables), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"node", "--config", config, "--key", key, "--rack", rack}, flags...)
	for _, addr := range join {
		args = append(args, "--join", addr)
	}
	n.cmd = exec.Command(os.Args[0], args...)
	n.cmd.Env = append(os.Environ(), runEnv+"=1")
	n.cmd.Stderr = n.stderr
	stdout, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1)
	go func() {
		r := bufio.NewReader(stdout)
		line, _ := r.ReadString('\n')
		lines <- line
		_, _ = io.Copy(io.Discard, r)
		n.exited <- n.cmd.Wait()
		close(n.exited)
	}()
	t.Cleanup(func() {
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
		if err := <-n.exited; err != nil {
			t.Errorf("graze node: %v\n%s", err, n.stderr)
		}
	})
	if line := <-lines; !strings.Contains(line, "answering") {
		t.Fatalf("graze node: %v\n%s", <-n.exited, n.stderr)
	}
	return n
}

// members waits until the node has found so many members, itself among them.
func (n *testNode) members(t testing.TB, want int) []node.PeerInfo {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var list []node.PeerInfo
		if err := json.Unmarshal([]byte(graze(t, "peers", "--state", n.state, "--json")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list) == want {
			return list
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("%d members were found, not %d", len(list), want)
		}
	}
}

// stats returns the node's figures.
func (n *testNode) stats(t testing.TB) (s node.Stats) {
	t.Helper()
	if err := json.Unmarshal([]byte(graze(t, "stats", "--state", n.state, "--json")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// mount mounts an image on the node until the end of the test.
func (n *testNode) mount(t testing.TB, ref string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	graze(t, append([]string{"mount", "--node", node.Socket(n.state), ref, dir}, flags...)...)
	t.Cleanup(func() {
		if isMounted(dir) {
			graze(t, "umount", dir)
		}
	})
	return dir
}

// TestNodeAlone mounts two images on one node, which has no cluster.
func TestNodeAlone(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	n := startNode(t, "", "alone", "", nil)
	first := n.mount(t, reg.push(t, smallImage(t, imagetest.Gzip(6)), "first:1"))
	second := n.mount(t, reg.push(t, smallImage(t, imagetest.Plain()), "second:1"))
	for _, dir := range []string{first, second} {
		p, err := os.ReadFile(filepath.Join(dir, "big/random"))
		if err != nil || !bytes.Equal(p, imagetest.Random(1, 5<<20)) {
			t.Errorf("%s has other bytes than the image: %v", dir, err)
		}
	}
	if out := graze(t, "ps", "--state", n.state); !strings.Contains(out, first) || !strings.Contains(out, second) || !strings.Contains(out, "made here") {
		t.Errorf("ps prints\n%s", out)
	}
	graze(t, "umount", first)
	if s := n.stats(t); len(s.Mounts) != 1 {
		t.Errorf("after an unmount the node has %d mounts", len(s.Mounts))
	}
	if out, code := grazeCode(t, "seed", "ls", "--state", n.state); code != 1 || !strings.Contains(out, "no seed") {
		t.Errorf("seed ls: exit code %d\n%s", code, out)
	}
	if out, code := grazeCode(t, "mount", "--node", node.Socket(n.state), "--index", "require", reg.push(t, smallImage(t, imagetest.Zstd()), "third:1"), t.TempDir()); code != 1 || !strings.Contains(out, "graze index --push") {
		t.Errorf("mount of an image without index: exit code %d\n%s", code, out)
	}
}

// TestCluster starts an image on three nodes at once: the registry gives each
// layer about once. Then it preheats and seeds another image.
func TestCluster(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	ref := reg.push(t, img, "small:1")
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	key := filepath.Join(t.TempDir(), "key")
	graze(t, "key", "new", key)
	seed := startNode(t, key, "seed", "a", nil, "--seed")
	nodes := []*testNode{seed, startNode(t, key, "one", "a", []string{seed.addr}), startNode(t, key, "two", "b", []string{seed.addr})}
	for _, n := range nodes {
		n.members(t, len(nodes))
	}

	before := reg.blobBytes(t)
	var dirs []string
	for _, n := range nodes {
		dirs = append(dirs, n.mount(t, ref, "--index", "require"))
	}
	sums := make(chan error, len(dirs))
	for _, dir := range dirs {
		go func() {
			p, err := os.ReadFile(filepath.Join(dir, "big/random"))
			if err == nil && !bytes.Equal(p, imagetest.Random(1, 5<<20)) {
				err = fmt.Errorf("%s has other bytes than the image", dir)
			}
			sums <- err
		}()
	}
	for range dirs {
		if err := <-sums; err != nil {
			t.Error(err)
		}
	}
	total := int64(0)
	for _, l := range img.Layers {
		total += l.Size
	}
	if got := reg.blobBytes(t).Bytes - before.Bytes; got > total*11/10 {
		t.Errorf("the registry gave %d bytes to %d nodes, for layers of %d", got, len(nodes), total)
	}
	peers := int64(0)
	for _, n := range nodes {
		for _, src := range n.stats(t).Sources {
			if src.Kind == node.PeersSource {
				peers += src.Bytes
			}
		}
	}
	if peers < 5<<20 {
		t.Errorf("%d bytes came from peers", peers)
	}

	t.Run("preheat", func(t *testing.T) {
		other := reg.push(t, smallImage(t, imagetest.MultiMemberGzip(1<<20)), "other:1")
		graze(t, "index", "--state", t.TempDir(), "--push", other)
		out := graze(t, "preheat", "--state", nodes[1].state, other)
		if strings.Count(out, "has its") != len(nodes) {
			t.Errorf("preheat prints\n%s", out)
		}
		before := reg.blobBytes(t)
		dir := nodes[2].mount(t, other, "--index", "require")
		if _, err := os.ReadFile(filepath.Join(dir, "big/random")); err != nil {
			t.Error(err)
		}
		if got := reg.blobBytes(t).Bytes - before.Bytes; got > 64<<10 {
			t.Errorf("after the preheat the registry gave %d bytes", got)
		}
	})

	t.Run("seed", func(t *testing.T) {
		third := reg.push(t, smallImage(t, imagetest.Plain()), "third:1")
		graze(t, "index", "--state", t.TempDir(), "--push", third)
		out := graze(t, "seed", "add", "--state", seed.state, third)
		if !strings.Contains(out, "@sha256:") {
			t.Errorf("seed add prints %q", out)
		}
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for !strings.Contains(graze(t, "seed", "ls", "--state", seed.state), "third@sha256:") ||
			strings.Count(graze(t, "seed", "ls", "--state", seed.state), "100 %") < 2 {
			select { // the first image was mounted in the seed's rack, the third added
			case <-tick.C:
			case <-t.Context().Done():
				t.Fatal("the seed does not complete its images")
			}
		}
		graze(t, "seed", "rm", "--state", seed.state, third)
		if out := graze(t, "seed", "ls", "--state", seed.state); strings.Contains(out, "third") {
			t.Errorf("after seed rm, seed ls prints\n%s", out)
		}
	})

	t.Run("stranger", func(t *testing.T) {
		other := filepath.Join(t.TempDir(), "key")
		graze(t, "key", "new", other)
		stranger := startNode(t, other, "stranger", "a", []string{seed.addr})
		if list := stranger.members(t, 1); !list[0].Self {
			t.Errorf("a node with another key sees %+v", list)
		}
		if list := seed.members(t, len(nodes)); len(list) != len(nodes) {
			t.Errorf("the seed sees %d members", len(list))
		}
	})
}

// TestClusterIndex starts an image that has no index on three nodes at once. One of
// them makes the index of each layer, and the others say who did.
func TestClusterIndex(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	ref := reg.push(t, img, "small:1")
	key := filepath.Join(t.TempDir(), "key")
	graze(t, "key", "new", key)
	var nodes []*testNode
	var join []string
	for _, name := range []string{"one", "two", "three"} {
		n := startNode(t, key, name, "a", join)
		nodes, join = append(nodes, n), []string{n.addr}
	}
	for _, n := range nodes {
		n.members(t, len(nodes))
	}
	before := reg.blobBytes(t)
	errs := make(chan error, len(nodes))
	for _, n := range nodes {
		dir := n.mount(t, ref, "--index", "build")
		go func() {
			p, err := os.ReadFile(filepath.Join(dir, "big/random"))
			if err == nil && !bytes.Equal(p, imagetest.Random(1, 5<<20)) {
				err = fmt.Errorf("%s has other bytes than the image", dir)
			}
			errs <- err
		}()
	}
	for range nodes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	here, members := 0, 0
	for _, n := range nodes {
		for _, l := range n.stats(t).Mounts[0].Layers {
			switch {
			case l.Index == "made here":
				here++
			case strings.HasPrefix(l.Index, "made by node "):
				members++
			default:
				t.Errorf("a layer's index is said to be %q", l.Index)
			}
		}
	}
	if layers := len(img.Layers); here != layers || members != 2*layers {
		t.Errorf("of %d layers on 3 nodes, %d indexes were made there and %d came from others", layers, here, members)
	}
	total := int64(0)
	for _, l := range img.Layers {
		total += l.Size
	}
	// Once to make the index, and once more for those who ask the chunks' own homes.
	if got := reg.blobBytes(t).Bytes - before.Bytes; got > total*21/10 {
		t.Errorf("the registry gave %d bytes, for layers of %d", got, total)
	}
}

// TestKeyFile: the folder of a key is made, a key is not written over, and one that
// others can read is refused.
func TestKeyFile(t *testing.T) {
	key := filepath.Join(t.TempDir(), "graze", "key")
	graze(t, "key", "new", key)
	if out, code := grazeCode(t, "key", "new", key); code != 1 || !strings.Contains(out, "there already") {
		t.Errorf("over a key that is there: exit code %d\n%s", code, out)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, code := grazeCode(t, "node", "--state", t.TempDir(), "--key", key); code != 1 || !strings.Contains(out, key) {
		t.Errorf("with a key that all can read: exit code %d\n%s", code, out)
	}
	if a, b := graze(t, "key", "new"), graze(t, "key", "new"); a == b {
		t.Error("two keys are the same")
	}
}

// TestGossipPortTaken: a node that can't be a member ends and says why, once.
func TestGossipPortTaken(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "node.toml")
	text := fmt.Sprintf("keep-mounts = \"nobody\"\nstate = %q\n[cluster]\nlisten = \"127.0.0.1:0\"\np2p = \"127.0.0.1:0\"\nadvertise = \"127.0.0.1\"\ngossip = %q\nkey-file = %q\n",
		filepath.Join(dir, "state"), taken.Addr(), filepath.Join(dir, "key"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	graze(t, "key", "new", filepath.Join(dir, "key"))
	if out, code := grazeCode(t, "node", "--config", file); code != 1 || strings.Count(out, "address already in use") != 1 {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// TestPrintConfig: what --print-config prints is all there is, and is read back as
// the same settings.
func TestPrintConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.toml")
	text := graze(t, "node", "--print-config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readNodeFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := defaultNodeFile(); !reflect.DeepEqual(got, want) {
		t.Errorf("the defaults are read back as %+v, want %+v", got, want)
	}
	out := graze(t, "node", "--config", file, "--rack", "a3", "--join", "x:1", "--join", "y:2", "--seed", "--state", "/elsewhere", "--print-config")
	for _, want := range []string{`rack = "a3"`, `join = ["x:1", "y:2"]`, `seed = true`, `state = "/elsewhere"`, `encrypt = true`} {
		if !strings.Contains(out, want) {
			t.Errorf("with flags, --print-config prints no %q:\n%s", want, out)
		}
	}
	if err := os.WriteFile(file, []byte("[cluster]\nrak = \"a3\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := grazeCode(t, "node", "--config", file); code != 1 || !strings.Contains(out, "unknown setting cluster.rak") {
		t.Errorf("with a mistyped setting: exit code %d\n%s", code, out)
	}
}
