package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A containerd is a running containerd with state of its own.
type containerd struct {
	dir string
}

// withCRI is a part of containerd's configuration that makes CRI work here.
const withCRI = `disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
`

// startContainerd starts containerd, which ends with the test. Without further
// configuration it has no CRI.
func startContainerd(t testing.TB, config ...string) *containerd {
	t.Helper()
	needTools(t, "containerd", "ctr")
	c := &containerd{dir: t.TempDir()}
	if len(config) == 0 {
		config = []string{`disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]`}
	}
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\n%s\n[grpc]\naddress = %q\n",
		c.dir+"/root", c.dir+"/state", strings.Join(config, "\n"), c.dir+"/sock")
	path := filepath.Join(c.dir, "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command("containerd", "--config", path)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := <-exited; err != nil {
			t.Errorf("containerd: %v\n%s", err, &log)
		}
	})
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if exec.Command("ctr", "--address", c.dir+"/sock", "version").Run() == nil {
			tick.Stop()
			return c
		}
		select {
		case err := <-exited:
			exited <- err
			t.Fatalf("containerd ended: %v\n%s", err, &log)
		case <-t.Context().Done():
			t.Fatal("containerd does not answer")
		case <-tick.C:
		}
	}
}

// ctr runs a command of containerd's client.
func (c *containerd) ctr(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("ctr", append([]string{"--address", c.dir + "/sock"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// pull pulls an image, unpacks it with the overlayfs snapshotter, and mounts it
// until the end of the test. It returns the folder of the mount.
func (c *containerd) pull(t testing.TB, ref string) string {
	t.Helper()
	c.ctr(t, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
	dir := t.TempDir()
	c.ctr(t, "image", "mount", "--snapshotter", "overlayfs", ref, dir)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error("unmount containerd's image: ", err)
		}
	})
	return dir
}
