package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"graze/doctor"
	"graze/image/imagetest"
)

// TestDoctor looks at a machine with a node, a registry and no containerd.
func TestDoctor(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
	dir := t.TempDir()
	config := filepath.Join(dir, "node.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "state = %q\n[cri]\nsocket = %q\n[containerd]\naddress = %q\n", dir+"/state", dir+"/cri.sock", dir+"/none.sock"), 0o600); err != nil {
		t.Fatal(err)
	}
	startFileNode(t, config)
	levels := func(args ...string) (map[string]doctor.Level, int) {
		t.Helper()
		out, code := grazeCode(t, append([]string{"doctor", "--json", "--config", config, "--registry", reg.addr}, args...)...)
		var list []doctor.Finding
		if err := json.NewDecoder(strings.NewReader(out)).Decode(&list); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		found := make(map[string]doctor.Level)
		for _, f := range list {
			if found[f.Check] != doctor.Fail {
				found[f.Check] = f.Level
			}
		}
		return found, code
	}
	found, code := levels("--containerd", "", ref)
	for _, check := range []string{"root", "fuse", "overlay", "key", "node", "kubelet", "registry", "image"} {
		if found[check] != doctor.OK {
			t.Errorf("%s is %q", check, found[check])
		}
	}
	if code != 0 {
		t.Errorf("exit code %d with %v", code, found)
	}
	found, code = levels(reg.addr + "/none:1")
	if code != 1 || found["containerd"] != doctor.Fail || found["image"] != doctor.Fail {
		t.Errorf("exit code %d with %v", code, found)
	}
}
