package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"graze/image/imagetest"
)

// pullBy has kubelet's client pull an image by another service of images than
// containerd's own.
func (c *containerd) pullBy(socket, ref string) (string, error) {
	cmd := exec.Command(filepath.Join(os.Getenv("GRAZE_CONTAINERD2"), "crictl"), "--config", os.DevNull, "--timeout", "60s",
		"--runtime-endpoint", "unix://"+c.socket(), "--image-endpoint", "unix://"+socket, "pull", ref)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("crictl pull %s: %w\n%s", ref, err, out)
	}
	return string(out), nil
}

// TestCRIOutage has a containerd start an image that it has never pulled, while the
// registry is dead: another node of the cluster has it.
func TestCRIOutage(t *testing.T) {
	containerds(t, func(t *testing.T, cfg containerdConfig) {
		needFUSE(t)
		needTools(t, "runc", filepath.Join(os.Getenv("GRAZE_CONTAINERD2"), "crictl"))
		key := filepath.Join(t.TempDir(), "key")
		graze(t, "key", "new", key)
		only := &rig{reg: startRegistry(t)}
		cfg.cri, cfg.sandbox = true, only.pause(t)
		const pulled = "policies = [\"*/pause pull\"]\n"
		sockets := t.TempDir()
		tables := func(node, policy string) string {
			return fmt.Sprintf("%s[cri]\nsocket = %q\noutage = %q\n", pulled, filepath.Join(sockets, node), policy)
		}
		first := only.join(t, cfg, tables("first", "deny"), key, nil)
		second := only.join(t, cfg, tables("second", "allow"), key, []string{first.node.addr})
		first.node.members(t, 2)
		second.node.members(t, 2)

		ref, _ := only.probeImage(t, "app", 1, imagetest.Gzip(6))
		pushMulti(t, only.reg.addr, "app")
		ref = strings.TrimSuffix(ref, "1") + "multi"
		socket := filepath.Join(sockets, "first")
		if _, err := first.ctd.pullBy(socket, ref); err != nil {
			t.Fatal(err)
		}
		want, wantCode := first.ctd.startPod(t, "first").run(t, ref, "app", "/probe") // which reads all
		pod := second.ctd.startPod(t, "second")
		only.reg.stop()

		socket = filepath.Join(sockets, "second")
		if _, err := second.ctd.pullBy(second.ctd.socket(), ref); err == nil {
			t.Fatal("containerd itself has pulled the image without its registry")
		}
		if _, err := second.ctd.pullBy(socket, ref); err != nil {
			t.Fatalf("%v\n%s", err, second.node.stderr)
		}
		got, code := pod.run(t, ref, "app", "/probe")
		if got != want || code != wantCode || !strings.Contains(want, "bulk/random") {
			t.Errorf("without the registry the container ends with %d and prints\n%s\nand before with %d\n%s", code, got, wantCode, want)
		}
		if got := second.reason(t, ref); !slices.Equal(got, []string{"lazy"}) {
			t.Errorf("the image is served for %q", got)
		}
		var status, before struct {
			Status struct {
				ID          string   `json:"id"`
				RepoTags    []string `json:"repoTags"`
				RepoDigests []string `json:"repoDigests"`
			} `json:"status"`
		}
		for c, to := range map[*containerd]any{first.ctd: &before, second.ctd: &status} {
			if err := json.Unmarshal([]byte(c.crictl(t, "inspecti", ref)), to); err != nil {
				t.Fatal(err)
			}
		}
		if fmt.Sprint(status) != fmt.Sprint(before) || len(status.Status.RepoTags) != 1 || len(status.Status.RepoDigests) != 1 {
			t.Errorf("CRI shows %v, and of the pull from the registry %v", status, before)
		}
		if _, err := second.ctd.pullBy(socket, ref); err != nil {
			t.Errorf("again: %v", err)
		}
		second.ctd.crictl(t, "rmi", ref) // which has to leave nothing
		if left := second.ctd.ctr(t, "-n", "k8s.io", "images", "ls", "-q"); strings.Contains(left, "app") {
			t.Errorf("the removed image has left %s", left)
		}
	})
}
