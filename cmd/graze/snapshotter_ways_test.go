package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
)

// findImages are settings by which graze finds out itself what is being pulled.
func findImages(registry string) string {
	return fmt.Sprintf("[registry]\nplain-http-hosts = [%q]\n", registry)
}

// TestContainerdSilent pulls with clients that don't tell which image they pull.
// graze looks for it in containerd, if it may. The client of version 1 has all
// layers fetched before it asks.
func TestContainerdSilent(t *testing.T) {
	for _, row := range []struct {
		name string
		ask  bool
		want [2]string // reason, by version
	}{
		{"asked", true, [2]string{"fetched", "lazy"}},
		{"not asked", false, [2]string{"fetched", "no-image-name"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			containerds(t, func(t *testing.T, cfg containerdConfig) {
				needFUSE(t)
				only := &rig{reg: startRegistry(t)}
				cfg.silent, cfg.hidden = true, !row.ask
				r := only.join(t, cfg, findImages(only.reg.addr), "", nil)
				ref, _ := r.probeImage(t, "silent", 1, imagetest.Gzip(gzip.BestSpeed))
				graze(t, "index", "--state", t.TempDir(), "--push", ref)
				r.ctd.ctr(t, "image", "pull", "--plain-http", "--snapshotter", "graze", ref)
				want := row.want[0]
				if cfg.bin != "" {
					want = row.want[1]
				}
				var got []string
				for _, i := range r.node.stats(t).Containerd.Images {
					got = append(got, i.Reason)
				}
				if got = slices.Compact(got); !slices.Equal(got, []string{want}) {
					t.Errorf("the reasons are %q", got)
				}
				if out := graze(t, "ps", "--state", r.node.state); !strings.Contains(out, want) {
					t.Errorf("ps prints\n%s", out)
				}
				if out, code := r.ctd.run(t, "graze", ref, "report", "/probe"); code != 7 {
					t.Errorf("the container ends with %d and prints\n%s", code, out)
				}
			})
		})
	}
}

// TestContainerdChain prepares snapshots on all layers of an image, and on what was
// committed upon one.
func TestContainerdChain(t *testing.T) {
	r := startRig(t, containerdConfig{}, "")
	ref, _ := r.probeImage(t, "chain", 1, imagetest.Gzip(gzip.BestSpeed))
	r.pullLazily(t, ref)
	snapshots := func(args ...string) string {
		t.Helper()
		return r.ctd.ctr(t, append([]string{"snapshots", "--snapshotter", "graze"}, args...)...)
	}
	// The image's layers are a chain: each line has a snapshot and its parent.
	child := map[string]string{}
	for line := range strings.Lines(snapshots("ls")) {
		if f := strings.Fields(line); len(f) == 3 {
			child[f[1]] = f[0]
		} else if f[0] != "KEY" {
			child[""] = f[0]
		}
	}
	mounted := func(key, parent string) string {
		t.Helper()
		dir := t.TempDir()
		// It prints a command that mounts the snapshot.
		command := snapshots("prepare", "--target", dir, key, parent)
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		return dir
	}
	want := [][]string{{"etc", "tree"}, {"bulk", "etc", "tree"}, {"bulk", "etc", "tree"}, {"bulk", "etc", "probe", "tree"}, {"bulk", "etc", "probe", "tree"}}
	chain := child[""]
	for i, names := range want {
		dir := mounted(fmt.Sprint("key-", i), chain)
		if got := ls(t, dir); !slices.Equal(got, names) {
			t.Errorf("upon layer %d is %q", i, got)
		}
		if _, err := os.Stat(filepath.Join(dir, "etc/gone")); (err == nil) != (i < 3) {
			t.Errorf("upon layer %d a file that layer 4 removes is there or not: %v", i, err)
		}
		chain = child[chain]
	}
	if n := r.views(t); n != len(want) {
		t.Errorf("%d views are mounted", n)
	}

	// A layer of one's own upon one of the image's.
	dir := mounted("build", child[child[""]])
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "own"), nil, 0o644), os.Remove(filepath.Join(dir, "etc/motd")), unix.Unmount(dir, 0)); err != nil {
		t.Fatal(err)
	}
	snapshots("commit", "built", "build")
	dir = mounted("upon", "built")
	if got := ls(t, dir); !slices.Equal(got, []string{"bulk", "etc", "own", "tree"}) {
		t.Errorf("upon one's own layer is %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "etc/motd")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a removed file is there: ", err)
	}
	if n := r.views(t); n != len(want) {
		t.Errorf("%d views are mounted", n)
	}
}

// TestContainerdUserNamespace runs a container whose root is nobody on the host.
// The IDs of the image's files are mapped by its mounts.
func TestContainerdUserNamespace(t *testing.T) {
	containerds(t, func(t *testing.T, cfg containerdConfig) {
		if cfg.bin == "" {
			return // version 1 can't
		}
		r := startRig(t, cfg, "")
		// Who enters the container's root file system must be able to get there.
		for dir := r.ctd.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		ref, _ := r.probeImage(t, "mapped", 1, imagetest.Gzip(gzip.BestSpeed))
		r.pullLazily(t, ref)
		r.ctd.ctr(t, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
		var out [2]string
		for i, snapshotter := range []string{"graze", "overlayfs"} {
			code := 0
			out[i], code = r.ctd.runWith(t, []string{"--uidmap", "0:100000:65536", "--gidmap", "0:200000:65536", "--remap-labels"}, snapshotter, ref, snapshotter, "/probe")
			if code != 7 {
				t.Errorf("with %s the container ends with %d and prints\n%s", snapshotter, code, out[i])
			}
		}
		if out[0] != out[1] || !strings.Contains(out[0], `"/etc/moved" 100644 0:0`) {
			t.Errorf("the container prints\n%s\nand with overlayfs\n%s", out[0], out[1])
		}
	})
}

// ls returns the names in a folder.
func ls(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		names = append(names, d.Name())
	}
	return names
}

// TestContainerdOutage starts a container of an image that is known, and ends the
// node while a read waits, both with a registry that does not answer.
func TestContainerdOutage(t *testing.T) {
	needFUSE(t)
	only := &rig{reg: startRegistry(t)}
	front, freeze := freezable(t, only.reg.addr)
	only.reg.addr = front
	ref, _ := only.probeImage(t, "outage", 1, imagetest.Gzip(gzip.BestSpeed))
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	r := only.join(t, containerdConfig{}, "", "", nil)
	r.pullLazily(t, ref)
	// What the container needs to start is read once.
	r.ctd.start(t, "graze", ref, "before")
	r.ctd.stop(t, "before")
	freeze()
	r.ctd.start(t, "graze", ref, "waits")
	if n := r.views(t); n != 1 {
		t.Errorf("%d views are mounted", n)
	}
	read := exec.Command("cat", filepath.Join(r.ctd.rootfs("waits"), "bulk/random"))
	if err := read.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a read waits for the registry", func() bool {
		return strings.Contains(procState(t, read.Process.Pid), "D")
	})
	if err := r.node.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the read ends", func() bool { return read.ProcessState != nil || read.Wait() != nil })
	eventually(t, "no view is left", func() bool { return r.views(t) == 0 })
}

// procState returns the state of a process.
func procState(t *testing.T, pid int) string {
	t.Helper()
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(p), ") ")
	return rest[:1]
}

// freezable passes requests on to a registry until it is frozen: from then on it
// answers none.
func freezable(t *testing.T, registry string) (addr string, freeze func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	frozen, stop := context.WithCancel(context.Background())
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if frozen.Err() != nil {
			<-ctx.Done()
			return
		}
		proxy.ServeHTTP(w, req)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		cancel()
		stop()
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return ln.Addr().String(), stop
}
