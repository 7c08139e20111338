package image

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"graze/chunk"
)

// The functions below make entries of layers. Options change them further.

type option func(*Entry)

func dir(name string, perm uint32, opts ...option) *Entry {
	return entry(name, syscall.S_IFDIR|perm, opts...)
}

func file(name string, size int64, opts ...option) *Entry {
	return entry(name, syscall.S_IFREG|0o644, append([]option{func(e *Entry) { e.Size = size }}, opts...)...)
}

func symlink(name, target string, opts ...option) *Entry {
	return entry(name, syscall.S_IFLNK|0o777, append([]option{func(e *Entry) { e.Link = target }}, opts...)...)
}

func char(name string, major, minor uint32, opts ...option) *Entry {
	return entry(name, syscall.S_IFCHR|0o600, append([]option{func(e *Entry) { e.Major, e.Minor = major, minor }}, opts...)...)
}

func hardlink(name, target string) *Entry { return &Entry{Name: name, Hardlink: true, Link: target} }

func hidden(name string) *Entry {
	return file(path.Join(path.Dir(name), whiteout+path.Base(name)), 0)
}

func opaqueDir(name string) *Entry { return file(path.Join(name, opaque), 0) }

func entry(name string, mode uint32, opts ...option) *Entry {
	e := &Entry{Name: name, Mode: mode}
	for _, o := range opts {
		o(e)
	}
	return e
}

func mode(m uint32) option         { return func(e *Entry) { e.Mode = m } }
func owner(uid, gid uint32) option { return func(e *Entry) { e.UID, e.GID = uid, gid } }
func mtime(sec int64, nsec uint32) option {
	return func(e *Entry) { e.MTime = Time{sec, nsec} }
}
func xattr(name, value string) option {
	return func(e *Entry) { e.Xattrs = append(e.Xattrs, Xattr{name, []byte(value)}) }
}
func extent(off, n int64, chunkNo uint32, at int32) option {
	return func(e *Entry) {
		e.Extents = append(e.Extents, chunk.Extent{Off: off, Len: n, Chunk: chunkNo, At: at})
	}
}

// layer makes a layer of entries, without chunks.
func layer(entries ...*Entry) *Layer {
	return &Layer{
		Digest: "sha256:test",
		Format: TarGz,
		Entries: func(yield func(*Entry, error) bool) {
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
		},
	}
}

// withChunks gives a layer spans of one raw chunk for each of sizes. The
// contents of a chunk, as its digest has it, are tag and its number.
func withChunks(l *Layer, tag string, sizes ...int32) *Layer {
	l.Table.Blobs = []chunk.Blob{chunk.Blob("sha256:" + tag)}
	var off int64
	for i, size := range sizes {
		id, err := chunk.NewID(chunk.SHA256, sha256.Sum256([]byte(tag+strconv.Itoa(i))))
		if err != nil {
			panic(err)
		}
		l.Table.Chunks = append(l.Table.Chunks, ChunkRow{Ref: chunk.Ref{ID: id, Size: size}, Span: uint32(i)})
		l.Table.Spans = append(l.Table.Spans, SpanRow{
			Codec: chunk.Raw, First: uint32(i), Count: 1, Off: off, Len: int64(size), Start: off,
		})
		off += int64(size)
	}
	return l
}

// writeView writes the view of layers to a file and returns the file's name.
func writeView(t testing.TB, layers ...*Layer) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "view")
	if err := WriteView(name, layers, Info{}); err != nil {
		t.Fatal(err)
	}
	return name
}

// merged returns the view of layers.
func merged(t testing.TB, layers ...*Layer) *View {
	t.Helper()
	v, err := OpenView(writeView(t, layers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// encode returns the bytes of the view file of layers.
func encode(layers ...*Layer) ([]byte, error) {
	w, err := newViewWriter(layers, Info{})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Write(make([]byte, headerSize))
	out := bufio.NewWriter(&b)
	h := w.write(out)
	out.Flush()
	copy(b.Bytes(), h.encode())
	return b.Bytes(), nil
}

// buildView returns the view of layers without writing it to a file.
func buildView(layers ...*Layer) (*View, error) {
	file, err := encode(layers...)
	if err != nil {
		return nil, err
	}
	return decodeView(file)
}

// dump returns one line for each name in the view, sorted by path: path, mode,
// and those of the other attributes that are not what one expects.
func dump(v *View) string {
	var lines []string
	names := make(map[uint64]string) // the first of each inode
	var walk func(ino uint64, name string)
	walk = func(ino uint64, name string) {
		lines = append(lines, name+" "+describe(v, ino, names[ino]))
		if names[ino] == "" {
			names[ino] = name
		}
		for _, d := range v.ReadDir(ino, 0) {
			walk(d.Ino, path.Join(name, d.Name))
		}
	}
	walk(RootIno, "/")
	return strings.Join(lines, "\n")
}

// describe returns the attributes of an inode as they stand in a dump.
func describe(v *View, ino uint64, same string) string {
	a, _ := v.Attr(ino)
	var b strings.Builder
	fmt.Fprintf(&b, "%s%o", kinds[a.Mode&syscall.S_IFMT], a.Mode&0o7777)
	usual := uint32(1)
	switch a.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		usual = 2
		for _, d := range v.ReadDir(ino, 0) {
			if d.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				usual++
			}
		}
	case syscall.S_IFREG:
		fmt.Fprintf(&b, " %d", a.Size)
	case syscall.S_IFLNK:
		target, _ := v.Readlink(ino)
		b.WriteString(" -> " + target)
	case syscall.S_IFCHR, syscall.S_IFBLK:
		fmt.Fprintf(&b, " %d:%d", a.Major, a.Minor)
	}
	if a.NLink != usual {
		fmt.Fprintf(&b, " nlink=%d", a.NLink)
	}
	if a.UID != 0 || a.GID != 0 {
		fmt.Fprintf(&b, " owner=%d:%d", a.UID, a.GID)
	}
	if a.MTime != (Time{}) {
		fmt.Fprintf(&b, " mtime=%d.%d", a.MTime.Sec, a.MTime.Nsec)
	}
	for name, value := range v.Xattrs(ino) {
		fmt.Fprintf(&b, " %s=%q", name, value)
	}
	for e := range v.Extents(ino, 0, MaxFileSize) {
		ref, _ := v.Chunk(e.Chunk)
		fmt.Fprintf(&b, " %d+%d@%s/%d", e.Off, e.Len, ref.ID.String()[7:13], e.At)
	}
	if same != "" {
		b.WriteString(" same=" + same)
	}
	return b.String()
}

var kinds = map[uint32]string{
	syscall.S_IFREG: "f", syscall.S_IFDIR: "d", syscall.S_IFLNK: "l", syscall.S_IFCHR: "c",
	syscall.S_IFBLK: "b", syscall.S_IFIFO: "p", syscall.S_IFSOCK: "s",
}

// text joins lines as dump does.
func text(lines ...string) string { return strings.Join(lines, "\n") }
