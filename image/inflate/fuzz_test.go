package inflate

import (
	"bytes"
	stdflate "compress/flate"
	stdgzip "compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"graze/image/fixture"
	"graze/image/inflate/inflatetest"

	"github.com/klauspost/compress/flate"
)

// maxFuzz bounds what the decoders of fuzz targets are let decode, in bytes.
const maxFuzz = 16 << 20

// reference decodes a stream by another decoder, and returns with it how many
// bytes it takes.
func reference(open func(io.Reader) io.Reader, enc []byte) ([]byte, int64, error) {
	src := bytes.NewReader(enc) // with ReadByte, so that no more is read than needed
	p, err := io.ReadAll(io.LimitReader(open(src), maxFuzz))
	return p, int64(len(enc) - src.Len()), err
}

// maxSymbol is the most bytes that a length and its distance take, with all their
// bits.
const maxSymbol = 6

// compare decodes a stream by this package, by compress/flate, which it must
// agree with on what is wrong with the stream, and by klauspost's decoder, which
// takes some codes that are none.
func compare(t *testing.T, enc []byte, size int) {
	t.Helper()
	var in Input
	var z Reader
	in.Reset(bytes.NewReader(enc), 0)
	z.Start(&in)
	got, err := readAll(io.LimitReader(&z, maxFuzz), size)
	want, used, wantErr := reference(func(r io.Reader) io.Reader { return stdflate.NewReader(r) }, enc)
	if err != nil && !errors.Is(err, ErrCorrupt) && err != io.ErrUnexpectedEOF {
		t.Errorf("error is %v", err)
	}
	// What breaks a rule with its last symbol, which is not all there, can be called
	// either.
	atEnd := err != nil && wantErr != nil && in.Offset() >= int64(len(enc))-maxSymbol
	if (err == nil) != (wantErr == nil) || !atEnd && (err == io.ErrUnexpectedEOF) != (wantErr == io.ErrUnexpectedEOF) {
		t.Errorf("error %v, compress/flate has %v", err, wantErr)
	}
	if !bytes.HasPrefix(got, want) || err == nil && len(got) != len(want) {
		t.Errorf("%d bytes differ from the %d of compress/flate", len(got), len(want))
	}
	if err != nil || len(got) == maxFuzz {
		return
	}
	if in.Offset() != used {
		t.Errorf("%d bytes used, %d by compress/flate", in.Offset(), used)
	}
	want, used, wantErr = reference(func(r io.Reader) io.Reader { return flate.NewReader(r) }, enc)
	if wantErr != nil || !bytes.Equal(got, want) || in.Offset() != used {
		t.Errorf("%d bytes from %d, by klauspost's decoder %d from %d, error %v", len(got), in.Offset(), len(want), used, wantErr)
	}
}

// mutate damages a stream in one of several ways.
func mutate(rng *rand.Rand, enc []byte) []byte {
	enc = slices.Clone(enc)
	for range 1 + rng.IntN(3) {
		if len(enc) == 0 {
			return enc
		}
		i := rng.IntN(len(enc))
		switch rng.IntN(5) {
		case 0:
			enc[i] ^= 1 << rng.IntN(8)
		case 1:
			enc[i] = byte(rng.Uint32())
		case 2:
			enc = enc[:i]
		case 3:
			enc = slices.Delete(enc, i, min(len(enc), i+1+rng.IntN(4)))
		case 4:
			enc = slices.Insert(enc, i, inflatetest.Noise(uint64(byte(i)), 1+rng.IntN(4))...)
		}
	}
	return enc
}

// TestDamaged compares the decoders on damaged and random streams.
func TestDamaged(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, e := range encodings() {
		t.Run(e.name, func(t *testing.T) {
			for _, plain := range [][]byte{inflatetest.Text(7, 2000), inflatetest.Text(8, 90_000), inflatetest.Noise(7, 500), skewed(7, 5000), make([]byte, 3000)} {
				enc := e.encode(t, plain)
				for range 40 {
					compare(t, mutate(rng, enc), 1+rng.IntN(5000))
				}
			}
		})
	}
	for i := range 3000 {
		p := inflatetest.Noise(uint64(byte(i)), 10+rng.IntN(3000))
		rng.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
		p[0] = p[0]&^7 | byte(2*rng.IntN(3)) // no reserved block type
		compare(t, p, 1000)
	}
}

func FuzzInflate(f *testing.F) {
	for _, e := range encodings() {
		for _, p := range [][]byte{nil, inflatetest.Text(1, 3000), inflatetest.Noise(1, 300), bytes.Repeat([]byte("ab"), 3000), skewed(1, 2000)} {
			f.Add(e.encode(f, p), uint16(500))
		}
	}
	f.Fuzz(func(t *testing.T, enc []byte, size uint16) { compare(t, enc, int(size)+1) })
}

// FuzzResume enters what may be a stream anywhere.
func FuzzResume(f *testing.F) {
	plain := inflatetest.Text(9, 300_000)
	enc := encodings()[16].encode(f, plain)
	var in Input
	var z Reader
	in.Reset(bytes.NewReader(enc), 0)
	z.Observe(observerFunc(func([]byte) {
		if z.Block() {
			bit := z.BitOffset()
			f.Add(enc[bit>>3:], uint8(bit&7), bytes.Clone(z.Window()))
			f.Add(enc[bit>>3:], uint8(bit&7), z.Window()[:100])
		}
	}))
	z.Start(&in)
	io.Copy(io.Discard, struct{ io.Reader }{&z})
	f.Fuzz(func(t *testing.T, enc []byte, skip uint8, window []byte) {
		if len(enc) == 0 {
			return // klauspost's decoder wants the byte to skip bits of
		}
		skip, window = skip&7, window[:min(len(window), WindowSize)]
		var in Input
		var z Reader
		in.Reset(bytes.NewReader(enc), 0)
		z.Resume(&in, skip, window)
		got, err := readAll(io.LimitReader(&z, maxFuzz), 5000)
		r := flate.NewReader(nil)
		cp := flate.InflateCheckpoint{BitOffset: skip, Window: window}
		refErr := r.(interface {
			ResetCP(io.Reader, flate.InflateCheckpoint) error
		}).ResetCP(bytes.NewReader(enc), cp)
		if refErr != nil {
			t.Fatal(refErr)
		}
		want, refErr := io.ReadAll(io.LimitReader(r, maxFuzz))
		if err == nil && (refErr != nil || !bytes.Equal(got, want)) {
			t.Errorf("%d bytes in place of %d, error %v, klauspost's has %v", len(got), len(want), err, refErr)
		}
	})
}

// FuzzGzip compares the members of a file with those that the standard library
// finds.
func FuzzGzip(f *testing.F) {
	p := inflatetest.Text(2, 1000)
	full := stdgzip.Header{Name: "name", Comment: "comment", Extra: []byte("extra")}
	f.Add(member(f, stdgzip.Header{}, p))
	f.Add(append(member(f, full, p), member(f, full, nil)...))
	f.Add(withCRC(member(f, stdgzip.Header{}, nil)))
	for _, name := range []string{"zlib_sample.txt", "zran-single-stream.tar", "zran-two-streams.tar", "zran-zero-file.tar"} {
		if p := fixture.Seed(f, "nydus/tests/texture/zran/"+name+".gz"); p != nil {
			f.Add(p)
		}
	}
	f.Fuzz(func(t *testing.T, enc []byte) {
		got, _, _, err := gunzip(bytes.NewReader(enc), 1000)
		if err != nil && !errors.Is(err, ErrCorrupt) && err != io.ErrUnexpectedEOF {
			t.Errorf("error is %v", err)
		}
		r, refErr := stdgzip.NewReader(bytes.NewReader(enc))
		if refErr != nil {
			// Reserved flags are refused here alone.
			if err == nil && len(got) > 0 {
				t.Errorf("%d bytes, the standard library has %v", len(got), refErr)
			}
			return
		}
		r.Multistream(false)
		want, refErr := io.ReadAll(io.LimitReader(r, maxFuzz))
		if refErr == nil && err == nil && !bytes.HasPrefix(got, want) {
			t.Errorf("%d bytes do not begin with the %d of the first member", len(got), len(want))
		}
		if refErr != nil && err == nil {
			t.Errorf("no error, the standard library has %v", refErr)
		}
	})
}
