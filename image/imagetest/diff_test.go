package imagetest

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// makeTree makes a small tree with every kind of file that needs no root.
func makeTree(t *testing.T, dir string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.Mkdir(in("dir"), 0o755))
	must(t, os.WriteFile(in("file"), []byte("contents"), 0o644))
	must(t, os.WriteFile(in("dir/other"), []byte("contents"), 0o644))
	must(t, os.WriteFile(in("single"), []byte("contents"), 0o644))
	must(t, os.Symlink("file", in("symlink")))
	must(t, os.Link(in("file"), in("dir/hard")))
	must(t, unix.Mkfifo(in("fifo"), 0o644))
	must(t, unix.Setxattr(in("file"), "user.a", []byte("1"), 0))
	f, err := os.Create(in("sparse"))
	must(t, err)
	_, err = f.WriteAt([]byte("x"), 1<<20)
	must(t, err)
	must(t, f.Close())
	for _, name := range []string{"file", "dir/other", "single", "symlink", "fifo", "sparse", "dir", "."} {
		setTime(t, in(name), Epoch)
	}
}

func setTime(t *testing.T, name string, at time.Time) {
	t.Helper()
	ts := unix.NsecToTimespec(at.UnixNano())
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
}

// TestDiffFindsChanges changes one thing on disk at a time.
func TestDiffFindsChanges(t *testing.T) {
	keep := func(t *testing.T, name string, f func()) { // without a change of times
		f()
		setTime(t, name, Epoch)
	}
	tests := []struct {
		name   string
		change func(t *testing.T, dir string)
		want   string // the one difference
	}{
		{"nothing", func(t *testing.T, dir string) {}, ""},
		{"mode", func(t *testing.T, dir string) { must(t, os.Chmod(dir+"/single", 0o600)) }, `"single": mode 0644, 0600`},
		{"suid", func(t *testing.T, dir string) { must(t, os.Chmod(dir+"/single", 0o644|os.ModeSetuid)) }, `"single": mode 0644, 4644`},
		{"mode of a directory", func(t *testing.T, dir string) { must(t, os.Chmod(dir+"/dir", 0o700)) }, `"dir": mode 0755, 0700`},
		{"mtime", func(t *testing.T, dir string) { setTime(t, dir+"/single", Epoch.Add(1)) },
			`"single": mtime 2023-04-05T06:07:08Z, 2023-04-05T06:07:08.000000001Z`},
		{"mtime of a symlink", func(t *testing.T, dir string) { setTime(t, dir+"/symlink", Epoch.Add(time.Hour)) },
			`"symlink": mtime 2023-04-05T06:07:08Z, 2023-04-05T07:07:08Z`},
		{"content", func(t *testing.T, dir string) {
			keep(t, dir+"/single", func() { must(t, os.WriteFile(dir+"/single", []byte("Contents"), 0)) })
		}, `"single": content sha256`},
		{"xattr value", func(t *testing.T, dir string) {
			must(t, unix.Setxattr(dir+"/single", "user.b", []byte("\x00"), 0))
		}, `"single": xattr user.b none, "\x00"`},
		{"kind", func(t *testing.T, dir string) {
			must(t, os.Remove(dir+"/fifo"))
			must(t, os.WriteFile(dir+"/fifo", nil, 0o644))
			setTime(t, dir, Epoch)
		}, `"fifo": kind fifo, file`},
		{"removed", func(t *testing.T, dir string) {
			must(t, os.Remove(dir+"/fifo"))
			setTime(t, dir, Epoch)
		}, `"fifo": fifo in the first, missing in the second`},
		{"added", func(t *testing.T, dir string) {
			must(t, os.Symlink("x", dir+"/new\nline"))
			setTime(t, dir, Epoch)
		}, `"new\nline": missing in the first, symlink in the second`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			makeTree(t, dir)
			before := snapshot(t, dir)
			if d := Diff(before, before, DiffOptions{}); len(d) > 0 {
				t.Fatalf("a tree differs from itself: %q", d)
			}
			tt.change(t, dir)
			opts := SameFiles()
			opts.Ignore &^= Holes
			opts.IgnoreAt = nil
			d := Diff(before, snapshot(t, dir), opts)
			if tt.want == "" && len(d) > 0 || tt.want != "" && (len(d) != 1 || !strings.HasPrefix(d[0], tt.want)) {
				t.Errorf("differences %q, want %q", d, tt.want)
			}
		})
	}
}

// TestDiffFindsFields changes one field of a recorded node at a time, which
// also covers what can't be changed on disk, and checks that it can be ignored.
func TestDiffFindsFields(t *testing.T) {
	dir := t.TempDir()
	makeTree(t, dir)
	tree := snapshot(t, dir)
	tests := []struct {
		field  Fields
		what   string
		change func(n *Node)
	}{
		{Perm, "mode", func(n *Node) { n.Mode ^= 1 }},
		{Owner, "uid", func(n *Node) { n.UID++ }},
		{Owner, "gid", func(n *Node) { n.GID++ }},
		{Size, "size", func(n *Node) { n.Size++ }},
		{Blocks, "blocks", func(n *Node) { n.Blocks++ }},
		{NLink, "nlink", func(n *Node) { n.NLink++ }},
		{Rdev, "rdev", func(n *Node) { n.Rdev++ }},
		{MTime, "mtime", func(n *Node) { n.MTime = n.MTime.Add(1) }},
		{Ino, "ino", func(n *Node) { n.Ino++ }},
		{Target, "target", func(n *Node) { n.Link += "x" }},
		{Xattrs, "xattr user.a", func(n *Node) { n.Xattrs = map[string]string{"user.a": "2"} }},
		{Xattrs, "xattr user.a", func(n *Node) { n.Xattrs = nil }},
		{Content, "content", func(n *Node) { n.Sum[31]++ }},
		{Holes, "data", func(n *Node) { n.Data = nil }},
		{Groups, "hard link to", func(n *Node) { n.Group = "" }},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			n := *tree["file"]
			tt.change(&n)
			other := maps.Clone(tree)
			other["file"] = &n
			d := Diff(tree, other, DiffOptions{})
			if len(d) != 1 || !strings.HasPrefix(d[0], `"file": `+tt.what) {
				t.Errorf("differences %q, want one of %s", d, tt.what)
			}
			for name, opts := range map[string]DiffOptions{
				"Ignore":         {Ignore: tt.field},
				"IgnoreAt":       {IgnoreAt: map[string]Fields{"file": tt.field}},
				"Skip":           {Skip: map[string]bool{"file": true}},
				"Skip of parent": {Skip: map[string]bool{".": true}},
			} {
				if d := Diff(tree, other, opts); len(d) > 0 {
					t.Errorf("with %s: %q", name, d)
				}
			}
			if d := Diff(tree, other, DiffOptions{Ignore: ^tt.field, IgnoreDir: tt.field}); len(d) != 1 {
				t.Errorf("with all others ignored: %q", d)
			}
		})
	}
}

func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	makeTree(t, dir)
	tree := snapshot(t, dir)
	if len(tree) != 9 {
		t.Errorf("%d names", len(tree))
	}
	// The walk meets dir/hard before file.
	if tree["file"].Group != "dir/hard" || tree["dir/hard"].Group != "dir/hard" || tree["single"].Group != "" {
		t.Errorf("groups %q, %q, %q", tree["file"].Group, tree["dir/hard"].Group, tree["single"].Group)
	}
	if tree["file"].Sum != tree["dir/other"].Sum || tree["file"].Sum == tree["sparse"].Sum {
		t.Error("sums are wrong")
	}
	if d := tree["sparse"].Data; len(d) != 1 || d[0].Off == 0 || d[0].Off+d[0].Len != 1<<20+1 {
		t.Errorf("data of the sparse file: %v", d)
	}
	if tree["symlink"].Link != "file" || tree["file"].Xattrs["user.a"] != "1" {
		t.Errorf("symlink %+v, file %+v", tree["symlink"], tree["file"])
	}
	if _, err := Snapshot(dir + "/none"); err == nil {
		t.Error("no error without a directory")
	}
}

func BenchmarkSnapshot(b *testing.B) {
	needRoot(b)
	dir := b.TempDir()
	if err := unpackFlat(b.Context(), dir, archives(b, []Layer{SmallFiles("f", 10000)})); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		tree := snapshot(b, dir)
		if d := Diff(tree, tree, DiffOptions{}); len(d) > 0 {
			b.Fatal(d)
		}
	}
}
