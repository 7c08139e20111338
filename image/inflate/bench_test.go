package inflate

import (
	"bytes"
	"io"
	"os"
	"testing"

	stdgzip "compress/gzip"

	"github.com/klauspost/compress/gzip"
)

// benchFile returns a gzip file to measure with: the one that GRAZE_LAYER names,
// or one that is made up.
func benchFile(b *testing.B) []byte {
	b.Helper()
	if name := os.Getenv("GRAZE_LAYER"); name != "" {
		enc, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		return enc
	}
	var plain []byte
	for _, name := range []string{"text", "mixed", "skewed", "zeros", "noise"} {
		plain = append(plain, contents[name]...)
	}
	return member(b, stdgzip.Header{}, bytes.Repeat(plain, 4))
}

// BenchmarkGunzip compares this decoder, and this decoder under observation,
// with klauspost's.
func BenchmarkGunzip(b *testing.B) {
	enc := benchFile(b)
	buf := make([]byte, 256<<10)
	var in Input
	var g Gzip
	src := bytes.NewReader(nil)
	run := func(b *testing.B, observer Observer) {
		n := int64(0)
		b.ReportAllocs()
		for b.Loop() {
			src.Reset(enc)
			g.Reset()
			g.Deflate().Observe(observer)
			in.Reset(src, 0)
			for err := g.Next(&in); err != io.EOF; err = g.Next(&in) {
				for err == nil {
					_, err = g.Read(buf)
				}
				if err != io.EOF {
					b.Fatal(err)
				}
			}
			n = g.Offset()
		}
		b.SetBytes(n)
	}
	b.Run("by=inflate", func(b *testing.B) { run(b, nil) })
	b.Run("by=inflate/observed", func(b *testing.B) { run(b, observerFunc(func([]byte) {})) })
	b.Run("by=klauspost", func(b *testing.B) {
		var r gzip.Reader
		n := int64(0)
		b.ReportAllocs()
		for b.Loop() {
			src.Reset(enc)
			if err := r.Reset(src); err != nil {
				b.Fatal(err)
			}
			var err error
			if n, err = io.CopyBuffer(io.Discard, struct{ io.Reader }{&r}, buf); err != nil {
				b.Fatal(err)
			}
		}
		b.SetBytes(n)
	})
}
