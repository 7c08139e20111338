package fusefs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A dirent is what getdents64(2) returns for a name.
type dirent struct {
	ino  uint64
	off  int64
	typ  byte
	name string
}

// getdents reads up to n entries from where the directory's descriptor stands;
// all if n is 0.
func getdents(t *testing.T, fd, n, bufSize int) []dirent {
	t.Helper()
	var all []dirent
	buf := make([]byte, bufSize)
	for n == 0 || len(all) < n {
		size, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatal("getdents: ", err)
		}
		if size == 0 {
			break
		}
		for p := buf[:size]; len(p) > 0; {
			e, reclen := parseDirent(p)
			all = append(all, e)
			p = p[reclen:]
		}
	}
	return all
}

// parseDirent parses the first struct linux_dirent64 of p.
func parseDirent(p []byte) (e dirent, reclen int) {
	e.ino = uint64(le(p[0:8]))
	e.off = le(p[8:16])
	reclen = int(le(p[16:18]))
	e.typ = p[18]
	name := p[19:reclen]
	e.name = string(name[:slices.Index(name, 0)])
	return e, reclen
}

func le(p []byte) int64 {
	var v int64
	for i, b := range p {
		v |= int64(b) << (8 * i)
	}
	return v
}

func openDirFD(t *testing.T, name string) int {
	t.Helper()
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// bigDir is a tree with 10,000 files in /d/big, and what getdents shows of it
// but for offsets.
func bigDir() (*memTree, []dirent) {
	tree := newTree()
	d := tree.dir("/d")
	big := tree.dir("/d/big")
	want := []dirent{{ino: big.Ino, typ: unix.DT_DIR, name: "."}, {ino: d.Ino, typ: unix.DT_DIR, name: ".."}}
	for i := range 10_000 {
		name := fmt.Sprintf("file-%05d", i)
		n := tree.file("/d/big/"+name, 0o644, nil)
		want = append(want, dirent{ino: n.Ino, typ: unix.DT_REG, name: name})
	}
	return tree, want
}

func withoutOffsets(entries []dirent) []dirent {
	entries = slices.Clone(entries)
	for i := range entries {
		entries[i].off = 0
	}
	return entries
}

func TestReadDir(t *testing.T) {
	tree, want := bigDir()
	m := serve(t, tree)
	big := m.path("d/big")
	fd := openDirFD(t, big)
	first := getdents(t, fd, 0, 32<<10)
	if !slices.Equal(withoutOffsets(first), want) {
		t.Fatalf("%d entries, not the %d expected, or in another order", len(first), len(want))
	}

	asked := m.Stats()
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		t.Fatal(err)
	}
	if again := getdents(t, fd, 0, 1000); !slices.Equal(again, first) {
		t.Errorf("after rewinding, %d entries", len(again))
	}
	if again := getdents(t, openDirFD(t, big), 0, 32<<10); !slices.Equal(again, first) {
		t.Errorf("opened again, %d entries", len(again))
	}
	var st unix.Stat_t
	if err := unix.Lstat(big+"/file-05000", &st); err != nil {
		t.Error(err)
	}
	if got := m.Stats(); got.Readdirs != asked.Readdirs || got.Lookups != asked.Lookups || got.Getattrs != asked.Getattrs {
		t.Errorf("the kernel does not keep directories or their entries: %+v, then %+v", asked, got)
	}

	// From any offset the rest follows, whatever was read before.
	for _, i := range []int{0, 1, 2, 3, 777, 5000, 9998, len(first) - 1} {
		for name, fd := range map[string]int{"same": fd, "new": openDirFD(t, big)} {
			if _, err := unix.Seek(fd, first[i].off, 0); err != nil {
				t.Fatal(err)
			}
			if rest := getdents(t, fd, 0, 4096); !slices.Equal(rest, first[i+1:]) {
				t.Errorf("%s descriptor, from the offset of entry %d on: %d entries, not %d", name, i, len(rest), len(first)-i-1)
			}
		}
	}
}

// TestReadDirOffsets checks the same where the kernel has not kept the
// directory.
func TestReadDirOffsets(t *testing.T) {
	tree, want := bigDir()
	m := serve(t, tree)
	big := m.path("d/big")
	fd := openDirFD(t, big)
	head := getdents(t, fd, 100, 2000)
	if n := len(head); n >= len(want) {
		t.Fatalf("read all %d entries", n)
	}
	other := openDirFD(t, big)
	if _, err := unix.Seek(other, head[50].off, 0); err != nil {
		t.Fatal(err)
	}
	if rest := getdents(t, other, 0, 2000); !slices.Equal(withoutOffsets(rest), want[51:]) {
		t.Errorf("%d entries after the 51st", len(rest))
	}
	if rest := getdents(t, fd, 0, 2000); !slices.Equal(withoutOffsets(rest), want[len(head):]) {
		t.Errorf("%d entries after the first %d", len(rest), len(head))
	}
	if _, err := unix.Seek(other, 1<<40, 0); err != nil {
		t.Fatal(err)
	}
	if rest := getdents(t, other, 0, 2000); len(rest) != 0 {
		t.Errorf("%d entries far beyond the end", len(rest))
	}
}

func TestReadDirRoot(t *testing.T) {
	tree := newTree()
	tree.dir("/empty")
	m := serve(t, tree)
	root := getdents(t, openDirFD(t, m.dir), 0, 4096)
	if len(root) != 3 || root[0].ino != 1 || root[1].name != ".." || root[1].ino != 1 {
		t.Errorf("root has %+v", root)
	}
	if empty := getdents(t, openDirFD(t, m.path("empty")), 0, 4096); len(empty) != 2 || empty[1].ino != 1 {
		t.Errorf("empty directory has %+v", empty)
	}
}

// TestHandles checks that a file handle outlives what the kernel remembers.
func TestHandles(t *testing.T) {
	tree := newTree()
	tree.dir("/dir")
	tree.dir("/dir/sub")
	tree.file("/dir/sub/file", 0o644, []byte("data"))
	first := serve(t, tree)
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, first.path("dir/sub/file"), 0)
	if err != nil {
		t.Fatal(err)
	}
	dir, _, err := unix.NameToHandleAt(unix.AT_FDCWD, first.path("dir/sub"), 0)
	if err != nil {
		t.Fatal(err)
	}
	second := serve(t, tree)
	root := openDirFD(t, second.dir)
	fd, err := unix.OpenByHandleAt(root, handle, unix.O_RDONLY)
	if err != nil {
		t.Fatal("open by handle: ", err)
	}
	defer unix.Close(fd)
	p := make([]byte, 10)
	if n, err := unix.Read(fd, p); err != nil || string(p[:n]) != "data" {
		t.Errorf("read by handle: %q, %v", p[:n], err)
	}
	fd, err = unix.OpenByHandleAt(root, dir, unix.O_RDONLY)
	if err != nil {
		t.Fatal("open directory by handle: ", err)
	}
	defer unix.Close(fd)
	if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil || name != second.path("dir/sub") {
		t.Errorf("directory opened by handle is %s, %v", name, err)
	}
	handle = unix.NewFileHandle(handle.Type(), append(make([]byte, len(handle.Bytes())-1), 0xff))
	if _, err := unix.OpenByHandleAt(root, handle, unix.O_RDONLY); !errors.Is(err, unix.ESTALE) {
		t.Errorf("open by a handle of no file: %v", err)
	}
}
