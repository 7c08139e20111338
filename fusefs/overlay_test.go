package fusefs

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// overlay lays a writable directory over the lower ones, as a snapshotter does
// for a container.
func overlay(t *testing.T, lower string) (merged, upper string) {
	t.Helper()
	base := openDir(t)
	if err := unix.Mount(testSource, base, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(base, unix.MNT_DETACH) })
	upper, work, merged := filepath.Join(base, "upper"), filepath.Join(base, "work"), filepath.Join(base, "merged")
	for _, dir := range []string{upper, work, merged} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work)
	if err != nil {
		t.Fatal("mount overlay: ", err)
	}
	t.Cleanup(func() { unix.Unmount(merged, unix.MNT_DETACH) })
	return merged, upper
}

func TestOverlay(t *testing.T) {
	tree := newTree()
	data := pattern(300_000)
	tree.dir("/dir")
	tree.file("/dir/file", 0o640, data).xattrs = map[string]string{"user.a": "b"}
	tree.file("/dir/gone", 0o644, data)
	tree.file("/exe", 0o755, self(t))
	tree.symlink("/link", "dir/file")
	hard := tree.file("/hard", 0o644, []byte("hard"))
	tree.hardlink("/dir/hard", hard)
	m := serve(t, tree)
	merged, upper := overlay(t, m.dir)
	at := func(name string) string { return filepath.Join(merged, name) }

	if got, err := os.ReadFile(at("link")); err != nil || string(got) != string(data) {
		t.Errorf("read through a link: %d bytes, %v", len(got), err)
	}
	c := helper("run", at("exe"))
	if err := c.Run(); err != nil || c.out.String() != "hello from uid 0" {
		t.Errorf("exec: %v, %s", err, &c.out)
	}

	// What is changed is copied up with all that belongs to it.
	f, err := os.OpenFile(at("dir/file"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal("open for writing: ", err)
	}
	if _, err := f.WriteString("more"); err != nil {
		t.Error(err)
	}
	f.Close()
	if got, err := os.ReadFile(at("dir/file")); err != nil || string(got) != string(data)+"more" {
		t.Errorf("after the copy up: %d bytes, %v", len(got), err)
	}
	p := make([]byte, 10)
	if n, err := unix.Getxattr(at("dir/file"), "user.a", p); err != nil || string(p[:n]) != "b" {
		t.Errorf("xattr after the copy up: %q, %v", p[:max(n, 0)], err)
	}
	if info, err := os.Stat(at("dir/file")); err != nil || info.Mode() != 0o640 {
		t.Errorf("stat after the copy up: %v, %v", info, err)
	}

	if err := os.Remove(at("dir/gone")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(at("dir/gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removed file: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(upper, "dir/gone"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		t.Errorf("whiteout: mode %o, %v", st.Mode, err)
	}
	if err := os.Rename(at("hard"), at("renamed")); err != nil {
		t.Error(err)
	}
	// A directory of the lower layer can't be renamed without redirect_dir, in
	// which case programs copy it.
	if err := os.Rename(at("dir"), at("moved")); err != nil && !errors.Is(err, unix.EXDEV) {
		t.Error(err)
	}
	entries, err := os.ReadDir(merged)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "dir exe link renamed" && got != "exe link moved renamed" {
		t.Errorf("merged directory has %s", got)
	}
	if got, err := os.ReadFile(m.path("dir/gone")); err != nil || len(got) != len(data) {
		t.Errorf("the image has changed: %v", err)
	}
}

// TestOverlayTwice lays an overlay over a directory of an overlay, as containers
// in containers have it. The kernel allows two file systems on another.
func TestOverlayTwice(t *testing.T) {
	tree := newTree()
	tree.file("/file", 0o644, []byte("data"))
	m := serve(t, tree)
	first, _ := overlay(t, m.dir)
	second, _ := overlay(t, first)
	if got, err := os.ReadFile(filepath.Join(second, "file")); err != nil || string(got) != "data" {
		t.Errorf("read: %q, %v", got, err)
	}
}

// TestIDMapped shows the mount with other owners, as it is for a container in
// a user namespace.
func TestIDMapped(t *testing.T) {
	tree := newTree()
	tree.file("/file", 0o600, []byte("data")).UID = 7
	m := serve(t, tree)
	c := helper("wait")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100_000, Size: 65536}}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := c.Start(); errors.Is(err, unix.EPERM) {
		t.Skip("user namespaces can't be made here: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill() })
	defer c.Wait()
	defer in.Close()
	userns, err := os.Open(filepath.Join("/proc", strconv.Itoa(c.Process.Pid), "ns/user"))
	if err != nil {
		t.Fatal(err)
	}
	defer userns.Close()
	fd, err := unix.OpenTree(unix.AT_FDCWD, m.dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd()),
	})
	if errors.Is(err, unix.EINVAL) && m.session.offered()&fuse.CAP_ALLOW_IDMAP == 0 {
		t.Skip("the kernel has no ID-mapped mounts of FUSE")
	} else if err != nil {
		t.Fatal("map the owners: ", err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, "file", &st, 0); err != nil || st.Uid != 100_007 {
		t.Errorf("owner %d, %v", st.Uid, err)
	}
	file, err := unix.Openat(fd, "file", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	p := make([]byte, 10)
	if n, err := unix.Read(file, p); err != nil || string(p[:n]) != "data" {
		t.Errorf("read: %q, %v", p[:max(n, 0)], err)
	}
}
