package fusefs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"graze/chunk"
	"graze/image"
)

// chunkSize is that of the chunks of a testImage.
const chunkSize = 64 << 10

// A testImage is a layer whose files' bytes are at hand.
type testImage struct {
	entries []*image.Entry
	data    map[string][]byte // of regular files
	chunks  [][]byte
	byID    map[chunk.ID][]byte
	view    *image.View
}

func (im *testImage) add(e image.Entry) *image.Entry {
	e.MTime = mtime
	im.entries = append(im.entries, &e)
	return &e
}

func (im *testImage) file(name string, perm uint32, data []byte) *image.Entry {
	e := im.add(image.Entry{Name: name, Mode: unix.S_IFREG | perm, Size: int64(len(data))})
	im.data[name] = data
	for off := 0; off < len(data); off += chunkSize {
		p := data[off:min(off+chunkSize, len(data))]
		if strings.Trim(string(p), "\x00") == "" {
			continue // a hole
		}
		e.Extents = append(e.Extents, chunk.Extent{Off: int64(off), Len: int64(len(p)), Chunk: uint32(len(im.chunks))})
		im.chunks = append(im.chunks, p)
	}
	return e
}

// newImage has one of each kind of file, and enough of them to need more than
// one request for a directory.
func newImage() *testImage {
	im := &testImage{data: make(map[string][]byte)}
	im.add(image.Entry{Name: "./", Mode: unix.S_IFDIR | 0o755})
	im.add(image.Entry{Name: "usr/", Mode: unix.S_IFDIR | 0o755})
	im.add(image.Entry{Name: "usr/tmp/", Mode: unix.S_IFDIR | unix.S_ISVTX | 0o777, UID: 3, GID: 4})
	im.file("usr/small", 0o644, []byte("small\n")).UID = 1000
	im.file("usr/large", 0o755, pattern(3*chunkSize+77))
	im.file("usr/empty", 0o600, nil)
	im.file("usr/su", unix.S_ISUID|0o755, pattern(5000)).Xattrs = []image.Xattr{{Name: "user.a", Value: []byte("b\x00c")}}
	sparse := make([]byte, 10*chunkSize)
	copy(sparse[4*chunkSize:], "in the middle")
	im.file("usr/sparse", 0o644, sparse)
	im.file("usr/zeros", 0o644, make([]byte, 2*chunkSize))
	im.add(image.Entry{Name: "usr/hard", Hardlink: true, Link: "usr/small"})
	im.add(image.Entry{Name: "usr/link", Mode: unix.S_IFLNK | 0o777, Link: "../usr/large", GID: 9})
	im.add(image.Entry{Name: "usr/long", Mode: unix.S_IFLNK | 0o777, Link: strings.Repeat("x/", 100)})
	im.add(image.Entry{Name: "usr/fifo", Mode: unix.S_IFIFO | 0o644})
	im.add(image.Entry{Name: "usr/dev", Mode: unix.S_IFBLK | 0o660, Major: 259, Minor: 70_000})
	// Larger directories have other sizes on ext4.
	for i := range 30 {
		im.add(image.Entry{Name: fmt.Sprintf("usr/tmp/%02d", i), Mode: unix.S_IFDIR | 0o755})
		for j := range 50 {
			im.file(fmt.Sprintf("usr/tmp/%02d/%02d", i, j), 0o644, fmt.Appendf(nil, "file %d", i*100+j))
		}
	}
	return im
}

// openView writes the image's view and opens it.
func (im *testImage) openView(t *testing.T) {
	t.Helper()
	table := image.Table{Blobs: []chunk.Blob{"sha256:" + chunk.Blob(strings.Repeat("0", 64))}}
	im.byID = make(map[chunk.ID][]byte)
	var off int64
	for i, p := range im.chunks {
		size := int64(len(p))
		table.Spans = append(table.Spans, image.SpanRow{
			Codec: chunk.Raw, First: uint32(i), Count: 1, Off: off, Len: size, Start: off,
		})
		ref := chunk.Ref{ID: chunk.SHA256.Sum(p), Size: int32(size)}
		im.byID[ref.ID] = p
		table.Chunks = append(table.Chunks, image.ChunkRow{Ref: ref, Span: uint32(i)})
		off += size
	}
	layer := &image.Layer{
		Digest: table.Blobs[0], Size: off, Table: table,
		Entries: func(yield func(*image.Entry, error) bool) {
			for _, e := range im.entries {
				if !yield(e, nil) {
					return
				}
			}
		},
	}
	name := filepath.Join(t.TempDir(), "view")
	if err := image.WriteView(name, []*image.Layer{layer}, image.Info{}); err != nil {
		t.Fatal(err)
	}
	var err error
	if im.view, err = image.OpenView(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { im.view.Close() })
}

// ReadAt implements Files.
func (im *testImage) ReadAt(_ context.Context, ino uint64, p []byte, off int64) (int, error) {
	clear(p)
	for e := range im.view.Extents(ino, off, int64(len(p))) {
		ref, _ := im.view.Chunk(e.Chunk)
		data := im.byID[ref.ID][e.At:][:e.Len]
		if e.Off >= off {
			copy(p[e.Off-off:], data)
		} else {
			copy(p, data[off-e.Off:])
		}
	}
	return len(p), nil
}

// unpack makes the image's files in a directory.
func (im *testImage) unpack(t *testing.T, dir string) {
	t.Helper()
	check := func(e *image.Entry, err error) {
		if err != nil {
			t.Fatalf("unpack %s: %v", e.Name, err)
		}
	}
	for _, e := range im.entries {
		name := filepath.Join(dir, e.Name)
		if e.Hardlink {
			check(e, unix.Link(filepath.Join(dir, e.Link), name))
			continue
		}
		switch e.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			check(e, os.MkdirAll(name, 0o755))
		case unix.S_IFREG:
			check(e, os.WriteFile(name, im.data[e.Name], 0o644))
		case unix.S_IFLNK:
			check(e, unix.Symlink(e.Link, name))
		default:
			check(e, unix.Mknod(name, e.Mode, int(unix.Mkdev(e.Major, e.Minor))))
		}
		check(e, unix.Lchown(name, int(e.UID), int(e.GID)))
		if e.Mode&unix.S_IFMT != unix.S_IFLNK {
			check(e, unix.Chmod(name, e.Mode&0o7777))
		}
		for _, x := range e.Xattrs {
			check(e, unix.Lsetxattr(name, x.Name, x.Value, 0))
		}
	}
	for _, e := range im.entries {
		if !e.Hardlink {
			when := unix.Timespec{Sec: e.MTime.Sec, Nsec: int64(e.MTime.Nsec)}
			check(e, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, e.Name), []unix.Timespec{when, when}, unix.AT_SYMLINK_NOFOLLOW))
		}
	}
}

// TestTools compares what the programs of a system see of an image that is
// mounted with what they see of the same image unpacked.
func TestTools(t *testing.T) {
	needFUSE(t)
	im := newImage()
	im.openView(t)
	unpacked := t.TempDir()
	var st unix.Stat_t
	if err := unix.Stat(unpacked, &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != 4096 || st.Blocks != 8 {
		t.Skipf("the temporary folder's file system gives an empty directory %d bytes in %d blocks, where ext4 gives 4096 in 8: set TMPDIR", st.Size, st.Blocks)
	}
	im.unpack(t, unpacked)
	m := &mounted{dir: openDir(t)}
	server, err := Mount(m.dir, im.view, im, Config{Source: testSource, Trace: m.trace()})
	if err != nil {
		t.Fatal(err)
	}
	m.run(t, server)

	for _, tt := range []struct {
		name string
		args []string // of sh -c, run in the directory
	}{
		{"find", []string{`find . -printf '%P %y %m %n %U %G %s %b %T@ %A@ %l\n' | sort`}},
		{"ls", []string{`ls -lR --time-style=full-iso .`}},
		{"xattrs", []string{`getfattr -R -h -d -m - . 2>&1`}},
		{"du", []string{`du -sk . && du -s --apparent-size .`}},
		{"tar", []string{`tar --sort=name --format=gnu -cf - . | sha256sum`}},
		{"sparse tar", []string{`tar --sort=name -S -cf - . | tar -xOf - ./usr/sparse ./usr/zeros ./usr/large | sha256sum`}},
		{"digests", []string{`find . -type f -print0 | sort -z | xargs -0 sha256sum`}},
		{"stat", []string{`find . -print0 | sort -z | xargs -0 stat -c '%n %t %T %a %s %o %Y'`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := tool(t, "sh", "-c", "cd \"$1\" && "+tt.args[0], "sh", unpacked)
			got := tool(t, "sh", "-c", "cd \"$1\" && "+tt.args[0], "sh", m.dir)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s of the mount (-unpacked +mounted):\n%s", tt.name, diff)
			}
		})
	}
	t.Run("cp", func(t *testing.T) {
		copied := filepath.Join(t.TempDir(), "copy")
		tool(t, "cp", "-a", "--sparse=auto", m.dir, copied)
		tool(t, "diff", "-r", "--no-dereference", "-x", "fifo", "-x", "dev", unpacked, copied)
	})
	t.Run("statfs", func(t *testing.T) {
		var st unix.Statfs_t
		if err := unix.Statfs(m.dir, &st); err != nil {
			t.Fatal(err)
		}
		totals := im.view.Totals()
		if st.Files != uint64(totals.Inodes) || st.Blocks != uint64(totals.Blocks+7)/8 {
			t.Errorf("statfs: %d files, %d blocks; totals: %+v", st.Files, st.Blocks, totals)
		}
	})
	if s := m.Stats(); s.Failed != 0 || s.Interrupted != 0 {
		t.Errorf("stats: %+v", s)
	}
}

// TestViewOverlay runs an image as a container's root directory would lie.
func TestViewOverlay(t *testing.T) {
	needFUSE(t)
	im := newImage()
	im.openView(t)
	m := &mounted{dir: openDir(t)}
	server, err := Mount(m.dir, im.view, im, Config{Source: testSource, Trace: m.trace()})
	if err != nil {
		t.Fatal(err)
	}
	m.run(t, server)
	merged, _ := overlay(t, m.dir)
	for name, want := range im.data {
		got, err := os.ReadFile(filepath.Join(merged, name))
		if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if err := os.RemoveAll(filepath.Join(merged, "usr/tmp")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(merged, "usr/tmp")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

var _ Tree = (*image.View)(nil)
