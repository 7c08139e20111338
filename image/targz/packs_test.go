package targz

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"hash/fnv"
	"io"
	"path"
	"testing"

	"graze/chunk"
	"graze/image/inflate/inflatetest"
)

// A member is one entry of an archive.
type member struct {
	hdr  tar.Header
	data []byte
}

// smallFiles are files of up to 40 KB in folders of ten.
func smallFiles(n int) []member {
	list := make([]member, n)
	for i := range list {
		list[i] = member{
			hdr:  tar.Header{Name: fmt.Sprintf("dir%d/file%d", i/10, i)},
			data: inflatetest.Noise(uint64(i), 500+i*7919%40_000),
		}
	}
	return list
}

// without returns the members but for those of about a share of the folders.
func without(list []member, percent uint32) (left []member) {
	for _, m := range list {
		h := fnv.New32a()
		io.WriteString(h, path.Dir(m.hdr.Name))
		if h.Sum32()>>8%100 >= percent {
			left = append(left, m)
		}
	}
	return left
}

// chunksOf returns the chunks of a layer of the members.
func chunksOf(t testing.TB, list []member) map[chunk.ID]int32 {
	t.Helper()
	a := &archive{t: t}
	for _, m := range list {
		a.add(m.hdr, m.data)
	}
	all := make(map[chunk.ID]int32)
	x := build(t, a.end(), Config{})
	for _, c := range x.layer.Table.Chunks[:x.info.Chunks] {
		all[c.ID] = c.Size
	}
	return all
}

// shared returns the share of the bytes of some chunks that are among others.
func shared(some, others map[chunk.ID]int32) float64 {
	var all, common int64
	for id, size := range some {
		all += int64(size)
		if _, ok := others[id]; ok {
			common += int64(size)
		}
	}
	return float64(common) / float64(max(all, 1))
}

// TestPacksAreShared checks that most of what remains of a layer lies in the same
// chunks when a tenth of its folders is gone.
func TestPacksAreShared(t *testing.T) {
	list := smallFiles(1000)
	whole, part := chunksOf(t, list), chunksOf(t, without(list, 10))
	if s := shared(part, whole); s < 0.6 || s > 0.99 {
		t.Errorf("%.2f of the bytes are in the same chunks", s)
	}
	if n := len(whole); n > 400 {
		t.Errorf("1000 files of 20 MB are %d chunks", n)
	}
}

// BenchmarkSharedPacks tells how much of a layer lies in the same chunks when some
// of its folders are gone, all of which is in the other layer too.
func BenchmarkSharedPacks(b *testing.B) {
	list := smallFiles(1000)
	if enc := benchLayer(b); len(enc) > 10<<20 {
		list = membersOf(b, enc)
	}
	whole := chunksOf(b, list)
	for _, percent := range []uint32{10, 30, 50} {
		b.Run(fmt.Sprintf("gone=%d%%", percent), func(b *testing.B) {
			for b.Loop() {
				part := chunksOf(b, without(list, percent))
				b.ReportMetric(100*shared(part, whole), "%shared")
				b.ReportMetric(float64(len(part)), "chunks")
			}
		})
	}
}

// membersOf returns the members of a gzipped archive.
func membersOf(t testing.TB, enc []byte) (list []member) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(enc))
	if err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(z); ; {
		hdr, err := tr.Next()
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		hdr.Format = tar.FormatUnknown
		list = append(list, member{*hdr, data})
	}
}
