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
	containerdConfig
	pid       int
	namespace string // of what is exported; "" for "default"
}

// A containerdConfig says which containerd is run, and how.
type containerdConfig struct {
	dir     string // of its state and its socket; "" for one of its own
	bin     string // folder of version 2; "" for the system's version 1
	graze   string // socket of graze as its snapshotter; "" for none
	silent  bool   // whether clients do not tell graze which image they pull
	hidden  bool   // whether graze is not told where containerd is
	cri     bool   // whether it answers kubelet
	sandbox string // image of CRI's sandboxes; "" for containerd's own choice

	// before is called with the name of the configuration, before the start.
	before func(config, socket string)
}

// snapshotter returns the name of the snapshotter for pods.
func (c containerdConfig) snapshotter() string {
	if c.graze == "" {
		return "overlayfs"
	}
	return "graze"
}

// program returns the file of one of containerd's programs.
func (c containerdConfig) program(name string) string {
	if c.bin == "" {
		return name
	}
	return filepath.Join(c.bin, name)
}

// startContainerd starts the system's containerd, which ends with the test.
func startContainerd(t testing.TB) *containerd {
	t.Helper()
	return startContainerdWith(t, containerdConfig{})
}

// startContainerdWith is startContainerd for any containerd.
func startContainerdWith(t testing.TB, cfg containerdConfig) *containerd {
	t.Helper()
	needTools(t, cfg.program("containerd"), cfg.program("ctr"))
	if cfg.dir == "" {
		cfg.dir = t.TempDir()
	}
	c := &containerd{containerdConfig: cfg}
	path := filepath.Join(c.dir, "config.toml")
	if err := os.WriteFile(path, []byte(c.settings()), 0o600); err != nil {
		t.Fatal(err)
	}
	if c.before != nil {
		c.before(path, c.socket())
	}
	var log bytes.Buffer
	cmd := exec.Command(c.program("containerd"), "--config", path)
	if c.bin != "" {
		// Each version has a shim of its own.
		cmd.Env = append(os.Environ(), "PATH="+c.bin+":"+os.Getenv("PATH"))
	}
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.pid = cmd.Process.Pid
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := <-exited; err != nil {
			t.Errorf("containerd: %v\n%s", err, &log)
		}
	})
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if _, err := c.try("version"); err == nil {
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

func (c *containerd) socket() string { return c.dir + "/sock" }

// settings returns containerd's configuration file.
func (c *containerd) settings() string {
	version, off := 2, `"io.containerd.grpc.v1.cri", `
	if c.bin != "" {
		version, off = 3, `"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", `
	}
	if c.cri {
		off = ""
	}
	text := fmt.Sprintf(`version = %[2]d
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = [%[3]s"io.containerd.internal.v1.opt"]
[grpc]
address = "%[1]s/sock"
`, c.dir, version, off)
	if c.graze != "" {
		text += fmt.Sprintf("[proxy_plugins.graze]\ntype = \"snapshot\"\naddress = %q\n", c.graze)
		if c.bin != "" {
			text += "capabilities = [\"remap-ids\"]\n"
		}
	}
	switch {
	case c.cri && c.bin == "":
		text += fmt.Sprintf(`[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
sandbox_image = %q
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = %q
disable_snapshot_annotations = false
`, c.sandbox, c.snapshotter())
	case c.cri:
		text += fmt.Sprintf(`[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.images"]
snapshotter = %q
disable_snapshot_annotations = false
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = %q
`, c.snapshotter(), c.sandbox)
	}
	if c.bin != "" && c.graze != "" {
		text += fmt.Sprintf(`[proxy_plugins.graze.exports]
enable_remote_snapshot_annotations = "%t"
`, !c.silent) + `[[plugins."io.containerd.transfer.v1.local".unpack_config]]
platform = "linux"
snapshotter = "graze"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
platform = "linux"
snapshotter = "overlayfs"
`
	}
	return text
}

// try runs a command of containerd's client that may fail. The error has what it
// said.
func (c *containerd) try(args ...string) (string, error) {
	cmd := exec.Command(c.program("ctr"), append([]string{"--address", c.socket()}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("ctr %s: %w\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// ctr runs a command of containerd's client.
func (c *containerd) ctr(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.try(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
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
