package codec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"graze/chunk"
	"graze/image/fixture"
	"graze/image/inflate"
	"graze/image/inflate/inflatetest"
)

const testBlob = chunk.Blob("sha256:test")

// gz returns p as a gzip member.
func gz(t testing.TB, hdr gzip.Header, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Header = hdr
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// zst returns p as a Zstandard frame.
func zst(t testing.TB, p []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(p, nil)
}

// part returns the chunk plain[from:to] of a span that starts at start.
func part(plain []byte, start, from, to int) chunk.Part {
	p := plain[from:to]
	return chunk.Part{Ref: chunk.Ref{ID: chunk.SHA256.Sum(p), Size: int32(len(p))}, At: int64(from - start)}
}

// A layer is a blob and what it decodes to.
type layer struct {
	enc, plain []byte
	spans      []chunk.Span
	windows    [][]byte
}

// add appends a span; parts are pairs of offsets into l.plain.
func (l *layer) add(c chunk.Codec, off, n, start int, parts ...int) {
	s := chunk.Span{Blob: testBlob, Off: int64(off), Len: int64(n), Codec: c, Start: int64(start)}
	for i := 0; i < len(parts); i += 2 {
		s.Parts = append(s.Parts, part(l.plain, start, parts[i], parts[i+1]))
	}
	l.spans = append(l.spans, s)
	l.windows = append(l.windows, nil)
}

func rawLayer(t *testing.T) *layer {
	p := inflatetest.Text(1, 100_000)
	l := &layer{enc: p, plain: p}
	l.add(chunk.Raw, 10, 20_000, 10, 10, 2000, 5000, 20_010)
	l.add(chunk.Raw, 50_000, 30_000, 50_000, 50_001, 80_000)
	l.add(chunk.Raw, 80_000, 20_000, 80_000, 80_000, 100_000)
	return l
}

// gzipLayer has four members, with all header fields, and padding after them.
// Its spans hold one and a half members, the rest being cut off, and two.
func gzipLayer(t *testing.T) *layer {
	l := &layer{plain: inflatetest.Text(2, 400_000)}
	var at []int
	for i := range 4 {
		at = append(at, len(l.enc))
		hdr := gzip.Header{Comment: "comment", Name: "name", Extra: bytes.Repeat([]byte{7}, 5000)}
		if i%2 == 0 {
			hdr = gzip.Header{}
		}
		l.enc = append(l.enc, gz(t, hdr, l.plain[i*100_000:(i+1)*100_000])...)
	}
	l.enc = append(l.enc, make([]byte, 700)...)
	l.add(chunk.Gzip, 0, (at[1]+at[2])/2, 0, 0, 70_000, 70_000, 120_000)
	l.add(chunk.Gzip, at[2], len(l.enc)-at[2], 200_000, 250_000, 350_000, 350_000, 400_000)
	return l
}

// deflateLayer has two members; spans start at deflate blocks of both, and one
// at the second member's header. They overlap in encoded bytes.
func deflateLayer(t *testing.T) *layer {
	l := &layer{plain: inflatetest.Text(3, 3_000_000)}
	const member = 2_000_000
	first := gz(t, gzip.Header{}, l.plain[:member])
	l.enc = append(slices.Clone(first), gz(t, gzip.Header{}, l.plain[member:])...)
	l.add(chunk.Gzip, 0, len(first)/4+60_000, 0, 0, 300_000, 300_000, 500_000)
	for i, from := range []int{500_000, 1_000_000, 1_500_000} {
		cp := checkpoint(t, first, from)
		start := int(cp.UncompressedOffset)
		off := inflate.HeaderLen + int(cp.CompressedOffset)
		// The last span runs over into the second member.
		n := len(first)/4 + 60_000
		to := from + 500_000
		if i == 2 {
			n, to = len(first)-off+30_000, 2_050_000
		}
		l.add(chunk.Deflate, off, n, start, from, from+200_000, from+200_000, to)
		s := &l.spans[len(l.spans)-1]
		s.Bits = cp.BitOffset
		s.Window = &chunk.Slice{Len: int32(len(cp.Window))}
		l.windows[len(l.windows)-1] = cp.Window
	}
	l.add(chunk.Gzip, len(first), len(l.enc)-len(first), member, 2_500_000, 3_000_000)
	return l
}

// checkpoint returns the last block boundary at or before decoded offset at of
// a gzip member with a plain header.
func checkpoint(t *testing.T, member []byte, at int) (cp flate.InflateCheckpoint) {
	t.Helper()
	r := flate.NewReaderOpts(bytes.NewReader(member[inflate.HeaderLen:]), flate.WithEobCallback(func(c flate.InflateCheckpoint) {
		if c.UncompressedOffset <= int64(at) {
			cp = c
			cp.Window = slices.Clone(c.Window)
		}
	}))
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	if cp.Window == nil {
		t.Fatalf("no deflate block ends before %d", at)
	}
	return cp
}

// zstdLayer has six frames and a skippable one in the second span.
func zstdLayer(t *testing.T) *layer {
	l := &layer{plain: inflatetest.Text(4, 600_000)}
	var at []int
	for i := range 6 {
		if i == 3 {
			l.enc = append(l.enc, 0x53, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4)
		}
		at = append(at, len(l.enc))
		l.enc = append(l.enc, zst(t, l.plain[i*100_000:(i+1)*100_000])...)
	}
	at = append(at, len(l.enc))
	l.add(chunk.Zstd, at[0], at[1]-at[0], 0, 0, 50_000, 50_000, 100_000)
	l.add(chunk.Zstd, at[2], at[4]-at[2], 200_000, 250_000, 350_000)
	l.add(chunk.Zstd, at[4], at[6]-at[4], 400_000, 400_000, 600_000)
	return l
}

// lz4Layer has four blocks. Of the second only the beginning is wanted, and the
// third has two spans.
func lz4Layer(t *testing.T) *layer {
	l := &layer{plain: inflatetest.Text(5, 400_000)}
	at := []int{0}
	for i := range 4 {
		dst := make([]byte, lz4.CompressBlockBound(100_000))
		n, err := lz4.CompressBlock(l.plain[i*100_000:(i+1)*100_000], dst, nil)
		if err != nil || n == 0 {
			t.Fatalf("block of %d bytes: %v", n, err)
		}
		l.enc = append(l.enc, dst[:n]...)
		at = append(at, len(l.enc))
	}
	l.add(chunk.LZ4, at[0], at[1]-at[0], 0, 0, 50_000, 50_000, 100_000)
	l.add(chunk.LZ4, at[1], at[2]-at[1], 100_000, 100_000, 110_000)
	l.add(chunk.LZ4, at[2], at[3]-at[2], 200_000, 210_000, 220_000)
	l.add(chunk.LZ4, at[2], at[3]-at[2], 200_000, 220_000, 300_000)
	l.add(chunk.LZ4, at[3], at[4]-at[3], 300_000, 399_000, 400_000)
	return l
}

// mixedLayer has raw bytes, an LZ4 block and a Zstandard frame by turns.
func mixedLayer(t *testing.T) *layer {
	l := &layer{plain: inflatetest.Text(6, 600_000)}
	for i := range 6 {
		p := l.plain[i*100_000 : (i+1)*100_000]
		off, c := len(l.enc), chunk.Raw
		switch i % 3 {
		case 0:
			l.enc = append(l.enc, p...)
		case 1:
			dst := make([]byte, lz4.CompressBlockBound(len(p)))
			n, err := lz4.CompressBlock(p, dst, nil)
			if err != nil {
				t.Fatal(err)
			}
			l.enc, c = append(l.enc, dst[:n]...), chunk.LZ4
		case 2:
			l.enc, c = append(l.enc, zst(t, p)...), chunk.Zstd
		}
		l.add(c, off, len(l.enc)-off, i*100_000, i*100_000+5, (i+1)*100_000)
	}
	return l
}

var layers = map[string]func(*testing.T) *layer{
	"raw":     rawLayer,
	"gzip":    gzipLayer,
	"deflate": deflateLayer,
	"zstd":    zstdLayer,
	"lz4":     lz4Layer,
	"mixed":   mixedLayer,
}

// bytesOf returns the encoded bytes of spans from to to.
func (l *layer) bytesOf(from, to int) []byte {
	end := int64(0)
	for _, s := range l.spans[from:to] {
		end = max(end, s.Off+s.Len)
	}
	return l.enc[l.spans[from].Off:end]
}

// verify decodes spans from to to and compares every chunk.
func (l *layer) verify(d *Decoder, src io.Reader, from, to int) error {
	run := l.spans[from:to]
	var got, want []string
	for i := range run {
		for j := range run[i].Parts {
			want = append(want, fmt.Sprint(i, j))
		}
	}
	err := d.Decode(src, run, l.windows[from], func(i, j int, p []byte) error {
		got = append(got, fmt.Sprint(i, j))
		_, err := run[i].Parts[j].Verify(p)
		return err
	})
	if err == nil && !slices.Equal(got, want) {
		return fmt.Errorf("parts %v in place of %v", got, want)
	}
	return err
}

func TestDecode(t *testing.T) {
	for name, mk := range layers {
		t.Run(name, func(t *testing.T) {
			l := mk(t)
			var d Decoder
			for from := range l.spans {
				for to := from + 1; to <= len(l.spans); to++ {
					enc := l.bytesOf(from, to)
					if err := l.verify(&d, bytes.NewReader(enc), from, to); err != nil {
						t.Errorf("spans %d to %d: %v", from, to, err)
					}
					if err := l.verify(&d, iotest.DataErrReader(iotest.HalfReader(bytes.NewReader(enc))), from, to); err != nil {
						t.Errorf("spans %d to %d by halves: %v", from, to, err)
					}
				}
			}
		})
	}
}

func TestDecodeBrokenSource(t *testing.T) {
	errBroken := errors.New("broken")
	for name, mk := range layers {
		t.Run(name, func(t *testing.T) {
			l := mk(t)
			var d Decoder
			enc := l.bytesOf(0, len(l.spans))
			for _, n := range []int{0, 1, 11, len(enc) / 2, len(enc) - 5000} {
				err := l.verify(&d, bytes.NewReader(enc[:n]), 0, len(l.spans))
				if !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, chunk.ErrCorrupt) {
					t.Errorf("source of %d bytes in place of %d: %v", n, len(enc), err)
				}
				src := io.MultiReader(bytes.NewReader(enc[:n]), iotest.ErrReader(errBroken))
				if err := l.verify(&d, src, 0, len(l.spans)); !errors.Is(err, errBroken) || errors.Is(err, chunk.ErrCorrupt) {
					t.Errorf("source that fails after %d bytes: %v", n, err)
				}
			}
		})
	}
}

func TestDecodeCorrupt(t *testing.T) {
	for name, mk := range layers {
		if name == "raw" || name == "mixed" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			l := mk(t)
			var d Decoder
			for i := range l.spans {
				// A span whose bytes end early though all were delivered.
				s := l.spans[i]
				s.Len = s.Len / 3
				err := d.Decode(bytes.NewReader(l.enc[s.Off:s.Off+s.Len]), []chunk.Span{s}, l.windows[i], drop)
				if !errors.Is(err, chunk.ErrCorrupt) || errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("span %d cut short: %v", i, err)
				}
				// Bytes that are no deflate block, gzip member or frame.
				bad := bytes.Repeat([]byte{0xff}, int(l.spans[i].Len))
				err = d.Decode(bytes.NewReader(bad), l.spans[i:i+1], l.windows[i], drop)
				if !errors.Is(err, chunk.ErrCorrupt) {
					t.Errorf("span %d with wrong bytes: %v", i, err)
				}
			}
			if err := l.verify(&d, bytes.NewReader(l.bytesOf(0, len(l.spans))), 0, len(l.spans)); err != nil {
				t.Errorf("after corrupt spans: %v", err)
			}
		})
	}
}

// TestDecodeChecksum checks that a member that is decoded from its first byte to
// its last must have the right checksum, and that of no other is looked at.
func TestDecodeChecksum(t *testing.T) {
	l := gzipLayer(t)
	first := len(gz(t, gzip.Header{}, l.plain[:100_000]))
	l.enc[first-8] ^= 1
	var d Decoder
	if err := l.verify(&d, bytes.NewReader(l.enc), 0, 1); !errors.Is(err, chunk.ErrCorrupt) {
		t.Errorf("member with a wrong checksum: %v", err)
	}
	if err := l.verify(&d, bytes.NewReader(l.bytesOf(1, 2)), 1, 2); err != nil {
		t.Errorf("members after it: %v", err)
	}
	cut := l.spans[0]
	cut.Parts = cut.Parts[:1] // ends within the member
	if err := d.Decode(bytes.NewReader(l.enc), []chunk.Span{cut}, nil, drop); err != nil {
		t.Errorf("beginning of the member: %v", err)
	}
}

func drop(int, int, []byte) error { return nil }

func TestDecodeEmitError(t *testing.T) {
	l := gzipLayer(t)
	errStop := errors.New("stop")
	calls := 0
	err := new(Decoder).Decode(bytes.NewReader(l.enc), l.spans, nil, func(int, int, []byte) error {
		calls++
		return errStop
	})
	if err != errStop || calls != 1 {
		t.Errorf("error %v after %d calls", err, calls)
	}
}

func TestDecodeBadRun(t *testing.T) {
	l := zstdLayer(t)
	other := func(change func(run []chunk.Span)) []chunk.Span {
		run := slices.Clone(l.spans)
		for i := range run {
			run[i].Parts = slices.Clone(run[i].Parts)
		}
		change(run)
		return run
	}
	for _, row := range []struct {
		name   string
		run    []chunk.Span
		window []byte
	}{
		{"other blob", other(func(r []chunk.Span) { r[1].Blob = "sha256:other" }), nil},
		{"out of order", other(func(r []chunk.Span) { r[0], r[1] = r[1], r[0] }), nil},
		{"negative length", other(func(r []chunk.Span) { r[0].Len = -1 }), nil},
		{"length overflows", other(func(r []chunk.Span) { r[1].Len = 1<<63 - 1 }), nil},
		{"huge chunk", other(func(r []chunk.Span) { r[0].Parts[0].Size = chunk.MaxSize + 1 }), nil},
		{"chunks overlap", other(func(r []chunk.Span) { r[0].Parts[1].At-- }), nil},
		{"chunk offset overflows", other(func(r []chunk.Span) { r[1].Parts[0].At = 1<<63 - 1 }), nil},
		{"unknown codec", other(func(r []chunk.Span) { r[0].Codec = 99 }), nil},
		{"deflate after zstd", other(func(r []chunk.Span) { r[1].Codec = chunk.Deflate }), nil},
		{"unasked window", l.spans, make([]byte, 7)},
		{"window missing", other(func(r []chunk.Span) { r[0].Window = &chunk.Slice{Len: 7} }), nil},
		{"window too large", other(func(r []chunk.Span) { r[0].Window = &chunk.Slice{Len: 32769} }), make([]byte, 32769)},
		{"beyond the end", other(func(r []chunk.Span) { r[2].Parts[0].At = 1 << 40 }), nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := new(Decoder).Decode(bytes.NewReader(l.enc), row.run, row.window, drop)
			if !errors.Is(err, chunk.ErrCorrupt) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestDecodeNothing(t *testing.T) {
	if err := new(Decoder).Decode(iotest.ErrReader(errors.New("read")), nil, nil, drop); err != nil {
		t.Error(err)
	}
}

// TestDecodeZstdWindow checks that a frame can't make the decoder hold more
// than the package comment says.
func TestDecodeZstdWindow(t *testing.T) {
	// A frame header with a window of 256 MiB, and one raw block.
	enc := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 18 << 3, 1 | 4<<3, 0, 0, 'a', 'b', 'c', 'd'}
	p := []byte("abcd")
	s := chunk.Span{Len: int64(len(enc)), Codec: chunk.Zstd, Parts: []chunk.Part{part(p, 0, 0, 4)}}
	if err := new(Decoder).Decode(bytes.NewReader(enc), []chunk.Span{s}, nil, drop); !errors.Is(err, chunk.ErrCorrupt) {
		t.Errorf("window of 256 MiB: %v", err)
	}
	enc[5] = 17 << 3
	if err := new(Decoder).Decode(bytes.NewReader(enc), []chunk.Span{s}, nil, drop); err != nil {
		t.Errorf("window of 128 MiB: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	p := inflatetest.Text(5, 5000)
	f.Add(gz(f, gzip.Header{Name: "n", Comment: "c", Extra: []byte("e")}, p), uint8(chunk.Gzip), uint8(0), uint16(100), uint16(4000))
	f.Add(gz(f, gzip.Header{}, p)[inflate.HeaderLen:], uint8(chunk.Deflate), uint8(0), uint16(0), uint16(5000))
	f.Add(zst(f, p), uint8(chunk.Zstd), uint8(0), uint16(0), uint16(5000))
	f.Add(p, uint8(chunk.Raw), uint8(0), uint16(0), uint16(5000))
	const texture = "nydus/tests/texture/"
	if p := fixture.Seed(f, texture+"zstd/2fa78cad554b75ac91a4a125ed148d0ddeb25efa4aaa8bd80e5dc292690a4dca.zst"); p != nil {
		f.Add(p, uint8(chunk.Zstd), uint8(0), uint16(0), uint16(5000))
		f.Add(fixture.Seed(f, texture+"zran/zran-two-streams.tar.gz"), uint8(chunk.Gzip), uint8(0), uint16(0), uint16(5000))
	}
	var d Decoder
	f.Fuzz(func(t *testing.T, enc []byte, codec, bits uint8, at, size uint16) {
		s := chunk.Span{Off: 17, Len: int64(len(enc)), Codec: chunk.Codec(codec), Bits: bits, Start: 99, Parts: []chunk.Part{
			{Ref: chunk.Ref{ID: chunk.SHA256.Sum(nil), Size: int32(size)}, At: int64(at)},
		}}
		err := d.Decode(bytes.NewReader(enc), []chunk.Span{s}, nil, func(_, _ int, p []byte) error {
			if len(p) != int(size) {
				t.Errorf("%d bytes in place of %d", len(p), size)
			}
			return nil
		})
		if err != nil && !errors.Is(err, chunk.ErrCorrupt) {
			t.Errorf("error %v though the source is sound", err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	p := inflatetest.Text(6, 4<<20)
	for _, row := range []struct {
		name string
		code chunk.Codec
		enc  []byte
	}{
		{"raw", chunk.Raw, p},
		{"gzip", chunk.Gzip, gz(b, gzip.Header{}, p)},
		{"zstd", chunk.Zstd, zst(b, p)},
	} {
		b.Run("codec="+row.name, func(b *testing.B) {
			s := chunk.Span{Len: int64(len(row.enc)), Codec: row.code}
			for at := 0; at < len(p); at += 256 << 10 {
				s.Parts = append(s.Parts, part(p, 0, at, at+256<<10))
			}
			run := []chunk.Span{s}
			var d Decoder
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Decode(bytes.NewReader(row.enc), run, nil, drop); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
