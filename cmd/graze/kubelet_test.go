package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"graze/image/imagetest"
	"graze/node"
)

// TestKubelet has a real kubelet, which is alone, run a pod of a file. The image is
// private: kubelet has the password from a credential provider plugin, and graze from
// kubelet's pull. It is served lazily, and the pod prints what it prints with overlayfs.
func TestKubelet(t *testing.T) {
	kubelet := os.Getenv("GRAZE_KUBELET")
	if kubelet == "" {
		t.Skip("GRAZE_KUBELET does not name a folder with kubelet: see scripts/kubelet.sh")
	}
	containerds(t, func(t *testing.T, cfg containerdConfig) {
		if cfg.bin == "" {
			t.Skip("this kubelet wants containerd 2")
		}
		only := &rig{reg: startRegistry(t)}
		cfg.cri, cfg.sandbox, cfg.dir = true, only.pause(t), t.TempDir()
		r := only.join(t, cfg, fmt.Sprintf("policies = [\"*/pause pull\"]\n[cri]\nsocket = %q\n", cfg.dir+"/image.sock"), "", nil)
		ref, size := r.probeImage(t, "private", 1, imagetest.Gzip(6))
		graze(t, "index", "--state", t.TempDir(), "--push", ref)
		door := startPrivate(t, r.reg)
		const secret = "hunter2-is-known-to-kubelet"
		door.allow("kubelet", secret, "private")

		before := r.reg.blobBytes(t).Bytes
		image := strings.Replace(ref, r.reg.addr, door.addr, 1)
		logs := startKubelet(t, filepath.Join(kubelet, "kubelet"), r.ctd, door.addr, secret, staticPod(image))
		eventually(t, "the pod's container waits", func() bool {
			return len(strings.Fields(r.ctd.crictl(t, "ps", "--quiet", "--name", "waits", "--state", "Running"))) == 1
		})
		if got := r.reg.blobBytes(t).Bytes - before; got > size/3 {
			t.Errorf("the start took %d bytes of %d from the registry", got, size)
		}
		if n := r.views(t); n != 1 {
			t.Errorf("%d views are mounted for one image", n)
		}
		stats := r.node.stats(t).Containerd
		if i := slices.IndexFunc(stats.Images, func(i node.PulledImage) bool { return strings.HasPrefix(i.Name, door.addr+"/private@") }); i < 0 || stats.Images[i].Reason != "lazy" {
			t.Errorf("the images are %+v", stats.Images)
		}
		if visits := door.visits(); !slices.Contains(visits, "kubelet GET blobs") {
			t.Errorf("nobody read with the password: %q", visits)
		}
		r.ctd.ctr(t, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
		want, _ := r.ctd.run(t, "overlayfs", ref, "plain", "/probe")
		var got string
		eventually(t, "the pod's other container has printed all", func() bool {
			got = podLog(t, logs)
			return len(got) >= len(want)
		})
		if got != want {
			t.Errorf("the pod prints\n%s\nand a container with overlayfs\n%s", got, want)
		}
	})
}

// staticPod returns a pod of two containers: one waits, and one reads all of the image.
func staticPod(image string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "probe", "namespace": "default"},
		"spec": map[string]any{
			"hostNetwork":                   true,
			"restartPolicy":                 "Never",
			"terminationGracePeriodSeconds": 1,
			"containers": []any{
				map[string]any{"name": "waits", "image": image, "command": []string{"/probe", "wait"}},
				map[string]any{"name": "reads", "image": image, "command": []string{"/probe"}},
			},
		},
	}
}

// podLog returns what the container of the pod has printed that reads.
func podLog(t *testing.T, logs string) string {
	t.Helper()
	files, err := filepath.Glob(logs + "/*/reads/0.log")
	if err != nil || len(files) != 1 {
		return ""
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		_, line, _ = strings.Cut(line, " stdout ") // time, stream, F or P for a line's part
		out.WriteString(line[min(2, len(line)):])
	}
	return out.String()
}

// startKubelet runs kubelet without an API server until the end of the test, with one
// pod, and a plugin that knows a password. It returns the folder of the pod's logs.
func startKubelet(t *testing.T, program string, ctd *containerd, registry, secret string, pod any) (logs string) {
	t.Helper()
	needTools(t, program, "unshare")
	dir := t.TempDir()
	logs = filepath.Join(dir, "logs")
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	document := func(v any) string {
		t.Helper()
		p, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(p)
	}
	write("pods/probe.json", document(pod), 0o600)
	write("plugins/secret", "#!/bin/sh\ncat >/dev/null\ncat <<'END'\n"+document(map[string]any{
		"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
		"cacheKeyType": "Registry", "cacheDuration": "1m",
		"auth": map[string]any{registry: map[string]any{"username": "kubelet", "password": secret}},
	})+"\nEND\n", 0o755)
	providers := write("providers.yaml", document(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
		"providers": []any{map[string]any{
			"name": "secret", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "matchImages": []string{registry}, "defaultCacheDuration": "1m",
		}},
	}), 0o600)
	config := write("kubelet.yaml", document(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + ctd.socket(),
		"imageServiceEndpoint":     "unix://" + ctd.dir + "/image.sock",
		"staticPodPath":            dir + "/pods", "podLogsDir": logs, "volumePluginDir": dir + "/volumes",
		"enableServer": false, "healthzPort": 0, "makeIPTablesUtilChains": false,
		"failCgroupV1": false, "failSwapOn": false, "cgroupDriver": "cgroupfs",
		"cgroupsPerQOS": false, "enforceNodeAllocatable": []string{}, "localStorageCapacityIsolation": false,
		"imageGCHighThresholdPercent": 100, "resolvConf": "",
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":  map[string]any{"mode": "AlwaysAllow"},
		"evictionHard":   map[string]any{"memory.available": "1Mi"},
	}), 0o600)
	restoreSysctls(t)
	// Its folders below /var/lib and /var/log are its own.
	cmd := exec.Command("unshare", "--mount", "sh", "-ec", `mount -t tmpfs tmpfs /var/lib; mount -t tmpfs tmpfs /var/log; exec "$@"`, "sh",
		program, "--config", config, "--root-dir", dir+"/root", "--cert-dir", dir+"/certs", "--hostname-override", "kubelet",
		"--image-credential-provider-config", providers, "--image-credential-provider-bin-dir", dir+"/plugins", "--v", "2")
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // it ends with an error of its own
		if t.Failed() {
			t.Logf("kubelet:\n%s", out)
		}
		for _, id := range strings.Fields(ctd.crictl(t, "pods", "--quiet")) {
			ctd.crictl(t, "rmp", "--force", id)
		}
	})
	return logs
}

// restoreSysctls sets those that kubelet changes back at the end of the test.
func restoreSysctls(t *testing.T) {
	t.Helper()
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		name = "/proc/sys/" + name
		old, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(name, old, 0o600); err != nil {
				t.Error(err)
			}
		})
	}
}
