package inflate

import (
	"bytes"
	stdflate "compress/flate"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"graze/image/inflate/inflatetest"
)

// sources are ways to deliver bytes.
var sources = []struct {
	name string
	wrap func(io.Reader) io.Reader
}{
	{"whole", func(r io.Reader) io.Reader { return r }},
	{"bytes", iotest.OneByteReader},
	{"halves", func(r io.Reader) io.Reader { return iotest.DataErrReader(iotest.HalfReader(r)) }},
	{"with pauses", func(r io.Reader) io.Reader { return &pausing{r: r} }},
}

// A pausing reader returns nothing every other time, and else 1000 bytes.
type pausing struct {
	r   io.Reader
	odd bool
}

func (p *pausing) Read(b []byte) (int, error) {
	if p.odd = !p.odd; p.odd {
		return 0, nil
	}
	return p.r.Read(b[:min(len(b), 1000)])
}

// A decoder decodes one stream after the other with the same state.
type decoder struct {
	in Input
	z  Reader
}

// inflate decodes the stream that r begins with, in reads of the given size,
// and returns with it how many bytes it takes.
func (d *decoder) inflate(r io.Reader, size int) (p []byte, used int64, err error) {
	d.in.Reset(r, 0)
	d.z.Start(&d.in)
	p, err = readAll(&d.z, size)
	return p, d.in.Offset(), err
}

// readAll reads to the end in pieces of the given size.
func readAll(r io.Reader, size int) (p []byte, err error) {
	buf := make([]byte, size)
	for err == nil {
		var n int
		n, err = r.Read(buf)
		p = append(p, buf[:n]...)
	}
	if err == io.EOF {
		err = nil
	}
	return p, err
}

func TestRead(t *testing.T) {
	var d decoder
	for _, e := range encodings() {
		t.Run(e.name, func(t *testing.T) {
			for name, plain := range contents {
				enc := e.encode(t, plain)
				tail := append(slices.Clone(enc), "and what follows, which is long enough for the fast loop"...)
				for i, src := range sources {
					for _, size := range []int{1 << 20, 777, 70_000}[i%2:] {
						for _, p := range [][]byte{enc, tail} {
							got, used, err := d.inflate(src.wrap(bytes.NewReader(p)), size)
							if err != nil || used != int64(len(enc)) || !bytes.Equal(got, plain) {
								t.Errorf("%s, source by %s, %d bytes at a time: %d bytes of %d from %d of %d, error %v",
									name, src.name, size, len(got), len(plain), used, len(enc), err)
							}
						}
					}
				}
			}
		})
	}
}

// TestReadLittle checks that no more is decoded than was asked for, but for a
// match, nor more of the source waited for than that takes.
func TestReadLittle(t *testing.T) {
	plain := contents["text"]
	var cp []int // end of each flush in enc
	var b bytes.Buffer
	w, err := stdflate.NewWriter(&b, 6)
	if err != nil {
		t.Fatal(err)
	}
	for p := range slices.Chunk(plain, 10_000) {
		w.Write(p)
		w.Flush()
		cp = append(cp, b.Len())
	}
	var in Input
	var z Reader
	r, pipe := io.Pipe()
	go func() {
		// All that comes after the second flush never arrives.
		pipe.Write(b.Bytes()[:cp[1]+inputSlack])
	}()
	in.Reset(r, 0)
	z.Start(&in)
	for _, want := range [][]byte{plain[:10], plain[10:20_000]} {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(&z, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("error %v", err)
		}
		if off := in.Offset(); len(want) == 10 && off > 1000 {
			t.Errorf("%d bytes used for the first %d", off, len(want))
		}
	}
	pipe.Close()
}

// TestHandMade decodes streams that encoders don't make.
func TestHandMade(t *testing.T) {
	var d decoder
	history := inflatetest.Noise(9, WindowSize)
	far := func(before, d int) func(*bitWriter) {
		return func(w *bitWriter) {
			w.fixed(true)
			w.literals(history[:before])
			w.match(258, d)
			w.match(3, d)
		}
	}
	for _, row := range []struct {
		name string
		make func(w *bitWriter)
		want []byte
		bad  bool
	}{
		{"greatest distance", far(32768, 32768), slices.Concat(history, history[:261]), false},
		{"to the first byte", far(1000, 1000), slices.Concat(history[:1000], history[:261]), false},
		{"before the first byte", far(999, 1000), history[:999], true},
		{"before the first byte at once", far(0, 1), nil, true},
		{"to the first byte, across blocks", func(w *bitWriter) {
			w.stored(false, history)
			w.fixed(false)
			w.symbol(256)
			w.stored(false, nil)
			w.fixed(true)
			w.match(258, 32768)
		}, slices.Concat(history, history[:258]), false},
		{"empty blocks", func(w *bitWriter) {
			for range 10_000 {
				w.fixed(false)
				w.symbol(256)
				w.stored(false, nil)
			}
			w.fixed(true)
		}, nil, false},
		{"largest stored block", func(w *bitWriter) {
			w.stored(false, append(history[:32768:32768], history[:32767]...))
			w.fixed(true)
		}, append(history[:32768:32768], history[:32767]...), false},
		{"reserved block type", func(w *bitWriter) { w.write(7, 3) }, nil, true},
		{"stored block with unequal lengths", func(w *bitWriter) { w.p = []byte{1, 5, 0, 5, 0, 1, 2, 3, 4, 5} }, nil, true},
		{"reserved length symbol", func(w *bitWriter) { w.fixed(true); w.literals([]byte("abc")); w.symbol(286) }, []byte("abc"), true},
		{"reserved distance symbol", func(w *bitWriter) { w.fixed(true); w.literals([]byte("abc")); w.symbol(257); w.code(30, 5) }, []byte("abc"), true},
		{"too many literal codes", func(w *bitWriter) { w.write(5, 3); w.write(30, 5); w.write(0, 5); w.write(0, 4) }, nil, true},
		{"too many distance codes", func(w *bitWriter) { w.write(5, 3); w.write(0, 5); w.write(30, 5); w.write(0, 4) }, nil, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			var w bitWriter
			row.make(&w)
			enc := append(w.end(), make([]byte, 40)...)
			for _, src := range sources {
				got, _, err := d.inflate(src.wrap(bytes.NewReader(enc)), 5000)
				if !bytes.Equal(got, row.want) || row.bad != errors.Is(err, ErrCorrupt) || !row.bad && err != nil {
					t.Errorf("source by %s: %d bytes in place of %d, error %v", src.name, len(got), len(row.want), err)
				}
			}
		})
	}
}

// TestMatches decodes matches of all lengths at all short distances, and at the
// end of the buffer.
func TestMatches(t *testing.T) {
	var dec decoder
	var w bitWriter
	var plain []byte
	for d := 1; d <= 70; d++ {
		w.fixed(false)
		w.literals(inflatetest.Noise(uint64(d), d))
		plain = append(plain, inflatetest.Noise(uint64(d), d)...)
		for n := 3; n <= maxMatch; n++ {
			w.match(n, d)
			for range n {
				plain = append(plain, plain[len(plain)-d])
			}
			w.symbol('!') // the pattern must not go on by chance
			plain = append(plain, '!')
		}
		w.symbol(256)
	}
	w.fixed(true)
	enc := w.end()
	for _, size := range []int{1, 100, 1 << 20} {
		got, _, err := dec.inflate(bytes.NewReader(enc), size)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%d bytes at a time: %d bytes in place of %d, error %v", size, len(got), len(plain), err)
		}
	}
}

// TestTruncated cuts streams at each byte, and has their source fail there. All
// whole symbols before come out; the standard library's decoder holds back those
// that are followed by fewer bits than the end of the block has.
func TestTruncated(t *testing.T) {
	var d decoder
	errBroken := errors.New("broken")
	std := stdflate.NewReader(nil)
	for _, e := range encodings() {
		t.Run(e.name, func(t *testing.T) {
			for _, plain := range [][]byte{nil, inflatetest.Text(3, 3000), inflatetest.Noise(3, 300), make([]byte, 1000), skewed(3, 900)} {
				enc := e.encode(t, plain)
				for n := range enc {
					if err := std.(stdflate.Resetter).Reset(bytes.NewReader(enc[:n]), nil); err != nil {
						t.Fatal(err)
					}
					want, err := io.ReadAll(std)
					if err != io.ErrUnexpectedEOF {
						t.Fatal(err)
					}
					got, _, err := d.inflate(bytes.NewReader(enc[:n]), 1000)
					if err != io.ErrUnexpectedEOF || !bytes.HasPrefix(got, want) || !bytes.HasPrefix(plain, got) {
						t.Errorf("%d of %d: %d bytes in place of %d, error %v", n, len(enc), len(got), len(want), err)
					}
					want = got
					src := io.MultiReader(bytes.NewReader(enc[:n]), iotest.ErrReader(errBroken))
					got, _, err = d.inflate(src, 1000)
					if err != errBroken || !bytes.Equal(got, want) {
						t.Errorf("broken at %d of %d: %d bytes in place of %d, error %v", n, len(enc), len(got), len(want), err)
					}
				}
			}
		})
	}
}

func TestNoProgress(t *testing.T) {
	var d decoder
	src := readerFunc(func([]byte) (int, error) { return 0, nil })
	if _, _, err := d.inflate(src, 100); err != io.ErrNoProgress {
		t.Error(err)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestResumeWindow checks that a window is all that a stream can refer to.
func TestResumeWindow(t *testing.T) {
	window := inflatetest.Noise(5, WindowSize)
	for _, n := range []int{0, 1, 100, 32767, 32768} {
		for _, d := range []int{1, 100, 101, 32768} {
			var w bitWriter
			w.write(0, 3) // what is skipped
			w.fixed(true)
			w.match(3, d)
			var in Input
			var z Reader
			in.Reset(bytes.NewReader(w.end()), 1<<40)
			z.Resume(&in, 3, window[:n])
			got, err := readAll(&z, 10)
			if d > n {
				if !errors.Is(err, ErrCorrupt) || len(got) > 0 {
					t.Errorf("distance %d with a window of %d: error %v", d, n, err)
				}
				continue
			}
			want := slices.Clone(window[:n])
			for range 3 {
				want = append(want, want[len(want)-d])
			}
			if err != nil || !bytes.Equal(got, want[n:]) {
				t.Errorf("distance %d with a window of %d: %x, error %v", d, n, got, err)
			}
		}
	}
	for _, enc := range [][]byte{nil, {0}} {
		var in Input
		var z Reader
		in.Reset(bytes.NewReader(enc), 0)
		z.Resume(&in, 7, nil)
		if _, err := readAll(&z, 10); err != io.ErrUnexpectedEOF {
			t.Errorf("resumed at the last bit of %d bytes: %v", len(enc), err)
		}
	}
}

// TestErrorOffset checks that errors tell where they are in the blob.
func TestErrorOffset(t *testing.T) {
	var in Input
	var z Reader
	in.Reset(bytes.NewReader([]byte{0, 3, 0, 0xfc, 0xff, 'a', 'b', 'c', 7}), 1<<40)
	z.Start(&in)
	_, err := readAll(&z, 100)
	want := fmt.Sprintf("corrupt deflate data: reserved block type at byte %d", 1<<40+8)
	if err == nil || err.Error() != want {
		t.Errorf("error %q in place of %q", err, want)
	}
}

// TestReuse checks that neither a state that was left anywhere nor an error has
// an effect on what follows, and that nothing is allocated.
func TestReuse(t *testing.T) {
	plain := contents["mixed"]
	enc := encodings()[20].encode(t, plain)
	var in Input
	var z Reader
	src := bytes.NewReader(nil)
	buf := make([]byte, len(plain))
	bad := bytes.Clone(enc)
	bad[len(bad)/2] ^= 0xff
	run := func() {
		for _, p := range [][]byte{enc[:len(enc)/3], enc} {
			z.Reset()
			src.Reset(p)
			in.Reset(src, 0)
			z.Start(&in)
			if n, err := io.ReadFull(&z, buf); err == nil && !bytes.Equal(buf, plain) || err != nil && len(p) == len(enc) {
				t.Fatalf("%d bytes, error %v", n, err)
			}
		}
	}
	if allocs := testing.AllocsPerRun(10, run); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
	src.Reset(bad)
	in.Reset(src, 0)
	z.Start(&in)
	io.Copy(io.Discard, &z)
	run()
}

func TestZero(t *testing.T) {
	var z Reader
	if n, err := z.Read(make([]byte, 5)); n != 0 || err != io.EOF {
		t.Errorf("%d bytes, error %v", n, err)
	}
	var in Input
	if n, err := in.Read(make([]byte, 5)); n != 0 || err != io.EOF {
		t.Errorf("%d bytes, error %v", n, err)
	}
}

func TestInput(t *testing.T) {
	plain := inflatetest.Noise(1, 300_000)
	for _, src := range sources {
		t.Run(src.name, func(t *testing.T) {
			var in Input
			const base = 1 << 33
			in.Reset(src.wrap(bytes.NewReader(plain)), base)
			at := 0
			for i, n := range []int{5, 70_000, 1, 66_000, 0, 20, 65_536} {
				p := make([]byte, n)
				if _, err := io.ReadFull(&in, p); err != nil || !bytes.Equal(p, plain[at:at+n]) {
					t.Fatalf("read of %d bytes at %d: %v", n, at, err)
				}
				at += n
				if err := in.Skip(int64(i * 1000)); err != nil {
					t.Fatal(err)
				}
				at += i * 1000
				if in.Offset() != base+int64(at) {
					t.Fatalf("offset %d in place of %d", in.Offset(), at)
				}
			}
			if err := in.Skip(1 << 40); err != io.ErrUnexpectedEOF {
				t.Errorf("skipped beyond the end: %v", err)
			}
			if in.Offset() != base+int64(len(plain)) {
				t.Errorf("offset %d at the end", in.Offset())
			}
			if n, err := in.Read(make([]byte, 70_000)); n != 0 || err != io.EOF {
				t.Errorf("%d bytes, error %v at the end", n, err)
			}
		})
	}
}
