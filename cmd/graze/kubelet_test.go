package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
)

// A kubeletRig is a kubelet with containerd and a node, and a registry that wants a
// password, which nobody but kubelet's credential provider plugin knows.
type kubeletRig struct {
	*kubelet
	reg    *testRegistry
	door   *privateRegistry
	node   *keptNode
	ctd    *containerd
	plugin string // folder of the plugin
	image  string
	sum    string // of the files that the image's program uses
	size   int64  // of its layers
}

// kubeletSecret is the password.
const kubeletSecret = "hunter2-is-in-no-file"

// ownTemp has what the test makes be on a mount of its own, which other namespaces
// follow, as all mounts of a machine that systemd has started.
func ownTemp(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error("unmount the test's folder: ", err)
		}
	})
	t.Setenv("TMPDIR", dir)
}

// newKubeletRig starts all but kubelet.
func newKubeletRig(t *testing.T, cfg containerdConfig) *kubeletRig {
	t.Helper()
	needFUSE(t)
	needTools(t, "runc", "unshare", filepath.Join(os.Getenv("GRAZE_CONTAINERD2"), "crictl"))
	ownTemp(t)
	r := &kubeletRig{reg: startRegistry(t)}
	r.push(t)
	r.node = newKeptNode(t)
	images := filepath.Join(r.node.state, "cri.sock")
	cfg.dir, cfg.cri, cfg.sandbox = t.TempDir(), true, (&rig{reg: r.reg}).pause(t)
	settings := filepath.Join(t.TempDir(), "node.toml")
	text := fmt.Sprintf("state = %q\n[cri]\nsocket = %q\n[containerd]\nsocket = %q\naddress = %q\nsmall-image = \"\"\npolicies = [%q]\n",
		r.node.state, images, r.node.state+"/containerd.sock", cfg.dir+"/sock", "*/pause pull")
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.before = func(config, _ string) {
		graze(t, "install", "--no-unit", "--config", settings, "--containerd-config", config)
	}
	r.node.flags = append(r.node.flags, "--config", settings)
	r.node.env = []string{"DOCKER_CONFIG=" + t.TempDir()}
	r.node.start(t)
	r.ctd = startContainerdWith(t, cfg)
	if out, code := grazeCode(t, "doctor", "--config", settings); code != 0 || strings.Contains(out, "kubelet has no figures") {
		t.Errorf("doctor finds\n%s", out)
	}
	r.kubelet = newKubelet(t, r.ctd.socket(), images)
	t.Cleanup(func() {
		r.stop(t)
		r.ctd.crictl(t, "rmp", "--all", "--force")
	})
	r.plug(t)
	return r
}

// push pushes an image of which its program uses a small part. It is there twice:
// once in a repository that nobody may see.
func (r *kubeletRig) push(t *testing.T) {
	t.Helper()
	layers, sum := usedLayers(t, 1)
	layers = append(layers, imagetest.Layer{Name: "bulk", Members: imagetest.Members(
		imagetest.Dir("bulk/"),
		imagetest.File("bulk/random", imagetest.Random(2, bulk)),
	)})
	img, err := imagetest.Build(layers, imagetest.Gzip(6), "/probe", "use")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range img.Layers {
		r.size += b.Size
	}
	graze(t, "index", "--state", t.TempDir(), "--push", r.reg.push(t, img, "app:1"))
	r.reg.push(t, img, "secret:1")
	r.door = startPrivate(t, r.reg)
	r.door.allow("ann", kubeletSecret, "app")
	r.image, r.sum = r.door.addr+"/app:1", sum
}

// plug gives kubelet a credential provider plugin.
func (r *kubeletRig) plug(t *testing.T) {
	t.Helper()
	r.plugin = t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
cd "$(dirname "$0")"
cat >>requests
echo >>requests
echo '{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
	"cacheKeyType": "Registry", "auth": {%q: {"username": "ann", "password": %q}}}'
`, r.door.addr, kubeletSecret)
	config := writeJSON(t, map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1",
		"kind":       "CredentialProviderConfig",
		"providers": []any{map[string]any{
			"name":                 "plugin",
			"apiVersion":           "credentialprovider.kubelet.k8s.io/v1",
			"matchImages":          []string{r.door.addr},
			"defaultCacheDuration": "1h",
		}},
	})
	if err := os.WriteFile(filepath.Join(r.plugin, "plugin"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	r.flags = []string{"--image-credential-provider-config", config, "--image-credential-provider-bin-dir", r.plugin}
}

// runs waits until the container of a pod runs and uses its files, and returns it.
func (r *kubeletRig) runs(t *testing.T, pod string) podContainer {
	t.Helper()
	var c podContainer
	eventually(t, pod+" runs", func() bool {
		c = r.container(t, pod)
		return c.State.Running != nil && r.said(t, pod) != ""
	})
	if said := r.said(t, pod); said != "using "+r.sum+"\n" {
		t.Errorf("%s says %q", pod, said)
	}
	return c
}

// TestKubelet has a real kubelet run pods of a private image. Their start is lazy, no
// one notices that the node is killed or that the registry is lost, and nothing is
// left in the end.
func TestKubelet(t *testing.T) {
	if os.Getenv(kubeletEnv) == "" {
		t.Skip(kubeletEnv + " does not name a folder with kubelet: see scripts/kubelet.sh")
	}
	containerds(t, func(t *testing.T, cfg containerdConfig) {
		r := newKubeletRig(t, cfg)
		before := r.reg.blobBytes(t).Bytes
		r.start(t)
		t.Cleanup(func() {
			if t.Failed() {
				r.stop(t)
				t.Logf("kubelet says:\n%s", &r.log)
			}
		})
		r.run(t, "app", r.image, "/probe", "use")
		app := r.runs(t, "app")
		got := r.reg.blobBytes(t).Bytes - before
		t.Logf("the start took %d bytes of %d from the registry", got, r.size)
		if got > r.size/3 {
			t.Errorf("the start took %d bytes of %d from the registry", got, r.size)
		}
		if n := viewsOf(t, r.node.state); n != 1 {
			t.Errorf("%d views are mounted for one image", n)
		}
		r.showedCredentials(t)
		r.refused(t)
		r.figures(t)
		r.outlives(t)
		r.outage(t)
		if now := r.runs(t, "app"); now.ContainerID != app.ContainerID || now.RestartCount != 0 {
			t.Errorf("app was %v, and is now %v", app, now)
		}
		r.deleted(t)
		r.collected(t)
		for _, dir := range []string{r.node.state, r.root, r.logs, r.ctd.dir} {
			grepFolder(t, dir, kubeletSecret)
		}
	})
}

// showedCredentials checks that those of the plugin have got to the registry.
func (r *kubeletRig) showedCredentials(t *testing.T) {
	t.Helper()
	asked, err := os.ReadFile(filepath.Join(r.plugin, "requests"))
	if err != nil || !strings.Contains(string(asked), r.image[:strings.LastIndexByte(r.image, ':')]) {
		t.Errorf("the plugin was asked %q, %v", asked, err)
	}
	came := r.door.visits()
	for _, want := range []string{"ann HEAD manifests", "ann GET blobs"} {
		if !slices.Contains(came, want) {
			t.Errorf("the registry has seen %q", came)
		}
	}
}

// refused runs a pod of an image that nobody may see.
func (r *kubeletRig) refused(t *testing.T) {
	t.Helper()
	r.run(t, "forbidden", r.door.addr+"/secret:1", "/probe", "use")
	eventually(t, "kubelet is told that it may not have the image", func() bool {
		waits := r.container(t, "forbidden").State.Waiting
		return waits != nil && strings.Contains(waits.Message, "the registry does not allow it")
	})
	t.Logf("it says %q", r.container(t, "forbidden").State.Waiting.Message)
	r.remove(t, "forbidden")
}

// figures checks what kubelet and containerd say of the disk of images.
func (r *kubeletRig) figures(t *testing.T) {
	t.Helper()
	type disk struct{ CapacityBytes, AvailableBytes, UsedBytes int64 }
	var s struct {
		Node struct {
			Runtime struct{ ImageFs disk }
		}
		Pods []struct {
			Containers []struct{ Rootfs disk }
		}
	}
	var bad error
	if !within(time.Minute, func() bool {
		text, err := r.get("/stats/summary")
		if err == nil {
			err = json.Unmarshal(text, &s)
		}
		if err != nil {
			bad = err
			return false
		}
		return s.Node.Runtime.ImageFs.UsedBytes > 0 && len(s.Pods) > 0 && len(s.Pods[0].Containers) > 0
	}) {
		t.Fatalf("kubelet has no figures: %+v, %v", s, bad)
	}
	t.Logf("kubelet says %+v", s)
	if fs := s.Node.Runtime.ImageFs; fs.CapacityBytes <= fs.AvailableBytes || fs.AvailableBytes <= 0 {
		t.Errorf("kubelet says of the disk of images %+v", fs)
	}
	if usage := r.ctd.crictl(t, "imagefsinfo"); !strings.Contains(usage, "usedBytes") {
		t.Errorf("CRI says of the file system of images %s", usage)
	}
}

// outlives kills the node, and has the next one read what nobody has read before.
func (r *kubeletRig) outlives(t *testing.T) {
	t.Helper()
	r.node.end(t, syscall.SIGKILL)
	pause(t, 2*time.Second)
	r.node.start(t)
	before := r.reg.blobBytes(t).Bytes
	id := strings.TrimPrefix(r.container(t, "app").ContainerID, "containerd://")
	if out := r.ctd.crictl(t, "exec", id, "/probe", "read"); !strings.Contains(out, "/bulk/random") {
		t.Errorf("a program in the container prints\n%s", out)
	}
	if got := r.reg.blobBytes(t).Bytes - before; got < bulk/2 {
		t.Errorf("only %d bytes came from the registry", got)
	}
}

// outage runs pods without a registry.
func (r *kubeletRig) outage(t *testing.T) {
	t.Helper()
	r.run(t, "second", r.image, "/probe", "use") // the killed node knew that ann may
	r.runs(t, "second")
	r.door.stop()
	r.run(t, "third", r.image, "/probe", "use")
	r.runs(t, "third")
	if n := viewsOf(t, r.node.state); n != 1 {
		t.Errorf("%d views are mounted for one image", n)
	}
}

// deleted takes all pods away.
func (r *kubeletRig) deleted(t *testing.T) {
	t.Helper()
	for _, pod := range []string{"app", "second", "third"} {
		r.remove(t, pod)
	}
	if !within(3*time.Minute, func() bool { return r.ctd.crictl(t, "ps", "-a", "-q")+r.ctd.crictl(t, "pods", "-q") == "" }) {
		t.Fatalf("of pods there is left:\n%s\n%s", r.ctd.crictl(t, "pods"), r.ctd.crictl(t, "ps", "-a"))
	}
}

// remove takes a pod from kubelet.
func (r *kubeletRig) remove(t *testing.T, pod string) {
	t.Helper()
	if err := os.Remove(r.manifest(pod)); err != nil {
		t.Fatal(err)
	}
}

// collected has kubelet make room by removing images, after which nothing of them is
// left.
func (r *kubeletRig) collected(t *testing.T) {
	t.Helper()
	r.stop(t)
	// It does not even start while the node is away.
	r.node.end(t, syscall.SIGTERM)
	if err := r.command(t).Run(); err == nil || !strings.Contains(r.log.String(), "validate CRI v1 image API") {
		t.Errorf("without a node kubelet ends with %v", err)
	}
	r.node.start(t)
	r.config["evictionHard"], r.config["imageMinimumGCAge"] = map[string]any{"imagefs.available": "99%"}, "1s"
	r.start(t)
	eventually(t, "kubelet removes the image", func() bool { return !strings.Contains(r.ctd.crictl(t, "images", "-o", "json"), r.image) })
	eventually(t, "no view is mounted", func() bool { return viewsOf(t, r.node.state) == 0 })
	r.stop(t)
	// What it says before it has figures, and while the node is away, is no complaint.
	fine := regexp.MustCompile(`failed once|no imagefs label|connection error`)
	bad := regexp.MustCompile(`(?i)^E.*(imagefs|image filesystem)`)
	for line := range strings.Lines(r.log.String()) {
		if bad.MatchString(line) && !fine.MatchString(line) {
			t.Errorf("kubelet says %s", line)
		}
	}
}
