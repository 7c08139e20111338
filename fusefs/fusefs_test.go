package fusefs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"graze/image"
)

func TestLstat(t *testing.T) {
	tree := newTree()
	big := tree.file("/big", 0o640, nil)
	big.Size, big.Blocks = 5<<40+1, (5<<40+4096)/512
	big.UID, big.GID = 1_000_000, 4_000_000_000
	hard := tree.file("/hard", 0o600, []byte("x"))
	tree.dir("/dir")
	tree.hardlink("/dir/hard", hard)
	tree.add("/dir/sub", unix.S_IFDIR|unix.S_ISVTX|0o777)
	tree.file("/suid", unix.S_ISUID|0o755, nil)
	tree.file("/sgid", unix.S_ISGID|0o755, nil)
	tree.symlink("/symlink", "a/target")
	tree.add("/fifo", unix.S_IFIFO|0o644)
	tree.add("/socket", unix.S_IFSOCK|0o644)
	for name, dev := range map[string][2]uint32{
		"/null": {1, 3}, "/minor": {8, 0xfffff}, "/major": {0xfff, 256}, "/both": {259, 70000},
	} {
		n := tree.add(name, unix.S_IFCHR|0o666)
		n.Major, n.Minor = dev[0], dev[1]
	}
	old := tree.file("/old", 0o644, nil)
	old.MTime = image.Time{Sec: -86400, Nsec: 1}
	tree.file("/"+strings.Repeat("n", 255), 0o644, nil)
	tree.file("/not\xffutf8", 0o644, nil)
	m := serve(t, tree)

	var root unix.Stat_t
	if err := unix.Lstat(m.dir, &root); err != nil {
		t.Fatal(err)
	}
	check := func(name string) {
		n := tree.find(name)
		time := unix.Timespec{Sec: n.MTime.Sec, Nsec: int64(n.MTime.Nsec)}
		want := unix.Stat_t{
			Dev: root.Dev, Ino: n.Ino, Mode: n.Mode, Nlink: uint64(n.NLink), Uid: n.UID, Gid: n.GID,
			Size: n.Size, Blocks: n.Blocks, Blksize: 4096, Atim: time, Mtim: time, Ctim: time,
			Rdev: unix.Mkdev(n.Major, n.Minor),
		}
		var got unix.Stat_t
		if err := unix.Lstat(m.path(name), &got); err != nil {
			t.Errorf("lstat %q: %v", name, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("lstat %q (-want +got):\n%s", name, diff)
		}
	}
	for _, e := range tree.nodes[image.RootIno].entries {
		check("/" + e.Name)
	}
	for _, name := range []string{"/", "/dir/hard", "/dir/sub"} {
		check(name)
	}

	asked := m.Stats()
	for range 3 {
		check("/dir/hard")
		var st unix.Stat_t
		if err := unix.Lstat(m.path("none"), &st); err != unix.ENOENT {
			t.Errorf("lstat of a missing name: %v", err)
		}
	}
	if got := m.Stats(); got.Lookups != asked.Lookups+1 || got.Getattrs != asked.Getattrs {
		t.Errorf("the kernel keeps neither entries nor what is missing: %+v, then %+v", asked, got)
	}
}

// TestDeviceNumbers compares with what mknod(2) makes of a device number.
func TestDeviceNumbers(t *testing.T) {
	tree := newTree()
	devices := map[string][2]uint32{"zero": {0, 0}, "large": {4095, 1 << 19}, "minor": {1, 256}}
	for name, dev := range devices {
		n := tree.add("/"+name, unix.S_IFBLK|0o600)
		n.Major, n.Minor = dev[0], dev[1]
	}
	m := serve(t, tree)
	dir := t.TempDir()
	for name, dev := range devices {
		if err := unix.Mknod(dir+"/"+name, unix.S_IFBLK|0o600, int(unix.Mkdev(dev[0], dev[1]))); err != nil {
			t.Skip(err)
		}
		var want, got unix.Stat_t
		if err := errors.Join(unix.Lstat(dir+"/"+name, &want), unix.Lstat(m.path(name), &got)); err != nil {
			t.Fatal(err)
		}
		if got.Rdev != want.Rdev {
			t.Errorf("%s: device %#x, but mknod makes %#x", name, got.Rdev, want.Rdev)
		}
	}
}

func TestReadlink(t *testing.T) {
	tree := newTree()
	long := strings.Repeat("x/", 2047)
	tree.symlink("/short", "s")
	tree.symlink("/long", long)
	m := serve(t, tree)
	for range 2 {
		for name, want := range map[string]string{"short": "s", "long": long} {
			if got, err := os.Readlink(m.path(name)); err != nil || got != want {
				t.Errorf("readlink %s: %q, %v", name, got, err)
			}
		}
	}
	if n := m.Stats().Readlinks; n != 2 {
		t.Errorf("the kernel asked %d times for 2 links", n)
	}
	if _, err := os.Readlink(m.dir); !errors.Is(err, unix.EINVAL) {
		t.Errorf("readlink of a directory: %v", err)
	}
}

func TestXattr(t *testing.T) {
	tree := newTree()
	large := strings.Repeat("v", 60_000)
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	tree.file("/file", 0o644, nil).xattrs = map[string]string{
		"user.empty": "", "user.large": large, "trusted.t": "t", "security.capability": capability,
	}
	tree.file("/none", 0o644, nil)
	m := serve(t, tree)
	file, none := m.path("file"), m.path("none")

	for _, tt := range []struct {
		file, name string
		size       int
		want       string
		n          int
		err        error
	}{
		{file, "user.empty", 10, "", 0, nil},
		{file, "user.empty", 0, "", 0, nil},
		{file, "trusted.t", 10, "t", 1, nil},
		{file, "trusted.t", 0, "", 1, nil},
		{file, "security.capability", 20, capability, 20, nil},
		{file, "user.large", 60_000, large, 60_000, nil},
		{file, "user.large", 59_999, "", 0, unix.ERANGE},
		{file, "user.large", 0, "", 60_000, nil},
		{file, "user.none", 10, "", 0, unix.ENODATA},
		{none, "user.none", 0, "", 0, unix.ENODATA},
	} {
		p := make([]byte, tt.size)
		n, err := unix.Lgetxattr(tt.file, tt.name, p)
		if err != tt.err || err == nil && (n != tt.n || tt.size > 0 && string(p[:n]) != tt.want) {
			t.Errorf("getxattr %s %s in %d bytes: %d, %v", tt.file, tt.name, tt.size, n, err)
		}
	}

	want := "security.capability\x00trusted.t\x00user.empty\x00user.large\x00"
	p := make([]byte, len(want))
	if n, err := unix.Llistxattr(file, p); err != nil || string(p[:n]) != want {
		t.Errorf("listxattr: %q, %v", p, err)
	}
	if n, err := unix.Llistxattr(file, nil); err != nil || n != len(want) {
		t.Errorf("size of listxattr: %d, %v", n, err)
	}
	if _, err := unix.Llistxattr(file, p[1:]); err != unix.ERANGE {
		t.Errorf("listxattr in too few bytes: %v", err)
	}
	if n, err := unix.Llistxattr(none, p); err != nil || n != 0 {
		t.Errorf("listxattr of none: %d, %v", n, err)
	}
}

func TestRead(t *testing.T) {
	tree := newTree()
	data := pattern(3<<20 + 123)
	tree.file("/file", 0o644, data)
	tree.file("/empty", 0o644, nil)
	m := serve(t, tree)
	f, err := os.Open(m.path("file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(len(data))
	for _, tt := range []struct{ off, n, want int64 }{
		{0, 1, 1},
		{0, size, size},
		{1<<20 - 1, 2, 2},
		{size - 1, 1, 1},
		{size - 1, 10, 1},
		{size - 5000, 10_000, 5000},
		{size, 1, 0},
		{size + 1, 4096, 0},
		{size + 1<<40, 4096, 0},
	} {
		p := make([]byte, tt.n)
		n, err := unix.Pread(int(f.Fd()), p, tt.off)
		if err != nil || int64(n) != tt.want {
			t.Errorf("pread of %d at %d: %d, %v; want %d", tt.n, tt.off, n, err, tt.want)
		} else if n > 0 && !bytes.Equal(p[:n], data[tt.off:][:n]) {
			t.Errorf("pread of %d at %d gave other bytes", tt.n, tt.off)
		}
	}
	if p, err := os.ReadFile(m.path("empty")); err != nil || len(p) != 0 {
		t.Errorf("read of an empty file: %d bytes, %v", len(p), err)
	}

	read := m.Stats()
	if got, err := os.ReadFile(m.path("file")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("second read: %d bytes, %v", len(got), err)
	}
	if got := m.Stats(); got.Reads != read.Reads {
		t.Errorf("the kernel did not keep the pages of a file: %d reads, then %d", read.Reads, got.Reads)
	}
	if read.ReadBytes < size || read.Latency.Count != read.Reads || read.Latency.Quantile(0.99) == 0 {
		t.Errorf("stats of reads: %+v", read)
	}
}

func TestReadParallel(t *testing.T) {
	tree := newTree()
	const files = 8
	data := make([][]byte, files)
	for i := range data {
		data[i] = pattern(1<<20 + i*1000)
		tree.file(fmt.Sprintf("/%d", i), 0o644, data[i])
	}
	m := serve(t, tree)
	var wg sync.WaitGroup
	for i := range data {
		for range 2 {
			wg.Go(func() {
				if got, err := os.ReadFile(m.path(fmt.Sprint(i))); err != nil || !bytes.Equal(got, data[i]) {
					t.Errorf("file %d: %d bytes, %v", i, len(got), err)
				}
			})
		}
	}
	wg.Wait()
}

// TestReadError checks that what Files fails with is EIO, is reported once and
// is not remembered by the kernel, and that a short read is not taken for the
// end of the file.
func TestReadError(t *testing.T) {
	tree := newTree()
	data := pattern(8192)
	tree.file("/file", 0o644, data)
	var mu sync.Mutex
	var fail func(n int) (int, error)
	tree.readAt = func(ctx context.Context, ino uint64, p []byte, off int64) (int, error) {
		n, err := tree.read(ctx, ino, p, off)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && fail != nil {
			return fail(n)
		}
		return n, err
	}
	m := serve(t, tree)
	for _, tt := range []struct {
		name string
		fail func(n int) (int, error)
		want string
	}{
		{"error", func(int) (int, error) { return 0, errors.New("the registry is on fire") }, "on fire"},
		{"canceled for another reason", func(int) (int, error) { return 0, context.Canceled }, "canceled"},
		{"short", func(n int) (int, error) { return n - 1, nil }, "unexpected EOF"},
		{"short with EOF", func(n int) (int, error) { return n - 2, io.EOF }, "unexpected EOF"},
		{"panic", func(int) (int, error) { panic("ouch") }, "ouch"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mu.Lock()
			fail = tt.fail
			mu.Unlock()
			m.mu.Lock()
			m.failures = nil
			m.mu.Unlock()
			failed := m.Stats().Failed
			for range 3 {
				if _, err := os.ReadFile(m.path("file")); !errors.Is(err, unix.EIO) {
					t.Errorf("read: %v", err)
				}
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if len(m.failures) != 1 || !strings.Contains(m.failures[0].Err.Error(), tt.want) {
				t.Errorf("reported %+v", m.failures)
			}
			if n := m.Stats().Failed - failed; n < 3 {
				t.Errorf("%d failures counted", n)
			}
		})
	}
	mu.Lock()
	fail = nil
	mu.Unlock()
	if got, err := os.ReadFile(m.path("file")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read after the failures: %d bytes, %v", len(got), err)
	}
}

func TestMmap(t *testing.T) {
	tree := newTree()
	data := pattern(2<<20 + 5)
	tree.file("/file", 0o644, data)
	m := serve(t, tree)
	c := helper("mmap", m.path("file"))
	if err := c.Run(); err != nil {
		t.Fatal(err, c.out.String())
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(data)); c.out.String() != want {
		t.Errorf("digest of the mapped file is %s, not %s", &c.out, want)
	}
}

// self returns the test binary.
func self(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestExec(t *testing.T) {
	tree := newTree()
	exe := self(t)
	tree.file("/plain", 0o755, exe)
	suid := tree.file("/suid", unix.S_ISUID|0o755, exe)
	suid.UID = 4321
	m := serve(t, tree)
	for name, want := range map[string]string{"plain": "hello from uid 0", "suid": "hello from uid 4321"} {
		c := helper("run", m.path(name))
		if err := c.Run(); err != nil || c.out.String() != want {
			t.Errorf("%s: %v, %q", name, err, c.out.String())
		}
	}
}

func TestPermissions(t *testing.T) {
	// A POSIX ACL, version 2: user::rw-, user:65534:---, group::rw-, mask::rw-, other::r--
	acl := "\x02\x00\x00\x00" +
		"\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x00\x00\xfe\xff\x00\x00" + "\x04\x00\x06\x00\xff\xff\xff\xff" +
		"\x10\x00\x06\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff"
	tree := newTree()
	tree.file("/open", 0o644, nil)
	tree.file("/root", 0o600, nil)
	tree.file("/mine", 0o400, nil).UID = 65534
	tree.file("/group", 0o640, nil).GID = 65534
	tree.add("/closed", unix.S_IFDIR|0o700)
	tree.file("/closed/file", 0o644, nil)
	tree.file("/acl", 0o664, nil).xattrs = map[string]string{"system.posix_acl_access": acl}
	n := tree.add("/null", unix.S_IFCHR|0o666)
	n.Major, n.Minor = 1, 3
	m := serve(t, tree)
	var names, want []string
	for name, result := range map[string]string{
		"open": "<nil>", "root": "permission denied", "mine": "<nil>", "group": "<nil>",
		"closed/file": "permission denied", "acl": "permission denied", "null": "<nil>",
	} {
		names = append(names, m.path(name))
		want = append(want, result)
	}
	c := helper("openall", names...)
	asNobody(c)
	if err := c.Run(); err != nil {
		t.Fatal(err, c.out.String())
	}
	for i, got := range strings.Split(strings.TrimSpace(c.out.String()), "\n") {
		if got != want[i] {
			t.Errorf("nobody opens %s: %s, want %s", names[i], got, want[i])
		}
	}
	p := make([]byte, 100)
	if n, err := unix.Getxattr(m.path("acl"), "system.posix_acl_access", p); err != nil || string(p[:n]) != acl {
		t.Errorf("the ACL is shown as %x, %v", p[:max(n, 0)], err)
	}
}

func TestReadOnly(t *testing.T) {
	tree := newTree()
	tree.file("/file", 0o666, []byte("data"))
	tree.add("/dir", unix.S_IFDIR|0o777)
	m := serve(t, tree)
	file, dir, none := m.path("file"), m.path("dir"), m.path("none")
	ops := map[string]func() error{
		"open":     func() error { return errOf(unix.Open(file, unix.O_RDWR, 0)) },
		"truncate": func() error { return unix.Truncate(file, 0) },
		"create":   func() error { return errOf(unix.Open(none, unix.O_CREAT|unix.O_WRONLY, 0o666)) },
		"tmpfile":  func() error { return errOf(unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o666)) },
		"mkdir":    func() error { return unix.Mkdir(none, 0o777) },
		"mknod":    func() error { return unix.Mknod(none, unix.S_IFIFO|0o666, 0) },
		"symlink":  func() error { return unix.Symlink("x", none) },
		"link":     func() error { return unix.Link(file, none) },
		"rename":   func() error { return unix.Rename(file, none) },
		"unlink":   func() error { return unix.Unlink(file) },
		"rmdir":    func() error { return unix.Rmdir(dir) },
		"chmod":    func() error { return unix.Chmod(file, 0o600) },
		"chown":    func() error { return unix.Lchown(file, 1, 1) },
		"utimes":   func() error { return unix.Utimes(file, make([]unix.Timeval, 2)) },
		"setxattr": func() error { return unix.Setxattr(file, "user.x", []byte("x"), 0) },
		"rmxattr":  func() error { return unix.Removexattr(file, "user.x") },
		"access":   func() error { return unix.Access(file, unix.W_OK) },
	}
	check := func(t *testing.T) {
		for name, op := range ops {
			if err := op(); err != unix.EROFS {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	t.Run("mount", check)

	// Root can make the mount writable, but not the image.
	if err := unix.Mount("", m.dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	delete(ops, "access")
	delete(ops, "tmpfile") // EOPNOTSUPP or EROFS, by version of the kernel
	ops["open"] = func() error {
		fd, err := unix.Open(file, unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return errOf(unix.Write(fd, []byte("x")))
	}
	ops["fallocate"] = func() error {
		fd, err := unix.Open(file, unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fallocate(fd, 0, 0, 1<<20)
	}
	t.Run("remounted", check)
}

func errOf(_ int, err error) error { return err }

func TestSeek(t *testing.T) {
	tree := newTree()
	tree.file("/file", 0o644, pattern(10_000))
	m := serve(t, tree)
	f, err := os.Open(m.path("file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, tt := range []struct {
		off    int64
		whence int
		want   int64
		err    error
	}{
		{0, unix.SEEK_DATA, 0, nil},
		{9999, unix.SEEK_DATA, 9999, nil},
		{10_000, unix.SEEK_DATA, 0, unix.ENXIO},
		{0, unix.SEEK_HOLE, 10_000, nil},
		{9999, unix.SEEK_HOLE, 10_000, nil},
		{10_000, unix.SEEK_HOLE, 0, unix.ENXIO},
		{1 << 40, unix.SEEK_HOLE, 0, unix.ENXIO},
		{-1, unix.SEEK_END, 9999, nil},
	} {
		got, err := unix.Seek(int(f.Fd()), tt.off, tt.whence)
		if err != tt.err || err == nil && got != tt.want {
			t.Errorf("lseek %d %d: %d, %v; want %d, %v", tt.off, tt.whence, got, err, tt.want, tt.err)
		}
	}
}

func TestStatfs(t *testing.T) {
	tree := newTree()
	tree.file("/file", 0o644, pattern(1<<20+1))
	tree.symlink("/link", "x")
	m := serve(t, tree)
	var st unix.Statfs_t
	if err := unix.Statfs(m.path("file"), &st); err != nil {
		t.Fatal(err)
	}
	st.Fsid, st.Spare = unix.Fsid{}, [4]int64{}
	want := unix.Statfs_t{
		Type: unix.FUSE_SUPER_MAGIC, Bsize: 4096, Frsize: 4096, Namelen: 255,
		Blocks: 257 + 1, Files: 3, Flags: unix.ST_RDONLY | unix.ST_RELATIME | 0x20, // ST_VALID
	}
	if diff := cmp.Diff(want, st); diff != "" {
		t.Errorf("statfs (-want +got):\n%s", diff)
	}
}
