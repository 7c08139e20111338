package targz

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/klauspost/compress/gzip"

	"graze/chunk"
	"graze/image/codec"
)

// benchLayer returns a layer to measure with: the file that GRAZE_LAYER names,
// or one that is made up.
func benchLayer(b *testing.B) []byte {
	b.Helper()
	if name := os.Getenv("GRAZE_LAYER"); name != "" {
		enc, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		return enc
	}
	var plain []byte
	for range 8 {
		plain = append(plain, mixed(b)...)
	}
	return gz(b, 6, gzip.Header{}, plain)
}

// BenchmarkBuild compares building an index with only decompressing the same
// layer. The goal on one core is 0.8 times the speed.
func BenchmarkBuild(b *testing.B) {
	enc := benchLayer(b)
	unpacked := build(b, enc, Config{}).info.Unpacked
	b.Run("what=gunzip", func(b *testing.B) {
		b.SetBytes(unpacked)
		b.ReportAllocs()
		for b.Loop() {
			r, err := gzip.NewReader(bytes.NewReader(enc))
			if err != nil {
				b.Skip("the layer is no gzip")
			}
			if _, err := io.Copy(io.Discard, r); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, alg := range []chunk.Algorithm{chunk.SHA256, chunk.BLAKE3} {
		b.Run("what=build/chunks="+alg.String(), func(b *testing.B) {
			b.SetBytes(unpacked)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Build(context.Background(), bytes.NewReader(enc), io.Discard, io.Discard, Config{Algorithm: alg}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("what=decode", func(b *testing.B) {
		src := newGunzip(bytes.NewReader(enc))
		if src.err != nil {
			b.Skip("the layer is no gzip")
		}
		b.SetBytes(unpacked)
		b.ReportAllocs()
		for b.Loop() {
			src := newGunzip(bytes.NewReader(enc))
			src.want(1 << 62)
			if _, err := io.Copy(io.Discard, src); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkFetch decodes and verifies all chunks of a span: its window, then
// what is decoded from it. The bytes that count are those of the chunks.
func BenchmarkFetch(b *testing.B) {
	enc := benchLayer(b)
	x := build(b, enc, Config{})
	var d codec.Decoder
	rng := rand.New(rand.NewPCG(1, 2))
	n := int64(0)
	b.ReportAllocs()
	rounds := int64(0)
	for b.Loop() {
		s := x.layer.Table.Span(uint32(rng.Int64N(x.info.Spans)))
		w, err := x.window(&d, &s, enc)
		if err != nil {
			b.Fatal(err)
		}
		err = d.Decode(bytes.NewReader(enc[s.Off:s.Off+s.Len]), []chunk.Span{s}, w, func(_, part int, p []byte) error {
			n += int64(len(p))
			_, err := s.Parts[part].Verify(p)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		rounds++
	}
	b.SetBytes(n / max(rounds, 1))
}

// BenchmarkDecode decodes all spans of a layer, one by one and in one run, next
// to a decompression of all of it by klauspost's gunzip. Nothing is verified.
func BenchmarkDecode(b *testing.B) {
	enc := benchLayer(b)
	x := build(b, enc, Config{})
	var d codec.Decoder
	spans := make([]chunk.Span, x.info.Spans)
	windows := make([][]byte, len(spans))
	size := int64(0)
	for i := range spans {
		spans[i] = x.layer.Table.Span(uint32(i))
		var err error
		if windows[i], err = x.window(&d, &spans[i], enc); err != nil {
			b.Fatal(err)
		}
		for _, p := range spans[i].Parts {
			size += int64(p.Size)
		}
	}
	b.Run("what=gunzip", func(b *testing.B) {
		b.SetBytes(x.info.Unpacked)
		b.ReportAllocs()
		var r gzip.Reader
		for b.Loop() {
			if err := r.Reset(bytes.NewReader(enc)); err != nil {
				b.Skip("the layer is no gzip")
			}
			if _, err := io.Copy(io.Discard, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
	src := bytes.NewReader(nil)
	decode := func(b *testing.B, from, to int) {
		end := spans[to-1].Off + spans[to-1].Len
		src.Reset(enc[spans[from].Off:end])
		if err := d.Decode(src, spans[from:to], windows[from], func(int, int, []byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("what=spans", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			for i := range spans {
				decode(b, i, i+1)
			}
		}
		b.ReportMetric(float64(len(spans)), "spans/op")
	})
	b.Run("what=run", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			decode(b, 0, len(spans))
		}
	})
}

// BenchmarkOpen opens a tree of 100,000 files, and ranges over them.
func BenchmarkOpen(b *testing.B) {
	tree, n := manyEntries(b, 100_000)
	b.Run("what=open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Open(tree); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(tree))/float64(n), "B/entry")
	})
	b.Run("what=entries", func(b *testing.B) {
		b.ReportAllocs()
		l, err := Open(tree)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			for _, err := range l.Entries {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
