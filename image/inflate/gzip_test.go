package inflate

import (
	"bytes"
	stdgzip "compress/gzip"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"testing"

	"graze/image/inflate/inflatetest"
)

// member returns p as a gzip member.
func member(t testing.TB, hdr stdgzip.Header, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := stdgzip.NewWriter(&b)
	w.Header = hdr
	_, err := w.Write(p)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// withCRC returns a gzip member with a checksum of its header.
func withCRC(member []byte) []byte {
	hdr := slices.Clone(member[:HeaderLen])
	hdr[3] |= flagHeaderCRC
	hdr = binary.LittleEndian.AppendUint16(hdr, uint16(crc32.ChecksumIEEE(hdr)))
	return append(hdr, member[HeaderLen:]...)
}

// gunzip decodes all members that r begins with, and returns with them how many
// bytes they take.
func gunzip(r io.Reader, size int) (p []byte, members int, used int64, err error) {
	var in Input
	var g Gzip
	in.Reset(r, 0)
	for {
		if err = g.Next(&in); err != nil {
			if err == io.EOF {
				err = nil
			}
			return p, members, in.Offset(), err
		}
		q, err := readAll(&g, size)
		if p = append(p, q...); err != nil {
			return p, members, in.Offset(), err
		}
		if g.Offset() != int64(len(p)) {
			return p, members, in.Offset(), errors.New("wrong offset")
		}
		members++
	}
}

func TestGzip(t *testing.T) {
	plain := contents["text"]
	full := stdgzip.Header{Name: "name", Comment: "comment", Extra: bytes.Repeat([]byte{7}, 65_000)}
	one := member(t, stdgzip.Header{}, plain)
	none := member(t, full, nil)
	for _, row := range []struct {
		name    string
		enc     []byte
		tail    string
		members int
	}{
		{"nothing", nil, "", 0},
		{"no member", nil, "something else", 0},
		{"one member", one, "", 1},
		{"all fields", member(t, full, plain), "", 1},
		{"header checksum", withCRC(one), "", 1},
		{"members", slices.Concat(one, none, none, member(t, full, plain), one), "", 5},
		{"then zeros", slices.Concat(one, one), "\x00\x00\x00\x00", 2},
		{"then a byte of the magic", one, "\x1f", 1},
		{"then two bytes of the magic", one, "\x1f\x8b", 1},
		{"then another compression method", one, "\x1f\x8b\x07aaaaaaaaaaaaaaaaaaaaaaaa", 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, src := range sources {
				got, n, used, err := gunzip(src.wrap(bytes.NewReader(append(slices.Clone(row.enc), row.tail...))), 5000)
				if err != nil || n != row.members || used != int64(len(row.enc)) {
					t.Errorf("source by %s: %d members, offset %d of %d, error %v", src.name, n, used, len(row.enc), err)
				}
				for len(got) > 0 && bytes.HasPrefix(got, plain) {
					got = got[len(plain):]
				}
				if len(got) > 0 {
					t.Errorf("source by %s: wrong bytes", src.name)
				}
			}
		})
	}
}

func TestGzipBad(t *testing.T) {
	plain := inflatetest.Text(4, 3000)
	one := member(t, stdgzip.Header{}, plain)
	full := member(t, stdgzip.Header{Name: "name", Comment: "comment", Extra: []byte("extra")}, plain)
	flip := func(p []byte, at int) []byte {
		p = slices.Clone(p)
		p[(at+len(p))%len(p)] ^= 0x55
		return p
	}
	for _, row := range []struct {
		name string
		enc  []byte
	}{
		{"reserved flags", flip(one, 3)},
		{"wrong checksum of the header", flip(withCRC(one), HeaderLen)},
		{"wrong checksum", flip(one, -8)},
		{"wrong size", flip(one, -1)},
		{"second member's checksum", append(slices.Clone(one), flip(full, -8)...)},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, _, _, err := gunzip(bytes.NewReader(row.enc), 1000); !errors.Is(err, ErrCorrupt) {
				t.Errorf("error is %v", err)
			}
		})
	}
	for n := 3; n < len(full); n++ {
		if _, _, _, err := gunzip(bytes.NewReader(full[:n]), 1000); err != io.ErrUnexpectedEOF {
			t.Errorf("cut at %d of %d: %v", n, len(full), err)
		}
	}
}

// TestGzipResume checks that a member that was entered in the middle is decoded
// to its end without its checksum, and the next one with it.
func TestGzipResume(t *testing.T) {
	plain := contents["text"]
	one := member(t, stdgzip.Header{}, plain)
	o, _ := observed(t, bytes.NewReader(one[HeaderLen:]), 1<<20)
	b := o.blocks[2]
	next := member(t, stdgzip.Header{}, plain)
	for _, good := range []bool{true, false} {
		enc := slices.Concat(one, next)
		if !good {
			enc[len(enc)-8] ^= 1
		}
		var in Input
		var g Gzip
		from := HeaderLen + b.bit>>3
		in.Reset(bytes.NewReader(enc[from:]), from)
		g.Resume(&in, uint8(b.bit&7), b.window)
		got, err := readAll(&g, 1000)
		if err != nil || !bytes.Equal(got, plain[b.at:]) || in.Offset() != int64(len(one)) {
			t.Errorf("%d bytes, offset %d, error %v", len(got), in.Offset(), err)
		}
		if err := g.Next(&in); err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(&g, 1000); good != (err == nil) || !good && !errors.Is(err, ErrCorrupt) {
			t.Errorf("next member: %v", err)
		}
	}
}

// TestGzipLarge decodes a member of more than 4 GiB, encoded and decoded, whose
// trailer has its size modulo that.
func TestGzipLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("decodes 4 GiB")
	}
	const blocks = 1<<16 + 10
	const size = int64(blocks) * 65535
	block := append([]byte{0, 0xff, 0xff, 0, 0}, make([]byte, 65535)...)
	src := []io.Reader{bytes.NewReader([]byte(Magic + "\x00\x00\x00\x00\x00\x00\xff"))}
	crc := uint32(0)
	for range blocks {
		src = append(src, bytes.NewReader(block))
		crc = crc32.Update(crc, crc32.IEEETable, block[5:])
	}
	end := []byte{1, 0, 0, 0xff, 0xff}
	end = binary.LittleEndian.AppendUint32(end, crc)
	end = binary.LittleEndian.AppendUint32(end, uint32(size&(1<<32-1)))
	var in Input
	var g Gzip
	in.Reset(io.MultiReader(append(src, bytes.NewReader(end))...), 0)
	if err := g.Next(&in); err != nil {
		t.Fatal(err)
	}
	got, err := io.Copy(io.Discard, struct{ io.Reader }{&g})
	encoded := HeaderLen + blocks*int64(len(block)) + int64(len(end))
	if err != nil || got != size || g.Offset() != size || in.Offset() != encoded {
		t.Errorf("%d bytes, offsets %d and %d of %d, error %v", got, g.Offset(), in.Offset(), encoded, err)
	}
}

// TestGzipAllocs checks that members cost no allocations.
func TestGzipAllocs(t *testing.T) {
	full := stdgzip.Header{Name: "name", Comment: "comment", Extra: []byte("extra")}
	enc := bytes.Repeat(withCRC(member(t, stdgzip.Header{}, inflatetest.Text(1, 500))), 20)
	enc = append(enc, bytes.Repeat(member(t, full, inflatetest.Text(1, 500)), 20)...)
	var in Input
	var g Gzip
	src := bytes.NewReader(nil)
	buf := make([]byte, 1000)
	if allocs := testing.AllocsPerRun(10, func() {
		src.Reset(enc)
		in.Reset(src, 0)
		for g.Next(&in) == nil {
			for {
				if _, err := g.Read(buf); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
