package inflate

import (
	"bytes"
	"io"
	"testing"

	"graze/image/inflate/inflatetest"

	"github.com/klauspost/compress/flate"
)

// A block is where a deflate block begins, and what may be referred to and is.
type block struct {
	bit    int64 // offset in the encoded bytes, in bits
	at     int64 // offset in the decoded bytes
	window []byte
	refs   *References
}

// A recorder notes blocks, the least distance apart at which only one window
// need be watched, and all bytes that went by.
type recorder struct {
	z        *Reader
	blocks   []block
	from     int64 // end of the encoded bytes that went by
	enc, dec []byte
}

func (o *recorder) Decoded(p []byte) {
	o.dec = append(o.dec, p...)
	q := o.z.Encoded(o.from)
	o.enc = append(o.enc, q...)
	o.from += int64(len(q))
	if !o.z.Block() {
		return
	}
	b := block{bit: o.z.BitOffset(), at: o.z.Decoded(), window: bytes.Clone(o.z.Window())}
	if n := len(o.blocks); n == 0 || b.at-o.blocks[n-1].at >= WindowSize {
		b.refs = o.z.Watch()
		o.blocks = append(o.blocks, b)
	}
}

// observed decodes a stream with an observer, in reads of the given size.
func observed(t *testing.T, src io.Reader, size int) (*recorder, []byte) {
	t.Helper()
	var in Input
	var z Reader
	o := &recorder{z: &z}
	in.Reset(src, 0)
	z.Observe(o)
	z.Start(&in)
	p, err := readAll(&z, size)
	if err != nil {
		t.Fatal(err)
	}
	return o, p
}

// TestObserve enters streams at blocks that were observed, from windows that
// hold nothing but what was found to be in use, by this decoder and by
// klauspost's.
func TestObserve(t *testing.T) {
	for _, e := range encodings() {
		t.Run(e.name, func(t *testing.T) {
			for name, plain := range contents {
				enc := e.encode(t, plain)
				o, got := observed(t, bytes.NewReader(enc), 1<<20)
				if !bytes.Equal(got, plain) || !bytes.Equal(o.dec, plain) || !bytes.Equal(o.enc, enc) {
					t.Errorf("%s: %d bytes, %d observed, %d encoded ones of %d", name, len(got), len(o.dec), len(o.enc), len(enc))
				}
				for _, b := range o.blocks {
					if want := plain[max(0, b.at-WindowSize):b.at]; !bytes.Equal(b.window, want) {
						t.Errorf("%s, block at %d: wrong window", name, b.at)
					}
					window := b.refs.Trim(b.window)
					var in Input
					var z Reader
					in.Reset(bytes.NewReader(enc[b.bit>>3:]), b.bit>>3)
					z.Resume(&in, uint8(b.bit&7), window)
					got, err := readAll(&z, 50_000)
					if err != nil || !bytes.Equal(got, plain[b.at:]) || in.Offset() != int64(len(enc)) {
						t.Errorf("%s, block at %d: %d bytes of %d, offset %d of %d, error %v",
							name, b.at, len(got), len(plain)-int(b.at), in.Offset(), len(enc), err)
					}
					if got, err = byKlauspost(enc, b.bit, window); err != nil || !bytes.Equal(got, plain[b.at:]) {
						t.Errorf("%s, block at %d by klauspost's decoder: %d bytes, error %v", name, b.at, len(got), err)
					}
				}
			}
		})
	}
}

// byKlauspost decodes a stream from a block on.
func byKlauspost(enc []byte, bit int64, window []byte) ([]byte, error) {
	r := flate.NewReader(nil)
	cp := flate.InflateCheckpoint{BitOffset: uint8(bit & 7), Window: window}
	if err := r.(interface {
		ResetCP(io.Reader, flate.InflateCheckpoint) error
	}).ResetCP(bytes.NewReader(enc[bit>>3:]), cp); err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// TestObserveBlocks compares the blocks that are observed with those that
// klauspost's decoder reports. Its offsets in the encoded bytes are not
// compared: they are wrong after stored blocks.
func TestObserveBlocks(t *testing.T) {
	type place struct{ at, bit int64 }
	for _, e := range encodings() {
		t.Run(e.name, func(t *testing.T) {
			for name, plain := range contents {
				enc := e.encode(t, plain)
				var want []place
				r := flate.NewReaderOpts(bytes.NewReader(enc), flate.WithEobCallback(func(cp flate.InflateCheckpoint) {
					want = append(want, place{cp.UncompressedOffset, int64(cp.BitOffset)})
				}))
				if _, err := io.Copy(io.Discard, r); err != nil {
					t.Fatal(err)
				}
				want = want[:max(len(want)-1, 0)] // the last is the end
				for _, size := range []int{1, 1 << 20} {
					var in Input
					var z Reader
					in.Reset(bytes.NewReader(enc), 0)
					i := 0
					z.Observe(observerFunc(func([]byte) {
						if !z.Block() {
							return
						}
						if got := (place{z.Decoded(), z.BitOffset() & 7}); i >= len(want) || got != want[i] {
							t.Fatalf("%s: block %d of %d is at %v", name, i, len(want), got)
						}
						i++
					}))
					z.Start(&in)
					if _, err := readAll(&z, size); err != nil {
						t.Fatal(err)
					}
					if i != len(want) {
						t.Errorf("%s: %d blocks in place of %d", name, i, len(want))
					}
				}
			}
		})
	}
}

type observerFunc func(p []byte)

func (f observerFunc) Decoded(p []byte) { f(p) }

// TestObserveSame checks that neither the pieces in which the source arrives nor
// an observer change what is decoded.
func TestObserveSame(t *testing.T) {
	for _, e := range encodings() {
		plain := contents["mixed"]
		enc := e.encode(t, plain)
		for _, src := range sources {
			for _, size := range []int{100, 70_000} {
				o, got := observed(t, src.wrap(bytes.NewReader(enc)), size)
				if !bytes.Equal(got, plain) || !bytes.Equal(o.enc, enc) {
					t.Errorf("%s, source by %s: %d bytes, %d encoded ones", e.name, src.name, len(got), len(o.enc))
				}
			}
		}
	}
}

// TestReferences compares what is noted with copies that are known.
func TestReferences(t *testing.T) {
	window := inflatetest.Noise(6, WindowSize)
	type match struct{ n, d int }
	for _, row := range []struct {
		name    string
		window  int
		matches []match
		first   int // of the trimmed window, in the full one
		used    []int
	}{
		{"none", WindowSize, nil, 0, nil},
		{"first byte", WindowSize, []match{{3, WindowSize}}, 0, []int{0, 1, 2}},
		{"last byte, which repeats", WindowSize, []match{{200, 1}}, WindowSize - 1, []int{WindowSize - 1}},
		{"across words", WindowSize, []match{{10, WindowSize - 60}}, 60, []int{60, 61, 62, 63, 64, 65, 66, 67, 68, 69}},
		{"what is behind the window only", WindowSize, []match{{5, 5}, {5, 5}}, WindowSize - 5,
			[]int{WindowSize - 5, WindowSize - 4, WindowSize - 3, WindowSize - 2, WindowSize - 1}},
		{"short window", 100, []match{{3, 100}, {3, 50}}, WindowSize - 100,
			[]int{WindowSize - 100, WindowSize - 99, WindowSize - 98, WindowSize - 47, WindowSize - 46, WindowSize - 45}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var w bitWriter
			w.fixed(true)
			for _, m := range row.matches {
				w.match(m.n, m.d)
			}
			var in Input
			var z Reader
			in.Reset(bytes.NewReader(w.end()), 0)
			short := window[WindowSize-row.window:]
			z.Resume(&in, 0, short)
			refs := z.Watch()
			if _, err := readAll(&z, 1000); err != nil {
				t.Fatal(err)
			}
			var want []byte
			if row.used != nil {
				want = make([]byte, WindowSize-row.first)
			}
			for _, i := range row.used {
				want[i-row.first] = window[i]
			}
			if got := refs.Trim(short); !bytes.Equal(got, want) {
				t.Errorf("%d bytes in place of %d", len(got), len(want))
			}
		})
	}
}
