package toc

import (
	"bytes"
	"encoding/base64"
	"fmt"
	mrand "math/rand/v2"
	"runtime"
	"testing"

	"graze/chunk"
)

// largeTOC returns a TOC of n files, laid out as the common writer does.
func largeTOC(n int) []byte {
	var buf bytes.Buffer
	buf.WriteString("{\n\t\"version\": 1,\n\t\"entries\": [\n")
	rng := mrand.New(mrand.NewPCG(1, 2))
	xattr := base64.StdEncoding.EncodeToString([]byte("value"))
	for i := range n {
		if i > 0 {
			buf.WriteString(",\n")
		}
		sum := chunk.SHA256.Sum([]byte{byte(i), byte(i >> 8), byte(i >> 16)})
		fmt.Fprintf(&buf, "\t\t{\n\t\t\t\"name\": \"usr/lib/python3/dist-packages/package%d/module%d.py\",\n\t\t\t\"type\": \"reg\",\n\t\t\t\"size\": %d,\n"+
			"\t\t\t\"modtime\": \"2024-01-02T03:04:05Z\",\n\t\t\t\"mode\": 420,\n\t\t\t\"offset\": %d,\n", i/50, i, 1+rng.IntN(5000), 100+i*20)
		if i%1000 == 0 {
			fmt.Fprintf(&buf, "\t\t\t\"xattrs\": {\n\t\t\t\t\"user.x\": %q\n\t\t\t},\n", xattr)
		}
		fmt.Fprintf(&buf, "\t\t\t\"digest\": \"%s\",\n\t\t\t\"chunkDigest\": \"%s\"\n\t\t}", sum, sum)
	}
	buf.WriteString("\n\t]\n}")
	return buf.Bytes()
}

// TestMemory bounds what an opened layer of many files keeps.
func TestMemory(t *testing.T) {
	const n = 100000
	table := largeTOC(n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	x, err := Read(bytes.NewReader(table), Config{Blob: testBlob, End: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(x)
	runtime.KeepAlive(table)
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 300*n {
		t.Errorf("%d bytes an entry", kept/n)
	} else {
		t.Logf("%d bytes an entry, %d of JSON", kept/n, len(table)/n)
	}
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1000, 100000, 1000000} {
		b.Run(fmt.Sprintf("files=%d", n), func(b *testing.B) {
			table := largeTOC(n)
			b.SetBytes(int64(len(table)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Read(bytes.NewReader(table), Config{Blob: testBlob, End: 1 << 40}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
