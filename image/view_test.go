package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
)

func TestAttr(t *testing.T) {
	v := merged(t, layer(
		file("empty", 0), file("one", 1), file("page", 4096), file("more", 4097), file("huge", MaxFileSize),
		symlink("short", strings.Repeat("x", 59)), symlink("long", strings.Repeat("x", 60)),
		char("tty", 5, 1), entry("pipe", syscall.S_IFIFO|0o600),
		dir("d", 0o755), dir("d/e", 0o755), hardlink("again", "one"), hardlink("d/again", "one"),
	))
	type attr struct {
		nlink        uint32
		size, blocks int64
	}
	want := map[string]attr{
		"/":      {3, 4096, 8},
		"/d":     {3, 4096, 8},
		"/d/e":   {2, 4096, 8},
		"/empty": {1, 0, 0},
		"/one":   {3, 1, 8},
		"/page":  {1, 4096, 8},
		"/more":  {1, 4097, 16},
		"/huge":  {1, MaxFileSize, (1<<51 - 1) * 8},
		"/tty":   {1, 0, 0},
		"/pipe":  {1, 0, 0},
	}
	for name, w := range want {
		ino, err := v.Resolve(name)
		if err != nil {
			t.Error(err)
			continue
		}
		a, ok := v.Attr(ino)
		if got := (attr{a.NLink, a.Size, a.Blocks}); !ok || a.Ino != ino || got != w {
			t.Errorf("%s: got %v, want %v", name, got, w)
		}
	}
	for name, w := range map[string]attr{"short": {1, 59, 0}, "long": {1, 60, 8}} {
		ino, _ := v.Lookup(RootIno, name)
		a, _ := v.Attr(ino)
		if got := (attr{a.NLink, a.Size, a.Blocks}); got != w {
			t.Errorf("%s: got %v, want %v", name, got, w)
		}
	}
	for _, ino := range []uint64{0, 13, 1 << 32, 1<<64 - 1} {
		if a, ok := v.Attr(ino); ok {
			t.Errorf("inode %d exists: %v", ino, a)
		}
	}
}

func TestTotals(t *testing.T) {
	l := withChunks(layer(
		file("a", 5000, extent(0, 100, 0, 0)), hardlink("b", "a"), dir("d", 0o755), symlink("l", "a"), char("c", 1, 1),
	), "t", 100, 100)
	got := merged(t, l).Totals()
	want := Totals{Inodes: 5, Files: 1, Dirs: 2, Symlinks: 1, Names: 5, Bytes: 5000, Blocks: 16 + 8 + 8, Chunks: 1, Spans: 1}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	huge := merged(t, layer(file("a", MaxFileSize), file("b", MaxFileSize))).Totals()
	if huge.Bytes != 1<<63-1 || huge.Files != 2 {
		t.Errorf("sum of sizes that are too large is %d", huge.Bytes)
	}
}

func TestInodeNumbers(t *testing.T) {
	v := merged(t, layer(file("b/x", 1), file("a/y", 1), file("c", 1), hardlink("a/z", "c")))
	var got []string
	for _, name := range []string{"/", "/a", "/b", "/c", "/a/y", "/b/x"} {
		ino, err := v.Resolve(name)
		got = append(got, fmt.Sprint(name, " ", ino, " ", err))
	}
	want := []string{"/ 1 <nil>", "/a 2 <nil>", "/b 3 <nil>", "/c 4 <nil>", "/a/y 5 <nil>", "/b/x 6 <nil>"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	b, _ := v.Lookup(RootIno, "b")
	if v.Parent(b) != RootIno || v.Parent(RootIno) != RootIno || v.Parent(4) != 0 || v.Parent(99) != 0 {
		t.Error("wrong parent")
	}
}

// TestSameTree expects that views don't depend on how the layers came to what
// they show.
func TestSameTree(t *testing.T) {
	one, err := encode(layer(
		dir("d", 0o700, xattr("user.a", "1")), file("d/a", 1, xattr("user.b", "2")), file("d/b", 2), symlink("l", "x"),
	))
	if err != nil {
		t.Fatal(err)
	}
	other, err := encode(
		layer(symlink("l", "old"), file("gone", 7, xattr("user.c", "3")), file("d/b", 2)),
		layer(hidden("gone"), symlink("l", "x"), file("d/a", 1, xattr("user.b", "2")), dir("d", 0o700, xattr("user.a", "1"))),
	)
	if err != nil {
		t.Fatal(err)
	}
	if string(one) != string(other) {
		t.Errorf("view files of %d and %d bytes differ", len(one), len(other))
	}
}

func TestLookupReadDir(t *testing.T) {
	var entries []*Entry
	var names []string
	for i := range 300 {
		name := fmt.Sprintf("%x", i*i)
		names = append(names, name)
		entries = append(entries, file("d/"+name, int64(i)))
	}
	slices.Sort(names)
	v := merged(t, layer(entries...), layer(dir("empty", 0o755)))
	d, ok := v.Lookup(RootIno, "d")
	if !ok {
		t.Fatal("no d")
	}
	for from := range len(names) + 2 {
		var got []string
		for pos, e := range v.ReadDir(d, from) {
			if pos != from+len(got) {
				t.Fatalf("position %d after %d", pos, from+len(got))
			}
			if ino, ok := v.Lookup(d, e.Name); !ok || ino != e.Ino || e.Mode != syscall.S_IFREG|0o644 {
				t.Fatalf("lookup of %+v gives %d, %v", e, ino, ok)
			}
			got = append(got, e.Name)
		}
		if want := names[min(from, len(names)):]; !slices.Equal(got, want) {
			t.Fatalf("from %d: got %q, want %q", from, got, want)
		}
	}
	for _, name := range []string{"", ".", "..", "0/", "00", "zzz", "d", strings.Repeat("x", 999)} {
		if ino, ok := v.Lookup(d, name); ok {
			t.Errorf("found %q: %d", name, ino)
		}
	}
	f, _ := v.Lookup(d, "0")
	empty, _ := v.Lookup(RootIno, "empty")
	for _, ino := range []uint64{f, empty, 0, 1 << 40} {
		for _, e := range v.ReadDir(ino, 0) {
			t.Errorf("inode %d contains %+v", ino, e)
		}
		if _, ok := v.Lookup(ino, "0"); ok {
			t.Errorf("inode %d contains 0", ino)
		}
	}
	for range v.ReadDir(d, -5) {
		break
	}
}

func TestLookupAllocs(t *testing.T) {
	v := merged(t, layer(file("d/a", 1), file("d/b", 1)))
	d, _ := v.Lookup(RootIno, "d")
	n := testing.AllocsPerRun(100, func() {
		if ino, ok := v.Lookup(d, "b"); !ok || ino == 0 {
			t.Error("no b")
		}
		if _, ok := v.Attr(d); !ok {
			t.Error("no d")
		}
		for range v.ReadDir(d, 0) {
			continue
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestXattr(t *testing.T) {
	v := merged(t, layer(
		file("a", 0, xattr("user.b", "2"), xattr("user.a", "1")),
		file("b", 0, xattr("user.a", "1"), xattr("user.b", "2")),
		file("c", 0), file("d", 0, xattr("user.big", strings.Repeat("x", MaxXattrValue))),
	))
	if n := v.rows(secXattrEnds); n != 2 {
		t.Errorf("%d sets of xattrs, want 2", n)
	}
	a, _ := v.Lookup(RootIno, "a")
	if value, ok := v.Xattr(a, "user.b"); !ok || string(value) != "2" {
		t.Errorf("got %q, %v", value, ok)
	}
	c, _ := v.Lookup(RootIno, "c")
	d, _ := v.Lookup(RootIno, "d")
	if value, ok := v.Xattr(d, "user.big"); !ok || len(value) != MaxXattrValue {
		t.Errorf("got %d bytes, %v", len(value), ok)
	}
	for _, ino := range []uint64{a, c, 0, 99} {
		if value, ok := v.Xattr(ino, "user.c"); ok {
			t.Errorf("inode %d has %q", ino, value)
		}
	}
}

func TestReadlink(t *testing.T) {
	v := merged(t, layer(symlink("a", "/x"), symlink("b", "../y"), file("c", 1)))
	for name, want := range map[string]string{"a": "/x", "b": "../y"} {
		ino, _ := v.Lookup(RootIno, name)
		if got, ok := v.Readlink(ino); !ok || got != want {
			t.Errorf("%s: got %q, %v", name, got, ok)
		}
	}
	for _, ino := range []uint64{0, RootIno, 4, 99} {
		if got, ok := v.Readlink(ino); ok {
			t.Errorf("inode %d is a symlink to %q", ino, got)
		}
	}
}

func TestExtents(t *testing.T) {
	l := withChunks(layer(
		file("a", 40, extent(0, 10, 0, 5)),
		file("f", 100, extent(10, 10, 0, 0), extent(20, 20, 1, 3), extent(60, 10, 2, 0)),
		file("hole", 100),
	), "t", 50, 50, 50)
	v := merged(t, l)
	f, _ := v.Lookup(RootIno, "f")
	const maxInt64 = 1<<63 - 1
	tests := []struct {
		off, n int64
		want   []int64
	}{
		{0, 100, []int64{10, 20, 60}},
		{0, maxInt64, []int64{10, 20, 60}},
		{0, 10, nil},
		{0, 11, []int64{10}},
		{19, 1, []int64{10}},
		{19, 2, []int64{10, 20}},
		{39, 21, []int64{20}},
		{39, 22, []int64{20, 60}},
		{40, 20, nil},
		{69, 5, []int64{60}},
		{70, maxInt64, nil},
		{maxInt64, maxInt64, nil},
		{20, 0, nil},
		{20, -1, nil},
		{-5, 20, []int64{10}},
		{-1 << 63, maxInt64, nil},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d+%d", tt.off, tt.n), func(t *testing.T) {
			var got []int64
			for e := range v.Extents(f, tt.off, tt.n) {
				got = append(got, e.Off)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got extents at %v, want %v", got, tt.want)
			}
		})
	}
	got := slices.Collect(v.Extents(f, 25, 1))
	if want := []chunk.Extent{{Off: 20, Len: 20, Chunk: 1, At: 3}}; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	hole, _ := v.Lookup(RootIno, "hole")
	for _, ino := range []uint64{hole, RootIno, 0, 99} {
		for e := range v.Extents(ino, 0, 100) {
			t.Errorf("inode %d has %+v", ino, e)
		}
	}
}

func TestResolve(t *testing.T) {
	v := merged(t, layer(
		file("d/e/f", 1), symlink("d/up", "../.."), symlink("abs", "/d/e"), symlink("loop", "loop"),
		symlink("l0", "d"), symlink("out", "../../../d"), symlink("d/e/rel", "../up/abs/f"), symlink("dangling", "nowhere"),
	))
	e, _ := v.Resolve("d/e")
	f, _ := v.Resolve("d/e/f")
	if e == 0 || f == 0 {
		t.Fatal("d/e/f not found")
	}
	good := map[string]uint64{
		"": RootIno, "/": RootIno, ".": RootIno, "../..": RootIno, "/d/e/f": f, "//d/./e//f": f, "d/e/../e/f": f,
		"abs": e, "abs/f": f, "abs/../e": e, "d/up/d/e": e, "l0/e": e, "out/e/": e, "d/e/rel": f, "d/up": RootIno,
	}
	for path, want := range good {
		if got, err := v.Resolve(path); err != nil || got != want {
			t.Errorf("%q: got %d and error %v, want %d", path, got, err, want)
		}
	}
	bad := map[string]error{
		"x": fs.ErrNotExist, "d/x/y": fs.ErrNotExist, "dangling": fs.ErrNotExist, "d/e/f/g": ErrNotDir,
		"d/e/f/": ErrNotDir, "d/e/f/..": ErrNotDir, "loop": ErrManyLinks, "loop/x": ErrManyLinks,
	}
	for path, want := range bad {
		got, err := v.Resolve(path)
		var pathErr *fs.PathError
		if !errors.Is(err, want) || !errors.As(err, &pathErr) || pathErr.Path != path {
			t.Errorf("%q: got %d and error %v, want %v", path, got, err, want)
		}
	}
}

func TestInfo(t *testing.T) {
	name := filepath.Join(t.TempDir(), "view")
	want := Info{
		Layers: []LayerInfo{{Digest: "sha256:a", Size: 5, Format: EStargz, Index: "in the layer"}},
		Extra:  []byte(`{"ref":"r"}`),
	}
	if err := WriteView(name, nil, want); err != nil {
		t.Fatal(err)
	}
	v, err := OpenView(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, v.Info()); diff != "" {
		t.Error(diff)
	}
	if err := errors.Join(v.Close(), v.Close()); err != nil {
		t.Error(err)
	}
	if err := WriteView(name, nil, Info{Extra: []byte("{")}); err == nil {
		t.Error("no error for malformed extra")
	}
}

func TestWriteView(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "view")
	if err := WriteView(name, []*Layer{layer(file("a", 1))}, Info{}); err != nil {
		t.Fatal(err)
	}
	old, err := OpenView(name)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()

	failing := &Layer{Digest: "sha256:x", Entries: func(yield func(*Entry, error) bool) { yield(nil, fs.ErrPermission) }}
	if err := WriteView(name, []*Layer{failing}, Info{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got error %v, want that of the layer", err)
	}
	if err := WriteView(name, []*Layer{layer(file("b", 1))}, Info{}); err != nil {
		t.Fatal(err)
	}
	v, err := OpenView(name)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, ok := v.Lookup(RootIno, "b"); !ok {
		t.Error("view was not replaced")
	}
	if _, ok := old.Lookup(RootIno, "a"); !ok {
		t.Error("open view has changed")
	}

	if err := WriteView(filepath.Join(dir, "no", "view"), nil, Info{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v, want that the directory does not exist", err)
	}
	sub := filepath.Join(dir, "sub")
	if err := os.MkdirAll(filepath.Join(sub, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteView(sub, nil, Info{}); err == nil {
		t.Error("no error where a directory is in the way")
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 {
		t.Errorf("files were left behind: %v", list)
	}
}
