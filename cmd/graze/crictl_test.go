package main

import (
	"bytes"
	"compress/gzip"
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

// crictl runs a command of CRI's client, which is where containerd 2 is, and
// returns what it prints.
func (c *containerd) crictl(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv("GRAZE_CONTAINERD2"), "crictl"),
		append([]string{"--config", os.DevNull, "--timeout", "60s", "--runtime-endpoint", "unix://" + c.socket()}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("crictl %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return strings.TrimSpace(stdout.String())
}

// writeJSON writes v to a file of the test, and returns its name.
func writeJSON(t *testing.T, v any) string {
	t.Helper()
	p, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(name, p, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A pod is a sandbox that can run containers.
type pod struct {
	ctd          *containerd
	id           string
	logs, config string
}

// startPod starts the sandbox of a pod in the host's network.
func (c *containerd) startPod(t *testing.T, name string) *pod {
	t.Helper()
	p := &pod{ctd: c, logs: t.TempDir()}
	p.config = writeJSON(t, map[string]any{
		"metadata":      map[string]any{"name": name, "namespace": "default", "uid": name},
		"log_directory": p.logs,
		"linux":         map[string]any{"security_context": map[string]any{"namespace_options": map[string]any{"network": 2}}},
	})
	p.id = c.crictl(t, "runp", p.config)
	t.Cleanup(func() { c.crictl(t, "rmp", "--force", p.id) })
	return p
}

// start starts a container in the pod.
func (p *pod) start(t *testing.T, ref, name string, command ...string) (id string) {
	t.Helper()
	config := writeJSON(t, map[string]any{
		"metadata": map[string]any{"name": name},
		"image":    map[string]any{"image": ref},
		"command":  command,
		"log_path": name + ".log",
		"linux":    map[string]any{},
	})
	id = p.ctd.crictl(t, "create", p.id, config, p.config)
	p.ctd.crictl(t, "start", id)
	return id
}

// run runs a container to its end.
func (p *pod) run(t *testing.T, ref, name string, command ...string) (output string, code int) {
	t.Helper()
	id := p.start(t, ref, name, command...)
	var state struct {
		Status struct {
			State    string `json:"state"`
			ExitCode int    `json:"exitCode"`
		} `json:"status"`
	}
	eventually(t, "the container ends", func() bool {
		if err := json.Unmarshal([]byte(p.ctd.crictl(t, "inspect", id)), &state); err != nil {
			t.Fatal(err)
		}
		return state.Status.State == "CONTAINER_EXITED"
	})
	return p.ctd.crictl(t, "logs", id), state.Status.ExitCode
}

// pause pushes the image of CRI's sandboxes, which is small.
func (r *rig) pause(t *testing.T) string {
	t.Helper()
	program, err := probe()
	if err != nil {
		t.Fatal(err)
	}
	file := imagetest.File("probe", program)
	file.Header.Mode = 0o755
	img, err := imagetest.Build([]imagetest.Layer{{Name: "pause", Members: imagetest.Members(file)}}, imagetest.Gzip(6), "/probe", "wait")
	if err != nil {
		t.Fatal(err)
	}
	return r.reg.push(t, img, "pause:1")
}

// TestCRI pulls images and runs pods as kubelet does, with graze and with
// overlayfs. The image of sandboxes is pulled, by policy.
func TestCRI(t *testing.T) {
	containerds(t, func(t *testing.T, cfg containerdConfig) {
		needFUSE(t)
		needTools(t, "runc", filepath.Join(os.Getenv("GRAZE_CONTAINERD2"), "crictl"))
		only := &rig{reg: startRegistry(t)}
		cfg.cri, cfg.sandbox = true, only.pause(t)
		plain := startContainerdWith(t, cfg)
		r := only.join(t, cfg, fmt.Sprintf("policies = [%q]\n", "*/pause pull"), "", nil)
		lazyPod, plainPod := r.ctd.startPod(t, "lazy"), plain.startPod(t, "plain")
		if got := r.reason(t, cfg.sandbox); !slices.Equal(got, []string{"policy"}) || r.views(t) != 0 {
			t.Errorf("the sandbox's image is served for %q, and %d views are mounted", got, r.views(t))
		}
		rows := map[string][]imagetest.Encoding{
			"indexed": {imagetest.Gzip(gzip.BestSpeed)},
			"mix":     {imagetest.EStargz("estargz"), imagetest.Zstd()},
		}
		for name, encodings := range rows {
			ref, size := r.probeImage(t, name, 1, encodings...)
			graze(t, "index", "--state", t.TempDir(), "--push", ref)
			before := r.reg.blobBytes(t).Bytes
			r.ctd.crictl(t, "pull", ref)
			lazyPod.start(t, ref, name+"-waits", "/probe", "wait")
			if got := r.reg.blobBytes(t).Bytes - before; got > size/3 {
				t.Errorf("the start of %s took %d bytes of %d from the registry", name, got, size)
			}
			plain.crictl(t, "pull", ref)
			got, code := lazyPod.run(t, ref, name, "/probe")
			want, wantCode := plainPod.run(t, ref, name, "/probe")
			if code != wantCode || code != 7 || got != want || !strings.Contains(want, "bulk/random") {
				t.Errorf("the container of %s ends with %d and prints\n%s\nand with overlayfs with %d\n%s", name, code, got, wantCode, want)
			}
		}
		if n := r.views(t); n != len(rows) {
			t.Errorf("%d views are mounted for %d images", n, len(rows))
		}
		usage := r.ctd.crictl(t, "imagefsinfo")
		if !strings.Contains(usage, "usedBytes") {
			t.Errorf("CRI says of the file system of images %s", usage)
		}
	})
}
