package targz

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"graze/image/inflate/inflatetest"
)

// An archive is a tar that a test makes.
type archive struct {
	t testing.TB
	b bytes.Buffer
}

// add adds an entry by archive/tar, but no end of the archive.
func (a *archive) add(hdr tar.Header, data []byte) {
	a.t.Helper()
	hdr.Size = int64(len(data))
	if hdr.Typeflag == 0 {
		hdr.Typeflag = tar.TypeReg
	}
	w := tar.NewWriter(&a.b)
	if err := w.WriteHeader(&hdr); err != nil {
		a.t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		a.t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		a.t.Fatal(err)
	}
}

// A block512 is a header that a test makes by hand.
type block512 [blockSize]byte

// rawBlock returns a header block with the given magic: "ustar\x0000" for POSIX,
// "ustar  \x00" for GNU, or none for V7.
func rawBlock(name string, typ byte, size int64, magic string) *block512 {
	b := new(block512)
	b.set(0, name)
	b.set(100, "0000644\x00")
	b.set(108, "0001750\x00")
	b.set(116, "0001751\x00")
	b.set(sizeField, fmt.Sprintf("%011o\x00", size))
	b.set(136, fmt.Sprintf("%011o\x00", 1700000000))
	b[typeField] = typ
	b.set(257, magic)
	return b
}

func (b *block512) set(at int, s string) { copy(b[at:], s) }

// raw adds a header block, with its checksum, and data up to the next block.
func (a *archive) raw(b *block512, data []byte) {
	copy(b[148:156], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	b.set(148, fmt.Sprintf("%06o\x00 ", sum))
	a.b.Write(b[:])
	a.data(data)
}

// data adds bytes and fills up the block.
func (a *archive) data(p []byte) {
	a.b.Write(p)
	a.b.Write(make([]byte, -len(p)&(blockSize-1)))
}

// pax adds an extended header of the given type, of keys and values.
func (a *archive) pax(typ byte, kv ...string) {
	var s strings.Builder
	for i := 0; i < len(kv); i += 2 {
		rest := fmt.Sprintf(" %s=%s\n", kv[i], kv[i+1])
		n := len(rest) + 1
		for len(fmt.Sprint(n))+len(rest) != n {
			n++
		}
		fmt.Fprint(&s, n, rest)
	}
	a.raw(rawBlock("pax", typ, int64(s.Len()), posix), []byte(s.String()))
}

// end adds the end of the archive, filled up as tar does it.
func (a *archive) end() []byte {
	a.b.Write(make([]byte, 1024))
	a.b.Write(make([]byte, 10240-a.b.Len()%10240))
	return a.b.Bytes()
}

const (
	posix = "ustar\x0000"
	gnu   = "ustar  \x00"
)

// mixed returns an archive of about 1.8 MB with files of many sizes and kinds.
func mixed(t testing.TB) []byte {
	a := &archive{t: t}
	rng := rand.New(rand.NewPCG(9, 9))
	a.add(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Unix(1700000000, 0)}, nil)
	for i := range 300 {
		name := fmt.Sprintf("usr/share/dir%d/file%d", i/20, i)
		hdr := tar.Header{Name: name, Mode: 0o644, Uid: i % 3, ModTime: time.Unix(1700000000+int64(i), 0)}
		switch n := rng.IntN(3000); {
		case i%50 == 7:
			a.add(hdr, inflatetest.Text(uint64(i), 60_000+n))
		case i%60 == 3:
			a.add(hdr, inflatetest.Noise(uint64(i), 50_000+n))
		case i%10 == 5:
			a.add(hdr, nil)
		default:
			a.add(hdr, inflatetest.Text(uint64(i), n))
		}
	}
	for i := range 400 {
		a.add(tar.Header{Name: fmt.Sprintf("usr/links/l%d", i), Typeflag: tar.TypeSymlink, Linkname: fmt.Sprintf("../t%d", i)}, nil)
	}
	a.add(tar.Header{Name: "big", Mode: 0o4755}, append(inflatetest.Text(77, 300_001), bytes.Repeat([]byte{0}, 200_000)...))
	a.add(tar.Header{Name: "big.noise", Mode: 0o600}, inflatetest.Noise(78, 150_003))
	return a.end()
}
