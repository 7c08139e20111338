package targz

import (
	"archive/tar"
	"bytes"
	stdgzip "compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"graze/chunk"
	"graze/image/inflate"
	"graze/image/inflate/inflatetest"
)

// gz returns p as a gzip member of klauspost's compressor.
func gz(t testing.TB, level int, hdr gzip.Header, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	w.Header = hdr
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// stdgz returns p as a gzip member of the standard library's compressor. With
// flush, a stored block without content follows every so many bytes.
func stdgz(t testing.TB, level int, flush int, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := stdgzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	for q := range slices.Chunk(p, max(flush, 1<<20)) {
		if _, err := w.Write(q); err != nil {
			t.Fatal(err)
		}
	}
	if flush > 0 {
		b.Reset()
		w.Reset(&b)
		for q := range slices.Chunk(p, flush) {
			if _, err := w.Write(q); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// members returns p as gzip members of n bytes each.
func members(t testing.TB, n int, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for q := range slices.Chunk(p, n) {
		w.Reset(&b)
		if _, err := w.Write(q); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// frames returns p as Zstandard frames of n bytes each, with skippable ones
// before every third.
func frames(t testing.TB, n int, p []byte) (enc []byte) {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	for q := range slices.Chunk(p, n) {
		if i%3 == 0 {
			enc = append(enc, 0x50|byte(i&15), 0x2a, 0x4d, 0x18, 5, 0, 0, 0, 1, 2, 3, 4, 5)
		}
		i++
		enc = w.EncodeAll(q, enc)
	}
	return enc
}

// zstdStream returns p as one frame that does not tell its size.
func zstdStream(t testing.TB, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// command returns what a program makes of p.
func command(t testing.TB, p []byte, name string, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed", name)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(p)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

// headerCRC returns a gzip member with a checksum of its header.
func headerCRC(member []byte) []byte {
	hdr := slices.Clone(member[:inflate.HeaderLen])
	hdr[3] |= 1 << 1 // FHCRC
	hdr = binary.LittleEndian.AppendUint16(hdr, uint16(crc32.ChecksumIEEE(hdr)))
	return append(hdr, member[inflate.HeaderLen:]...)
}

// encodings are the ways in which layers are compressed.
var encodings = []struct {
	name   string
	encode func(t testing.TB, p []byte) []byte
}{
	{"tar", func(_ testing.TB, p []byte) []byte { return p }},
	{"gzip klauspost 1", func(t testing.TB, p []byte) []byte { return gz(t, 1, gzip.Header{}, p) }},
	{"gzip klauspost 6", func(t testing.TB, p []byte) []byte { return gz(t, 6, gzip.Header{}, p) }},
	{"gzip klauspost 9", func(t testing.TB, p []byte) []byte { return gz(t, 9, gzip.Header{}, p) }},
	{"gzip klauspost stateless", func(t testing.TB, p []byte) []byte { return gz(t, gzip.StatelessCompression, gzip.Header{}, p) }},
	{"gzip go stored", func(t testing.TB, p []byte) []byte { return stdgz(t, 0, 0, p) }},
	{"gzip go 1", func(t testing.TB, p []byte) []byte { return stdgz(t, 1, 0, p) }},
	{"gzip go 6", func(t testing.TB, p []byte) []byte { return stdgz(t, 6, 0, p) }},
	{"gzip go 9", func(t testing.TB, p []byte) []byte { return stdgz(t, 9, 0, p) }},
	{"gzip go huffman only", func(t testing.TB, p []byte) []byte { return stdgz(t, stdgzip.HuffmanOnly, 0, p) }},
	{"gzip go flushed", func(t testing.TB, p []byte) []byte { return stdgz(t, 6, 3001, p) }},
	{"gzip program 6", func(t testing.TB, p []byte) []byte { return command(t, p, "gzip", "-6") }},
	{"gzip program 1", func(t testing.TB, p []byte) []byte { return command(t, p, "gzip", "-1") }},
	{"pigz", func(t testing.TB, p []byte) []byte { return command(t, p, "pigz", "-p2", "-b128") }},
	{"pigz independent", func(t testing.TB, p []byte) []byte { return command(t, p, "pigz", "-p2", "-b128", "-i") }},
	{"gzip members of 64 KiB", func(t testing.TB, p []byte) []byte { return members(t, 64<<10, p) }},
	{"gzip members of 700 bytes", func(t testing.TB, p []byte) []byte { return members(t, 700, p) }},
	{"gzip members with empty ones", func(t testing.TB, p []byte) (enc []byte) {
		for q := range slices.Chunk(p, 200<<10) {
			enc = append(enc, members(t, 1<<30, q)...)
			for range 3 {
				enc = append(enc, gz(t, 6, gzip.Header{}, nil)...)
			}
		}
		return enc
	}},
	{"gzip header fields", func(t testing.TB, p []byte) []byte {
		h := gzip.Header{Name: "layer.tar", Comment: "comment", Extra: bytes.Repeat([]byte{0x1f, 0x8b, 8}, 20_000)}
		return append(gz(t, 6, h, p[:1<<20]), gz(t, 6, h, p[1<<20:])...)
	}},
	{"gzip header checksum", func(t testing.TB, p []byte) []byte { return headerCRC(gz(t, 6, gzip.Header{}, p)) }},
	{"gzip then zeros", func(t testing.TB, p []byte) []byte {
		return append(gz(t, 6, gzip.Header{}, p), make([]byte, 5000)...)
	}},
	{"gzip then garbage", func(t testing.TB, p []byte) []byte {
		return append(gz(t, 6, gzip.Header{}, p), "garbage"...)
	}},
	{"zstd", zstdStream},
	{"zstd program", func(t testing.TB, p []byte) []byte { return command(t, p, "zstd", "-19") }},
	{"zstd frames of 64 KiB", func(t testing.TB, p []byte) []byte { return frames(t, 64<<10, p) }},
	{"zstd frames of 1000 bytes", func(t testing.TB, p []byte) []byte { return frames(t, 1000, p) }},
	{"zstd frames with empty ones", func(t testing.TB, p []byte) []byte {
		return slices.Concat(frames(t, 1<<20, p[:1<<20]), zstdStream(t, nil), frames(t, 1<<20, p[1<<20:]), zstdStream(t, nil))
	}},
	{"zstd then garbage", func(t testing.TB, p []byte) []byte { return append(zstdStream(t, p), "garbage"...) }},
}

func TestBuild(t *testing.T) {
	plain := mixed(t)
	for _, row := range encodings {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			enc := row.encode(t, plain)
			for _, cfg := range []Config{
				{},
				{ChunkSize: 4 << 10, SpanSize: 16 << 10, Algorithm: chunk.BLAKE3},
				{ChunkSize: 3 << 10, SpanSize: 1},
			} {
				verify(t, build(t, enc, cfg), enc, plain)
			}
		})
	}
}

// TestBuildSpans checks that layers are not just cut rightly, but cut at all.
func TestBuildSpans(t *testing.T) {
	plain := mixed(t)
	for _, row := range []struct {
		encoding string
		codec    chunk.Codec
		windows  bool
		min, max int64 // spans
	}{
		{"tar", chunk.Raw, false, 50, 60},
		{"gzip klauspost 6", chunk.Deflate, true, 10, 40},
		{"gzip go stored", chunk.Deflate, false, 25, 40},
		{"pigz", chunk.Deflate, true, 8, 40},
		{"gzip members of 700 bytes", chunk.Gzip, false, 20, 60},
		{"zstd", chunk.Zstd, false, 1, 1},
		{"zstd frames of 1000 bytes", chunk.Zstd, false, 20, 60},
	} {
		t.Run(row.encoding, func(t *testing.T) {
			var enc []byte
			for _, e := range encodings {
				if e.name == row.encoding {
					enc = e.encode(t, plain)
				}
			}
			x := build(t, enc, Config{ChunkSize: 8 << 10, SpanSize: 32 << 10})
			if x.info.Spans < row.min || x.info.Spans > row.max {
				t.Errorf("%d spans, not %d to %d", x.info.Spans, row.min, row.max)
			}
			if windows := x.info.Windows > 0; windows != row.windows {
				t.Errorf("%d chunks of windows", x.info.Windows)
			}
			longest := int64(0)
			for _, s := range x.layer.Table.Spans[1:x.info.Spans] {
				if s.Codec != row.codec {
					t.Errorf("span at %d is %s", s.Off, s.Codec)
				}
				longest = max(longest, s.Len)
			}
			if longest > 200<<10 {
				t.Errorf("a span has %d bytes", longest)
			}
		})
	}
}

// TestBuildFileAligned checks that a large file gives the same chunks wherever
// it lies.
func TestBuildFileAligned(t *testing.T) {
	big := inflatetest.Text(1, 1_000_000)
	ids := func(before int) map[chunk.ID]bool {
		a := &archive{t: t}
		a.add(tar.Header{Name: "before"}, inflatetest.Text(2, before))
		a.add(tar.Header{Name: "big"}, big)
		x := build(t, gz(t, 6, gzip.Header{}, a.end()), Config{ChunkSize: 64 << 10})
		all := make(map[chunk.ID]bool)
		for _, c := range x.layer.Table.Chunks[:x.info.Chunks] {
			all[c.ID] = true
		}
		return all
	}
	one, other := ids(1000), ids(77_777)
	common := 0
	for id := range one {
		if other[id] {
			common++
		}
	}
	if want := 1_000_000/(64<<10) + 1; common != want {
		t.Errorf("%d chunks in common, not %d", common, want)
	}
}

// TestBuildDeterministic checks that the pieces in which a layer arrives don't
// matter.
func TestBuildDeterministic(t *testing.T) {
	plain := mixed(t)
	for _, row := range encodings {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			enc := row.encode(t, plain)
			x := build(t, enc, small)
			var tree, checkpoints bytes.Buffer
			src := iotest.HalfReader(iotest.DataErrReader(bytes.NewReader(enc)))
			info, err := Build(t.Context(), src, &tree, &checkpoints, small)
			if err != nil {
				t.Fatal(err)
			}
			if info != x.info || !bytes.Equal(tree.Bytes(), x.tree) || !bytes.Equal(checkpoints.Bytes(), x.checkpoints) {
				t.Errorf("index differs: %+v and %+v", info, x.info)
			}
		})
	}
}

// TestBuildBad checks that damaged layers are corrupt, and that nothing else is.
func TestBuildBad(t *testing.T) {
	plain := mixed(t)
	member := gz(t, 6, gzip.Header{}, plain)
	half := plain[:1<<20+512*3]
	flip := func(p []byte, at int) []byte {
		p = slices.Clone(p)
		p[(at+len(p))%len(p)] ^= 0x55
		return p
	}
	for _, row := range []struct {
		name string
		enc  []byte
	}{
		{"not an archive", inflatetest.Text(1, 5000)},
		{"short", []byte("short")},
		{"gzip magic alone", []byte(inflate.Magic)},
		{"gzip header alone", member[:inflate.HeaderLen]},
		{"gzip cut short", member[:len(member)/2]},
		{"gzip without trailer", member[:len(member)-8]},
		{"gzip with half a trailer", member[:len(member)-4]},
		{"gzip with wrong checksum", flip(member, -8)},
		{"gzip with wrong size", flip(member, -1)},
		{"gzip with damaged data", flip(member, len(member)/2)},
		{"gzip with reserved flags", flip(member, 3)},
		{"gzip with wrong header checksum", flip(headerCRC(member), inflate.HeaderLen)},
		{"second member cut short", append(slices.Clone(member), member[:15]...)},
		{"garbage before the archive's end", append(gz(t, 6, gzip.Header{}, half), "garbage"...)},
		{"file cut short", gz(t, 6, gzip.Header{}, plain[:len(plain)-200_000])},
		{"tar cut short", plain[:len(plain)-200_000]},
		{"zstd cut short", zstdStream(t, plain)[:100_000]},
		{"zstd with damaged data", flip(zstdStream(t, plain), 100_000)},
		{"zstd with wrong checksum", flip(zstdStream(t, plain), -1)},
		{"zstd header alone", zstdMagic},
		{"skippable frame cut short", []byte{0x50, 0x2a, 0x4d, 0x18, 200, 0, 0, 0, 1, 2}},
		{"zstd garbage before the archive's end", append(zstdStream(t, half), "garbage"...)},
		{"zstd window too large", []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 18 << 3, 1 | 4<<3, 0, 0, 'a', 'b', 'c', 'd'}},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := Build(t.Context(), bytes.NewReader(row.enc), io.Discard, io.Discard, small)
			if !errors.Is(err, chunk.ErrCorrupt) || errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestBuildErrors(t *testing.T) {
	enc := gz(t, 6, gzip.Header{}, mixed(t))
	errTest := errors.New("test")
	for _, n := range []int64{0, 5, 100_000, int64(len(enc))} {
		src := io.MultiReader(bytes.NewReader(enc[:n]), iotest.ErrReader(errTest))
		_, err := Build(t.Context(), src, io.Discard, io.Discard, small)
		if !errors.Is(err, errTest) || errors.Is(err, chunk.ErrCorrupt) {
			t.Errorf("reader that fails after %d bytes: %v", n, err)
		}
	}
	for _, n := range []int64{0, 20, 1000} {
		for i := range 2 {
			w := []io.Writer{io.Discard, io.Discard}
			w[i] = &limitedWriter{n, errTest}
			_, err := Build(t.Context(), bytes.NewReader(enc), w[0], w[1], small)
			if !errors.Is(err, errTest) || errors.Is(err, chunk.ErrCorrupt) {
				t.Errorf("writer %d that fails after %d bytes: %v", i, n, err)
			}
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cfg := small
	cfg.Progress = func(int64) { cancel(errTest) }
	if _, err := Build(ctx, iotest.HalfReader(bytes.NewReader(enc)), io.Discard, io.Discard, cfg); !errors.Is(err, errTest) {
		t.Errorf("canceled: %v", err)
	}
	for _, cfg := range []Config{{ChunkSize: -1}, {ChunkSize: 100}, {ChunkSize: chunk.MaxSize + 1}, {SpanSize: -1}, {Algorithm: 9}} {
		if _, err := Build(t.Context(), bytes.NewReader(enc), io.Discard, io.Discard, cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// A limitedWriter fails after n bytes.
type limitedWriter struct {
	n   int64
	err error
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.n -= int64(len(p)); w.n < 0 {
		return 0, w.err
	}
	return len(p), nil
}

func TestBuildProgress(t *testing.T) {
	enc := gz(t, 6, gzip.Header{}, mixed(t))
	last := int64(0)
	cfg := Config{Progress: func(n int64) {
		if n <= last {
			t.Errorf("%d after %d", n, last)
		}
		last = n
	}}
	build(t, enc, cfg)
	if last != int64(len(enc)) {
		t.Errorf("progress ends at %d of %d", last, len(enc))
	}
}

// A bitWriter writes deflate data.
type bitWriter struct {
	p    []byte
	bits uint64
	n    uint
}

func (w *bitWriter) write(v uint64, n uint) {
	w.bits |= v << w.n
	for w.n += n; w.n >= 8; w.n -= 8 {
		w.p = append(w.p, byte(w.bits))
		w.bits >>= 8
	}
}

// literal writes a byte in the fixed code.
func (w *bitWriter) literal(b byte) {
	code, n := uint64(b)+0x30, uint(8)
	if b >= 144 {
		code, n = uint64(b)-144+0x190, 9
	}
	for i := range n {
		w.write(code>>(n-1-i)&1, 1)
	}
}

// oneBlock returns a gzip member that is one deflate block: head, then zeros up
// to n bytes.
func oneBlock(head []byte, n int) []byte {
	w := bitWriter{p: []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}}
	w.write(1|1<<1, 3) // final, fixed codes
	for _, b := range head {
		w.literal(b)
	}
	w.literal(0)
	n -= len(head) + 1
	for ; n >= 258; n -= 258 {
		w.write(0b10100011, 8) // length 258: code 11000101, first bit first
		w.write(0, 5)          // distance 1
	}
	for range n {
		w.literal(0)
	}
	w.write(0, 7) // end of block
	w.write(0, 7) // up to the next byte
	return w.p
}

// TestBuildMemory checks that neither one huge block nor a flood of tiny blocks,
// members or entries takes more memory than the package comment says.
func TestBuildMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("decodes hundreds of megabytes")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // so that little of the heap is garbage
	const size = 128 << 20
	for _, row := range []struct {
		name string
		enc  func() []byte
	}{
		{"one block", func() []byte {
			a := &archive{t: t}
			a.raw(rawBlock("zeros", tar.TypeReg, size, posix), nil)
			enc := oneBlock(a.b.Bytes(), size+2048)
			sum := crc32.ChecksumIEEE(a.b.Bytes())
			zeros := make([]byte, 1<<20)
			for n := size + 2048 - a.b.Len(); n > 0; n -= len(zeros) {
				sum = crc32.Update(sum, crc32.IEEETable, zeros[:min(n, len(zeros))])
			}
			enc = binary.LittleEndian.AppendUint32(enc, sum)
			return binary.LittleEndian.AppendUint32(enc, size+2048)
		}},
		{"empty blocks", func() []byte {
			a := &archive{t: t}
			enc := gz(t, 6, gzip.Header{}, a.end())
			empty := slices.Clone(enc[:inflate.HeaderLen])
			empty = append(empty, bytes.Repeat([]byte{0, 0, 0, 0xff, 0xff}, 1<<20)...)
			return append(empty, enc[inflate.HeaderLen:]...)
		}},
		{"empty members", func() []byte {
			a := &archive{t: t}
			return append(bytes.Repeat(gz(t, 6, gzip.Header{}, nil), 50_000), gz(t, 6, gzip.Header{}, a.end())...)
		}},
		{"many entries", func() []byte {
			a := &archive{t: t}
			for i := range 40_000 {
				a.raw(rawBlock(fmt.Sprintf("dir%d/file%d", i/1000, i), tar.TypeDir, 0, posix), nil)
			}
			return gz(t, 1, gzip.Header{}, a.end())
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			enc := row.enc()
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			before, most := m.HeapInuse, uint64(0)
			cfg := Config{Progress: func(int64) {
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapInuse)
			}}
			if _, err := Build(t.Context(), bytes.NewReader(enc), io.Discard, io.Discard, cfg); err != nil {
				t.Fatal(err)
			}
			if most > before+32<<20 {
				t.Errorf("heap grew by %d MiB", (most-before)>>20)
			}
		})
	}
}
