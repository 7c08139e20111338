package targz

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"graze/chunk"
	"graze/image"
	"graze/image/inflate/inflatetest"
)

func TestOpenInfo(t *testing.T) {
	x := build(t, gz(t, 6, gzip.Header{}, mixed(t)), small)
	info, err := ReadInfo(x.tree)
	if err != nil {
		t.Fatal(err)
	}
	want := x.info
	want.Tree = Blob{}
	if info != want {
		t.Errorf("info is %+v, not %+v", info, want)
	}
	if l := x.layer; l.Format != image.TarGz || int64(len(l.Table.Spans)) != info.Spans+info.Windows ||
		!slices.Equal(l.Table.Blobs, []chunk.Blob{info.Layer.Digest, info.Checkpoints.Digest}) {
		t.Errorf("layer has %d spans of blobs %v", len(l.Table.Spans), l.Table.Blobs)
	}
}

// TestOpenTwice ranges over the entries more than once, and not to the end.
func TestOpenTwice(t *testing.T) {
	x := build(t, mixed(t), small)
	for _, most := range []int{1 << 30, 3, 1 << 30} {
		n := 0
		for _, err := range x.layer.Entries {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == most {
				break
			}
		}
		if n != min(most, int(x.info.Entries)) {
			t.Errorf("%d entries", n)
		}
	}
}

func TestOpenBad(t *testing.T) {
	a := &archive{t: t}
	for i := range 100 {
		a.add(tar.Header{Name: fmt.Sprint(i)}, inflatetest.Text(uint64(i), 5000))
	}
	x := build(t, gz(t, 6, gzip.Header{}, a.end()), Config{ChunkSize: 8 << 10, SpanSize: 16 << 10})
	if x.info.Windows == 0 {
		t.Fatal("the layer needs no windows")
	}
	blocks, summary := content(t, x.tree)
	change := func(f func(i *Info)) []byte {
		i := x.info
		f(&i)
		p, err := json.Marshal(i)
		if err != nil {
			t.Fatal(err)
		}
		return assemble(t, blocks, p)
	}
	if _, err := Open(assemble(t, blocks, summary)); err != nil {
		t.Fatal(err)
	}
	other := slices.Clone(x.tree)
	other[len("graze/tree ")]++
	for _, row := range []struct {
		name string
		tree []byte
	}{
		{"empty", nil},
		{"magic alone", []byte(headMagic)},
		{"other version", other},
		{"cut short", x.tree[:len(x.tree)-1]},
		{"no summary", assemble(t, blocks, nil)},
		{"summary not JSON", assemble(t, blocks, []byte("{"))},
		{"long summary", assemble(t, blocks, slices.Concat(summary, bytes.Repeat([]byte(" "), maxSummary)))},
		{"no blocks", assemble(t, nil, summary)},
		{"blocks twice", assemble(t, append(slices.Clone(blocks), blocks...), summary)},
		{"unknown block", assemble(t, append([]byte{77, 1, 0, 0, 0, 0, 0}, blocks...), summary)},
		{"block without rows", assemble(t, append([]byte{entryBlock, 0, 0, 0, 0, 0, 0}, blocks...), summary)},
		{"unknown algorithm", change(func(i *Info) { i.Algorithm = "md5" })},
		{"other algorithm's count", change(func(i *Info) { i.Chunks++ })},
		{"layer too short", change(func(i *Info) { i.Layer.Size /= 2 })},
		{"negative size", change(func(i *Info) { i.Layer.Size = -1 })},
		{"decoded layer too short", change(func(i *Info) { i.Unpacked /= 2 })},
		{"checkpoints too short", change(func(i *Info) { i.Checkpoints.Size-- })},
		{"checkpoints too long", change(func(i *Info) { i.Checkpoints.Size++ })},
		{"entry missing", change(func(i *Info) { i.Entries++ })},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := Open(row.tree); !errors.Is(err, chunk.ErrCorrupt) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// TestOpenBadBytes damages each byte of a tree in turn. The digest of the tree
// protects from this; here nothing may panic.
func TestOpenBadBytes(t *testing.T) {
	a := &archive{t: t}
	for _, row := range archives {
		if row.name == "kinds" || row.name == "PAX sparse 0.1" || row.name == "extended attributes" {
			row.fill(a)
		}
	}
	x := build(t, gz(t, 6, gzip.Header{}, a.end()), Config{ChunkSize: 512, SpanSize: 100})
	blocks, summary := content(t, x.tree)
	for i := range blocks {
		for _, b := range []byte{0, 0x7f, 0xff} {
			bad := slices.Clone(blocks)
			bad[i] = b
			l, err := Open(assemble(t, bad, summary))
			if err != nil {
				continue
			}
			for _, err := range l.Entries {
				if err != nil && !errors.Is(err, chunk.ErrCorrupt) {
					t.Errorf("byte %d set to %d: %v", i, b, err)
				}
			}
		}
	}
}

// TestOpenMemory checks what an open layer of many entries costs.
func TestOpenMemory(t *testing.T) {
	tree, entries := manyEntries(t, 20_000)
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before := m.HeapAlloc
	l, err := Open(tree)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&m)
	if perEntry := (int64(m.HeapAlloc) - int64(before) + int64(len(tree))) / int64(entries); perEntry > 50 {
		t.Errorf("%d bytes an entry", perEntry)
	}
	n := 0
	for e, err := range l.Entries {
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(e.Name, "usr/") {
			t.Fatalf("entry %q", e.Name)
		}
		n++
	}
	if n != entries {
		t.Errorf("%d entries, not %d", n, entries)
	}
}

// manyEntries returns the tree of a layer of n small files.
func manyEntries(t testing.TB, n int) ([]byte, int) {
	a := &archive{t: t}
	for i := range n {
		size := int64(i * 7919 % 900)
		b := rawBlock(fmt.Sprintf("usr/lib/python3/dist-packages/package%d/module_%x.py", i/40, i*2654435761%(1<<20)), tar.TypeReg, size, posix)
		b.set(136, fmt.Sprintf("%011o\x00", 1700000000+i/40))
		a.raw(b, make([]byte, size))
	}
	return build(t, gz(t, 1, gzip.Header{}, a.end()), Config{}).tree, n
}
