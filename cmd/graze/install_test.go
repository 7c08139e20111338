package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"graze/image/imagetest"
)

// TestInstalled installs graze into a real containerd's configuration, pulls a
// private image by kubelet's way, and finds that it is served lazily; then has
// containerd given the blobs; then takes graze away again.
func TestInstalled(t *testing.T) {
	containerds(t, testInstalled)
}

func testInstalled(t *testing.T, cfg containerdConfig) {
	needFUSE(t)
	reg := startRegistry(t)
	reg.push(t, smallImage(t, imagetest.Gzip(6)), "private:1")
	door := startPrivate(t, reg)
	door.allow("ann", "secret", "private")
	image := door.addr + "/private:1"

	dir := t.TempDir()
	settings := filepath.Join(dir, "node.toml")
	var original []byte
	cfg.cri = true
	var install []string
	cfg.before = func(config, socket string) {
		var err error
		if original, err = os.ReadFile(config); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("state = %q\n[containerd]\nsocket = %q\naddress = %q\nsmall-image = \"\"\n[cri]\nsocket = %q\n",
			dir+"/state", dir+"/graze.sock", socket, dir+"/cri.sock")
		if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		install = []string{"--no-unit", "--config", settings, "--containerd-config", config}
		dry := graze(t, append([]string{"install", "--dry-run"}, install...)...)
		if now, err := os.ReadFile(config); err != nil || string(now) != string(original) || !strings.Contains(dry, "+[proxy_plugins.graze]") {
			t.Errorf("a dry run changes the file, or shows no change: %v\n%s", err, dry)
		}
		if out := graze(t, append([]string{"install"}, install...)...); !strings.Contains(out, "to do: systemctl restart containerd") {
			t.Errorf("install prints %s", out)
		}
		if out := graze(t, append([]string{"install"}, install...)...); out != "nothing to do\n" {
			t.Errorf("a second install prints %s", out)
		}
	}
	ctd := startContainerdWith(t, cfg)
	startFileNode(t, settings)
	if out, code := grazeCode(t, "doctor", "--config", settings, "--registry", door.addr); code != 0 {
		t.Errorf("doctor finds\n%s", out)
	}

	proxy := dialCRI(t, dir+"/cri.sock")
	before := reg.blobBytes(t).Bytes
	if code := proxy.pull(t.Context(), image, "ann", "secret"); code != codes.OK {
		t.Fatal("pull: ", code)
	}
	if lines := strings.Count(ctd.ctr(t, "-n", "k8s.io", "content", "ls", "-q"), "\n"); lines != 2 {
		t.Errorf("containerd has %d blobs of a lazily pulled image, want manifest and config; %d bytes were fetched", lines, reg.blobBytes(t).Bytes-before)
	}
	ctd.namespace = "k8s.io"
	if _, err := exported(t, ctd, image); err == nil {
		t.Error("a lazily pulled image can be exported")
	}
	graze(t, "materialize", "--state", dir+"/state", "--address", ctd.socket(), "-n", "k8s.io", image)
	if blobs, err := exported(t, ctd, image); err != nil || len(blobs) != 4 {
		t.Errorf("exported %q, %v", blobs, err)
	}

	if out, code := grazeCode(t, append([]string{"uninstall"}, install...)...); code != 1 || !strings.Contains(out, "snapshots of graze") {
		t.Errorf("uninstall, with snapshots: %d, %s", code, out)
	}
	if _, err := proxy.RemoveImage(t.Context(), &runtime.RemoveImageRequest{Image: &runtime.ImageSpec{Image: image}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "graze can be uninstalled", func() bool {
		_, code := grazeCode(t, append([]string{"uninstall"}, install...)...)
		return code == 0
	})
	if now, err := os.ReadFile(install[len(install)-1]); err != nil || string(now) != string(original) {
		t.Errorf("containerd's configuration is not what it was: %v\n%s", err, now)
	}
}

// TestInstallKey: settings that install makes name the cluster's key, if it is there
// already or is put there.
func TestInstallKey(t *testing.T) {
	const place = "etc/graze/cluster.key"
	for _, row := range []struct {
		name        string
		there, flag bool
		want        string
	}{
		{"none", false, false, ""},
		{"there", true, false, "/" + place},
		{"given", false, true, "/" + place},
	} {
		t.Run(row.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(filepath.Join(root, "etc/containerd"), 0o755); err != nil {
				t.Fatal(err)
			}
			args := []string{"install", "--root", root}
			if row.there {
				graze(t, "key", "new", filepath.Join(root, place))
			}
			if row.flag {
				key := filepath.Join(t.TempDir(), "key")
				graze(t, "key", "new", key)
				args = append(args, "--key", key)
			}
			graze(t, args...)
			f, err := readNodeFile(filepath.Join(root, "etc/graze/node.toml"))
			if err != nil || f.Cluster.KeyFile != row.want {
				t.Errorf("the settings name the key %q: %v", f.Cluster.KeyFile, err)
			}
			if st, err := os.Stat(filepath.Join(root, place)); row.want != "" && (err != nil || st.Mode().Perm() != 0o600) {
				t.Errorf("the key: %v, %v", st, err)
			}
		})
	}
}

// TestInstallBelow installs below another root, as a container does that has the
// host's files in a folder.
func TestInstallBelow(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc/containerd/certs.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	graze(t, "install", "--root", root)
	f, err := readNodeFile(filepath.Join(root, "etc/graze/node.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if f.Containerd.Socket == "" || f.CRI.Socket == "" || f.Registry.HostsDir != "/etc/containerd/certs.d" {
		t.Errorf("settings %+v", f)
	}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.Stat(own)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Stat(filepath.Join(root, "usr/local/bin/graze")); err != nil || got.Size() != want.Size() || got.Mode().Perm() != 0o755 {
		t.Errorf("program: %v, %v", got, err)
	}
	if out := graze(t, "install", "--root", root); out != "nothing to do\n" {
		t.Errorf("a second time: %s", out)
	}
	// A root without systemctl: what --now can't do remains to be done.
	bare := t.TempDir()
	if out, code := grazeCode(t, "install", "--root", bare, "--now"); code != 1 || !strings.Contains(out, "to do: systemctl daemon-reload\n") ||
		!strings.Contains(out, "to do: systemctl restart graze\n") || strings.Contains(out, "done:") {
		t.Errorf("without systemctl: %d, %s", code, out)
	}
	// Settings that can't work are refused before anything is changed.
	bad := filepath.Join(root, "bad.toml")
	if err := os.WriteFile(bad, []byte("state = \"/x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := grazeCode(t, "install", "--root", root, "--settings", bad); code != 1 || !strings.Contains(out, "containerd.socket") {
		t.Errorf("settings without a socket: %d, %s", code, out)
	}
	if out := graze(t, "uninstall", "--root", root); !strings.Contains(out, "removed /etc/containerd/config.toml") {
		t.Errorf("uninstall prints %s", out)
	}
}
