package image

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"graze/chunk"
)

// bigLayer returns a layer of n files in directories of 50, of one extent each,
// with a chunk for every 16 files. Its entries are made as they are asked for,
// so that they take no memory.
func bigLayer(n int, tag string) *Layer {
	l := &Layer{Digest: chunk.Blob("sha256:" + tag), Format: TarGz}
	l.Table.Blobs = []chunk.Blob{l.Digest}
	const perChunk, fileSize = 16, 5000
	for i := range uint32((n + perChunk - 1) / perChunk) {
		var number [4]byte
		binary.LittleEndian.PutUint32(number[:], i)
		id, err := chunk.NewID(chunk.SHA256, sha256.Sum256(append(number[:], tag...)))
		if err != nil {
			panic(err)
		}
		off := int64(i) * perChunk * fileSize
		l.Table.Chunks = append(l.Table.Chunks, ChunkRow{Ref: chunk.Ref{ID: id, Size: perChunk * fileSize}, Span: i})
		l.Table.Spans = append(l.Table.Spans, SpanRow{Codec: chunk.Raw, First: i, Count: 1, Off: off, Len: perChunk * fileSize, Start: off})
	}
	l.Entries = func(yield func(*Entry, error) bool) {
		dirName := ""
		for i := range n {
			if i%50 == 0 {
				dirName = bigDir(i)
				d := Entry{Name: dirName + "/", Mode: syscall.S_IFDIR | 0o755, MTime: Time{1700000000, 0}}
				if !yield(&d, nil) {
					return
				}
			}
			e := Entry{
				Name: dirName + bigName(i), Mode: syscall.S_IFREG | 0o644, Size: fileSize, MTime: Time{1700000000 + int64(i), 1},
				Extents: []chunk.Extent{{Len: fileSize, Chunk: uint32(i / perChunk), At: int32(i % perChunk * fileSize)}},
			}
			if !yield(&e, nil) {
				return
			}
		}
	}
	return l
}

func bigDir(i int) string  { return fmt.Sprintf("usr/lib/python3/%d/package-%d", i/5000, i/50) }
func bigName(i int) string { return fmt.Sprintf("/module_%d.py", i) }

func BenchmarkWriteView(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("files=%d", n), func(b *testing.B) {
			layers := []*Layer{bigLayer(n*9/10, "a"), bigLayer(n/10, "b"), layer(hidden(bigDir(77) + bigName(77)))}
			name := filepath.Join(b.TempDir(), "view")
			b.ReportAllocs()
			for b.Loop() {
				if err := WriteView(name, layers, Info{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpenView(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("files=%d", n), func(b *testing.B) {
			name := writeView(b, bigLayer(n, "a"))
			b.ReportAllocs()
			for b.Loop() {
				v, err := OpenView(name)
				if err != nil {
					b.Fatal(err)
				}
				if err := v.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	const n = 100_000
	v := merged(b, bigLayer(n, "a"))
	var dirs [n / 50]uint64
	for i := range dirs {
		ino, err := v.Resolve(bigDir(i * 50))
		if err != nil {
			b.Fatal(err)
		}
		dirs[i] = ino
	}
	var names [n]string
	for i := range names {
		names[i] = bigName(i)[1:]
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i += 7919 {
		i %= n
		if _, ok := v.Lookup(dirs[i/50], names[i]); !ok {
			b.Fatal(names[i])
		}
	}
}

func BenchmarkReadDir(b *testing.B) {
	v := merged(b, bigLayer(100_000, "a"))
	ino, err := v.Resolve(bigDir(100))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for range v.ReadDir(ino, 0) {
			n++
		}
		if n != 50 {
			b.Fatal(n)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/50, "ns/entry")
}

func BenchmarkExtents(b *testing.B) {
	const n = 100_000
	v := merged(b, bigLayer(n, "a"))
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i += 7919 {
		for e := range v.Extents(i%n+1, 0, 4096) {
			v.Chunk(e.Chunk)
		}
	}
}

// TestViewSize holds the view file to 120 bytes a file beyond its name, with an
// extent of its own and its share of the directories, but without the table of
// chunks.
func TestViewSize(t *testing.T) {
	const n = 50_000
	v := merged(t, bigLayer(n, "a"))
	size := 0
	for _, sec := range []int{secInodes, secDirents, secExtents, secXattrs, secXattrEnds, secLinks} {
		size += len(v.secs[sec])
	}
	if perFile := float64(size) / n; perFile > 120 {
		t.Errorf("%.1f bytes a file, more than 120", perFile)
	} else {
		t.Logf("%.1f bytes a file", perFile)
	}
}

// TestMergeMemory holds a merge to 250 bytes of heap for each file, garbage not
// counted.
func TestMergeMemory(t *testing.T) {
	const n = 100_000
	l := bigLayer(n, "a")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w, err := newViewWriter([]*Layer{l}, Info{})
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(w)
	perFile := (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / n
	if perFile > 250 {
		t.Errorf("%.0f bytes of heap a file, more than 250", perFile)
	} else {
		t.Logf("%.0f bytes of heap a file", perFile)
	}
}

// TestLargeFile counts what an extent of a large file takes.
func TestLargeFile(t *testing.T) {
	const n, size = 4000, 1 << 20
	sizes := make([]int32, n)
	var opts []option
	for i := range sizes {
		sizes[i] = size
		opts = append(opts, extent(int64(i)*size, size, uint32(i), 0))
	}
	v := merged(t, withChunks(layer(file("big", n*size, opts...)), "t", sizes...))
	if perExtent := len(v.secs[secExtents]) / n; perExtent > 24 {
		t.Errorf("%d bytes an extent", perExtent)
	}
	ino, _ := v.Lookup(RootIno, "big")
	for _, off := range []int64{0, size - 1, size, 1234*size + 5, n*size - 1} {
		var got []chunk.Extent
		for e := range v.Extents(ino, off, 1) {
			got = append(got, e)
		}
		if len(got) != 1 || got[0].Off != off/size*size {
			t.Errorf("offset %d is in %+v", off, got)
		}
	}
}
