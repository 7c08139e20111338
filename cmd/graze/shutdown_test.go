package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"graze/chaos"
	"graze/image/imagetest"
)

// TestShutdown ends a node while readers, and 50 calls of containerd, wait for a
// registry that does not answer. The node must have ended after ten seconds. Readers
// wait for the next node if their mount is kept, else they get an error.
func TestShutdown(t *testing.T) {
	for _, keep := range []string{keepKeeper, keepNobody} {
		t.Run(keep, func(t *testing.T) {
			gate, err := chaos.NewGate("127.0.0.1:0", func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) })
			if err != nil {
				t.Fatal(err)
			}
			reg := startRegistryOn(t, gate)
			ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
			graze(t, "index", "--state", t.TempDir(), "--push", ref)
			n := newKeptNode(t)
			config, socket := filepath.Join(n.state, "node.toml"), filepath.Join(n.state, "snapshots.sock")
			if err := os.WriteFile(config, fmt.Appendf(nil, "[containerd]\nsocket = %q\n", socket), 0o600); err != nil {
				t.Fatal(err)
			}
			n.flags = []string{"--keep-mounts", keep, "--config", config}
			n.start(t)
			dir := n.mount(t, ref, "--index", "require")
			if err := gate.Set(chaos.Swallow); err != nil {
				t.Fatal(err)
			}
			read := startReaders(t, filepath.Join(dir, "big/random"), 8)
			before := gate.Attempts()
			asked := prepareMany(t, socket, reg.addr, 50)
			eventually(t, "the node asks for the images", func() bool { return gate.Attempts() > before })

			endWithin(t, n, 10*time.Second)
			for range 50 {
				if err := <-asked; err == nil || strings.Contains(err.Error(), "already exists") {
					t.Errorf("a layer is served that nobody has: %v", err)
				}
			}
			if err := gate.Set(chaos.Open); err != nil {
				t.Fatal(err)
			}
			n.start(t)
			for range 8 {
				if err := <-read; (err == nil) != (keep == keepKeeper) {
					t.Errorf("a reader ended with %v", err)
				}
			}
		})
	}
}

// startReaders starts processes that read a file, and returns when all of them wait.
// How they end is sent to the channel.
func startReaders(t *testing.T, file string, count int) <-chan error {
	t.Helper()
	ended := make(chan error, count)
	for i := range count {
		cmd := exec.Command("dd", "if="+file, "of=/dev/null", "bs=4k", fmt.Sprintf("skip=%d", 128*i))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		go func() { ended <- cmd.Wait() }()
		eventually(t, "the reader waits", func() bool {
			s, err := os.ReadFile(fmt.Sprintf("/proc/%d/stack", cmd.Process.Pid))
			return err == nil && (strings.Contains(string(s), "folio") || strings.Contains(string(s), "fuse") || strings.Contains(string(s), "filemap"))
		})
	}
	return ended
}

// prepareMany asks for a layer of each of many images, as containerd does. The
// answers are sent to the channel.
func prepareMany(t *testing.T, socket, registry string, count int) <-chan error {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s := proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "graze")
	ctx := namespaces.WithNamespace(context.Background(), "default")
	answers := make(chan error, count)
	for i := range count {
		labels := map[string]string{
			snapshots.LabelSnapshotRef:  fmt.Sprintf("sha256:%064d", i),
			snapshotters.TargetRefLabel: fmt.Sprintf("%s/app-%d:1", registry, i),
		}
		go func() {
			_, err := s.Prepare(ctx, fmt.Sprint("extract-", i), "", snapshots.WithLabels(labels))
			answers <- err
		}()
	}
	return answers
}

// endWithin ends a node, and fails if that takes longer than it may.
func endWithin(t *testing.T, n *keptNode, limit time.Duration) {
	t.Helper()
	start := time.Now()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-n.exited:
		n.cmd = nil
		t.Logf("the node has ended after %v", time.Since(start).Round(time.Millisecond))
		if err != nil {
			t.Errorf("graze node: %v\n%s", err, n.stderr)
		}
	case <-time.After(limit):
		t.Fatalf("the node still runs %v after it was told to end", limit)
	}
}
