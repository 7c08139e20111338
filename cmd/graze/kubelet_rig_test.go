package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A kubelet is a real one, that no API server is told of: its pods are files in a
// folder.
type kubelet struct {
	root   string // of its own state
	pods   string // manifests of pods
	logs   string // of pods
	cgroup string // of its pods, below that of each controller
	config map[string]any
	flags  []string

	url string // where it answers, to everybody
	cmd *exec.Cmd
	log bytes.Buffer // of all its runs; to be read when it has ended
}

// kubeletEnv names the folder of kubelet's program.
const kubeletEnv = "GRAZE_KUBELET"

// newKubelet returns a kubelet that does not run yet. It has a control group and a
// namespace of mounts of its own, in which the folders and the kernel's settings that
// it would change for the whole machine are others. What is mounted elsewhere is
// seen there, too, if it is on a mount that is shared. The test has to stop it.
func newKubelet(t *testing.T, runtime, images string) *kubelet {
	t.Helper()
	dir := t.TempDir()
	k := &kubelet{root: filepath.Join(dir, "root"), pods: filepath.Join(dir, "pods"), logs: filepath.Join(dir, "logs")}
	for _, name := range []string{k.root, k.pods, k.logs} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	k.cgroup = ownCgroup(t)
	k.config = map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"staticPodPath":            k.pods,
		"podLogsDir":               k.logs,
		"containerRuntimeEndpoint": "unix://" + runtime,
		"imageServiceEndpoint":     "unix://" + images,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + k.cgroup,
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"makeIPTablesUtilChains":   false,
		"oomScoreAdj":              0,
		"maxOpenFiles":             20000,
		"address":                  "127.0.0.1",
		"healthzPort":              0,
		"authentication":           map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
	}
	return k
}

// ownCgroup makes a control group for each controller, and returns their name.
func ownCgroup(t *testing.T) string {
	t.Helper()
	const top = "/sys/fs/cgroup"
	name := fmt.Sprintf("graze-kubelet-%d", os.Getpid())
	parents := []string{top}
	if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err != nil { // version 1
		parents = glob(t, top+"/*")
	}
	for _, parent := range parents {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip("kubelet needs control groups: ", err)
		}
		t.Cleanup(func() {
			eventually(t, dir+" goes", func() bool { return removeCgroup(dir) == nil })
		})
	}
	return name
}

// removeCgroup removes a control group and those below it.
func removeCgroup(dir string) error {
	list, err := os.ReadDir(dir)
	for _, entry := range list {
		if entry.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(dir, entry.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}

// inOwnMounts runs a program in a namespace of mounts where what kubelet has in
// fixed places is its own. In place of the kernel's settings are files that say what
// kubelet wants of them.
const inOwnMounts = `set -eu
dir=$1
shift
mkdir -p "$dir"
set_to() { echo "$2" >"$dir/${1##*/}"; mount --bind "$dir/${1##*/}" "/proc/sys/$1"; }
set_to vm/overcommit_memory 1
set_to vm/panic_on_oom 0
set_to kernel/panic 10
set_to kernel/panic_on_oops 1
set_to kernel/keys/root_maxkeys 1000000
set_to kernel/keys/root_maxbytes 25000000
for place in /var/lib /var/log; do mount -t tmpfs tmpfs "$place"; done
exec "$@"
`

// command returns a process of kubelet that does not run yet.
func (k *kubelet) command(t *testing.T) *exec.Cmd {
	t.Helper()
	port := func() int {
		_, text, err := net.SplitHostPort(freePort(t, "127.0.0.1"))
		n, bad := net.LookupPort("tcp", text)
		if err != nil || bad != nil {
			t.Fatal(err, bad)
		}
		return n
	}
	open := port()
	k.url, k.config["port"], k.config["readOnlyPort"] = fmt.Sprintf("http://127.0.0.1:%d", open), port(), open
	args := []string{"--mount", "--propagation", "slave", "sh", "-c", inOwnMounts, "sh", filepath.Join(k.root, "sysctl"),
		filepath.Join(os.Getenv(kubeletEnv), "kubelet"), "--config", writeJSON(t, k.config), "--root-dir", k.root,
		"--cert-dir", filepath.Join(k.root, "pki"), "--hostname-override", "test", "--v", "2"}
	cmd := exec.Command("unshare", append(args, k.flags...)...)
	cmd.Stdout, cmd.Stderr = &k.log, &k.log
	return cmd
}

// start runs kubelet until it is stopped.
func (k *kubelet) start(t *testing.T) {
	t.Helper()
	k.cmd = k.command(t)
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "kubelet answers", func() bool {
		_, err := k.get("/healthz")
		return err == nil
	})
}

// stop ends kubelet. Its pods go on.
func (k *kubelet) stop(t *testing.T) {
	t.Helper()
	if k.cmd == nil {
		return
	}
	_ = k.cmd.Process.Signal(unix.SIGTERM)
	if err := k.cmd.Wait(); err != nil {
		t.Errorf("kubelet: %v", err)
	}
	k.cmd = nil
}

// get returns what kubelet answers.
func (k *kubelet) get(path string) ([]byte, error) {
	client := http.Client{Timeout: 20 * time.Second}
	resp, err := client.Get(k.url + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, text)
	}
	return text, err
}

// A podContainer is what kubelet says of a pod's container.
type podContainer struct {
	ContainerID  string `json:"containerID"`
	RestartCount int    `json:"restartCount"`
	State        struct {
		Running *struct{} `json:"running"`
		Waiting *struct {
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"waiting"`
		Terminated *struct {
			ExitCode int `json:"exitCode"`
		} `json:"terminated"`
	} `json:"state"`
}

// container returns what kubelet says of the container of a pod; the zero value if
// it says nothing.
func (k *kubelet) container(t *testing.T, pod string) (c podContainer) {
	t.Helper()
	text, err := k.get("/pods")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Status struct {
				ContainerStatuses []podContainer `json:"containerStatuses"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Metadata.Name == pod+"-test" && len(p.Status.ContainerStatuses) == 1 {
			c = p.Status.ContainerStatuses[0]
		}
	}
	return c
}

// run has kubelet run a pod in the host's network. While it runs, a probe runs a
// program in it each second.
func (k *kubelet) run(t *testing.T, pod, image string, command ...string) {
	t.Helper()
	manifest := map[string]any{
		"apiVersion": "v1",
		"kind":       "Pod",
		"metadata":   map[string]any{"name": pod, "namespace": "default"},
		"spec": map[string]any{
			"hostNetwork":                   true,
			"terminationGracePeriodSeconds": 5,
			"containers": []any{map[string]any{
				"name":            pod,
				"image":           image,
				"imagePullPolicy": "Always",
				"command":         command,
				"livenessProbe": map[string]any{
					"exec":             map[string]any{"command": []string{"/probe", "hello"}},
					"periodSeconds":    1,
					"timeoutSeconds":   30,
					"failureThreshold": 1,
				},
			}},
		},
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	// Kubelet leaves out names that begin with a dot, so it reads whole files only.
	hidden := filepath.Join(k.pods, "."+pod)
	if err := errors.Join(os.WriteFile(hidden, text, 0o600), os.Rename(hidden, k.manifest(pod))); err != nil {
		t.Fatal(err)
	}
}

func (k *kubelet) manifest(pod string) string { return filepath.Join(k.pods, pod+".json") }

// said returns what the container of a pod has printed, in all its lives.
func (k *kubelet) said(t *testing.T, pod string) string {
	t.Helper()
	var out strings.Builder
	for _, name := range glob(t, fmt.Sprintf("%s/default_%s-test_*/%s/*.log", k.logs, pod, pod)) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) { // TIME stdout F TEXT
			if f := strings.SplitN(line, " ", 4); len(f) == 4 {
				out.WriteString(f[3])
			}
		}
	}
	return out.String()
}
