package setup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const commented = `# Managed by the platform team.
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]   # extra runtimes

[plugins]
  # CRI
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.example/pause:3.6" # pinned
    [plugins."io.containerd.grpc.v1.cri".containerd]
      snapshotter = "stargz"      # was overlayfs
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"

[proxy_plugins]
  [proxy_plugins.stargz]
    type = "snapshot"
    address = "/run/containerd-stargz-grpc/containerd-stargz-grpc.sock"
`

const dotted = `version = 3
plugins."io.containerd.cri.v1.images".snapshotter = 'overlayfs'
plugins."io.containerd.cri.v1.images".disable_snapshot_annotations = true
`

const inline = `version = 3
[plugins]
"io.containerd.cri.v1.images" = { snapshotter = "overlayfs" }
`

// texts returns configurations by name.
func texts(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{
		"empty":     "",
		"debian":    "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    [plugins.\"io.containerd.grpc.v1.cri\".cni]\n      bin_dir = \"/usr/lib/cni\"\n",
		"commented": commented,
		"dotted":    dotted,
		"imports":   "version = 3\nimports = ['conf.d/*.toml']\n",
	}
	for _, name := range []string{"containerd-1.6", "containerd-2.4"} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".toml"))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	all["2.4 without imports"] = strings.Replace(all["containerd-2.4"], "imports = ", "#imports = ", 1)
	return all
}

// A machine is a folder that stands for one.
type machine struct{ root string }

func (m *machine) write(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

// files returns all files of the machine.
func (m *machine) files(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(m.root, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		if target, notLink := os.Readlink(name); notLink == nil && filepath.IsAbs(target) {
			text, err = linkTo(target), nil // to a place on the machine
		}
		all[strings.TrimPrefix(name, m.root)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// do makes a plan and applies it.
func (m *machine) do(t *testing.T, plan func(Options) (*Plan, error)) *Plan {
	t.Helper()
	p, err := plan(Options{Root: m.root, MapsIDs: true, NodeSettings: []byte("state = \"/var/lib/graze\"\n"), Program: []byte("\xff program")})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(); err != nil {
		t.Fatal(err)
	}
	return p
}

func removal(o Options) (*Plan, error) { return Remove(o, false) }

// TestInstall installs on machines with all kinds of configurations, twice, has
// each containerd that is here read the result, and goes back.
func TestInstall(t *testing.T) {
	for name, text := range texts(t) {
		t.Run(name, func(t *testing.T) {
			m := &machine{t.TempDir()}
			m.write(t, "etc/containerd/config.toml", text)
			before := m.files(t)

			first := m.do(t, Install)
			if diff := first.Diff(); !strings.Contains(diff, "+++ /etc/systemd/system/graze.service") || !strings.Contains(diff, "/usr/local/bin/graze") || strings.Contains(diff, "\xff") {
				t.Errorf("diff:\n%s", diff)
			}
			after := m.files(t)
			const disk = "/var/lib/containerd/io.containerd.snapshotter.v1.graze"
			want := ""
			if text == "" || strings.Contains(text, "version = 2") { // containerd 1 may read it
				want = "a link to /var/lib/graze/containerd\n"
			}
			if after[disk] != want {
				t.Errorf("kubelet finds the disk of images by %q", after[disk])
			}
			if second := m.do(t, Install); !second.Empty() || len(second.Steps) > 0 {
				t.Errorf("a second time there is still to do:\n%s%q", second.Diff(), second.Steps)
			}
			if diff := cmp.Diff(after, m.files(t)); diff != "" {
				t.Errorf("a second time changes files:\n%s", diff)
			}
			for _, line := range strings.Split(text, "\n") {
				if strings.HasPrefix(strings.TrimSpace(line), "#") && !strings.Contains(after["/etc/containerd/config.toml"], line) {
					t.Errorf("comment %q is gone", line)
				}
			}
			checkWithContainerd(t, m)

			m.do(t, removal)
			rest := m.files(t)
			delete(rest, "/usr/local/bin/graze")
			delete(rest, "/etc/graze/node.toml")
			if diff := cmp.Diff(before, rest); diff != "" {
				t.Errorf("removal leaves something else than what was there:\n%s", diff)
			}
			if p := m.do(t, removal); !p.Empty() {
				t.Errorf("a second removal has still to do:\n%s", p.Diff())
			}
		})
	}
}

// containerds returns the programs of containerd that are here. The one of version
// 2 is in the folder that GRAZE_CONTAINERD2 names.
func containerds() []string {
	var list []string
	if path, err := exec.LookPath("containerd"); err == nil {
		list = append(list, path)
	}
	if dir := os.Getenv("GRAZE_CONTAINERD2"); dir != "" {
		list = append(list, filepath.Join(dir, "containerd"))
	}
	return list
}

// checkWithContainerd has containerd say how it understands the machine's
// configuration.
func checkWithContainerd(t *testing.T, m *machine) {
	t.Helper()
	config := m.files(t)["/etc/containerd/config.toml"]
	c, err := parseContainerd(config)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.toml")
	text := strings.ReplaceAll(config, "/etc/containerd/conf.d", filepath.Join(m.root, "etc/containerd/conf.d"))
	text = strings.ReplaceAll(text, "'conf.d/", "'"+filepath.Join(m.root, "etc/containerd/conf.d")+"/")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, program := range containerds() {
		version, err := exec.Command(program, "--version").Output()
		if err != nil {
			t.Fatal(err)
		}
		old := strings.Contains(string(version), " 1.")
		if old && c.version > 2 {
			continue // it can't read such a file
		}
		cmd := exec.Command(program, "--config", path, "config", "dump")
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		tree, err := decode(string(out))
		if err != nil {
			t.Fatal(err)
		}
		cri := tableImages
		if old {
			cri = tableCRI
		}
		want := map[string]any{
			"snapshotter": "graze", "annotations": false,
			"type": "snapshot", "address": "/run/graze/containerd.sock",
		}
		got := map[string]any{
			"snapshotter": get(tree, append(cri[:len(cri):len(cri)], "snapshotter")),
			"annotations": get(tree, append(cri[:len(cri):len(cri)], "disable_snapshot_annotations")),
			"type":        get(tree, append(tableProxy[:2:2], "type")),
			"address":     get(tree, append(tableProxy[:2:2], "address")),
		}
		if !old {
			want["capabilities"], got["capabilities"] = []any{"remap-ids"}, get(tree, append(tableProxy[:2:2], "capabilities"))
			want["exports"], got["exports"] = "true", get(tree, append(tableExports[:3:3], "enable_remote_snapshot_annotations"))
			want["unpack"], got["unpack"] = 2, 0
			if list, ok := get(tree, append(tableTransfer[:2:2], "unpack_config")).([]any); ok {
				got["unpack"] = len(list)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("as %s understands it:\n%s", version, diff)
		}
	}
}

// TestInstallChanged has somebody change the file between install and removal.
func TestInstallChanged(t *testing.T) {
	m := &machine{t.TempDir()}
	m.write(t, "etc/containerd/config.toml", commented)
	m.do(t, Install)
	const more = "\n[metrics]\n  address = \"127.0.0.1:1338\"\n"
	m.write(t, "etc/containerd/config.toml", m.files(t)["/etc/containerd/config.toml"]+more)
	if p := m.do(t, Install); len(p.Changes) > 1 {
		t.Errorf("a third time:\n%s", p.Diff())
	}
	p := m.do(t, removal)
	files := m.files(t)
	if diff := cmp.Diff(commented+more, files["/etc/containerd/config.toml"]); diff != "" {
		t.Error(diff)
	}
	if files["/etc/containerd/config.toml"+backupSuffix] != commented || !strings.Contains(strings.Join(p.Notes, " "), "has been changed") {
		t.Errorf("the first version is gone, or not told of: %q", p.Notes)
	}
}

// TestInstallRefuses has configurations that can't be edited. Nothing must be
// planned for them.
func TestInstallRefuses(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"version 1", "[plugins]\n  [plugins.cri]\n", "config migrate"},
		{"no TOML", "version = \n", "config.toml"},
		{"inline table", inline, "by hand"},
		{"value of several lines", "version = 3\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = '''\noverlayfs'''\n", "by hand"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := &machine{t.TempDir()}
			m.write(t, "etc/containerd/config.toml", row.text)
			if p, err := Install(Options{Root: m.root}); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%v, want %q; plan %+v", err, row.want, p)
			}
		})
	}
	if _, err := Install(Options{Root: t.TempDir(), Socket: "sock"}); err == nil {
		t.Error("a relative path is taken")
	}
}

// TestInstallFresh installs where containerd has no configuration.
func TestInstallFresh(t *testing.T) {
	m := &machine{t.TempDir()}
	m.do(t, Install)
	checkWithContainerd(t, m)
	unit := m.files(t)["/etc/systemd/system/graze.service"]
	for _, line := range []string{"ExecStart=/usr/local/bin/graze node --config /etc/graze/node.toml", "FileDescriptorStorePreserve=yes"} {
		if !strings.Contains(unit, line+"\n") {
			t.Errorf("unit has no line %q:\n%s", line, unit)
		}
	}
	// As 'systemctl enable' does.
	wants := filepath.Join(m.root, "etc/systemd/system/multi-user.target.wants")
	if err := errors.Join(os.MkdirAll(wants, 0o755), os.Symlink("/etc/systemd/system/graze.service", filepath.Join(wants, "graze.service"))); err != nil {
		t.Fatal(err)
	}
	m.do(t, removal)
	for path := range m.files(t) {
		if path != "/usr/local/bin/graze" && path != "/etc/graze/node.toml" {
			t.Errorf("%s stays", path)
		}
	}
}

// TestInstallLink has a configuration that is a link, as configuration management
// makes them.
func TestInstallLink(t *testing.T) {
	m := &machine{t.TempDir()}
	m.write(t, "etc/managed/config.toml", commented)
	m.write(t, "etc/containerd/other", "")
	link := filepath.Join(m.root, "etc/containerd/config.toml")
	if err := os.Symlink("../managed/config.toml", link); err != nil {
		t.Fatal(err)
	}
	m.do(t, Install)
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link has become %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(link); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if !strings.Contains(m.files(t)["/etc/managed/config.toml"], "proxy_plugins.graze") {
		t.Error("the file behind the link is not changed")
	}
}

// TestSecret installs a key, which must not be shown.
func TestSecret(t *testing.T) {
	m := &machine{t.TempDir()}
	p, err := Install(Options{Root: m.root, KeyFile: "/etc/graze/cluster.key", Key: []byte("hunter2")})
	if err != nil {
		t.Fatal(err)
	}
	if diff := p.Diff(); strings.Contains(diff, "hunter2") || !strings.Contains(diff, "cluster.key") {
		t.Errorf("diff:\n%s", diff)
	}
	if err := p.Apply(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(m.root, "etc/graze/cluster.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

// TestRemoveInUse refuses to go while there are snapshots.
func TestRemoveInUse(t *testing.T) {
	m := &machine{t.TempDir()}
	m.do(t, Install)
	m.write(t, "var/lib/graze/containerd/snapshots/1/view.json", "{}")
	var inUse *InUseError
	if _, err := removal(Options{Root: m.root}); !errors.As(err, &inUse) || inUse.Snapshots != 1 {
		t.Errorf("%v", err)
	}
	p, err := Remove(Options{Root: m.root}, true)
	if err != nil {
		t.Fatal("by force: ", err)
	}
	unmount := []string{"/usr/local/bin/graze", "umount", "--all", "--state", "/var/lib/graze", "--force"}
	stop := []string{"systemctl", "stop", "graze"}
	i := slices.IndexFunc(p.Steps, func(step []string) bool { return slices.Equal(step, unmount) })
	if i < 0 || i+1 == len(p.Steps) || !slices.Equal(p.Steps[i+1], stop) {
		t.Errorf("the steps %q do not take the mounts away before the service is stopped", p.Steps)
	}
}
