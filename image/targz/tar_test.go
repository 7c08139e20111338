package targz

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"graze/chunk"
	"graze/image"
	"graze/image/inflate/inflatetest"
)

// sparseData are the fragments of the sparse files below, and their bytes.
var (
	sparseFrags = []fragment{{0, 700}, {5000, 1}, {70_000, 9000}, {200_000, 512}, {300_000, 3}, {400_000, 88}, {499_000, 1000}}
	sparseSize  = int64(500_000)
)

func sparseData() (p []byte) {
	for i, f := range sparseFrags {
		p = append(p, inflatetest.Noise(uint64(i), int(f.len))...)
	}
	return p
}

// oldSparse adds a sparse file of the old GNU kind.
func (a *archive) oldSparse(name string, frags []fragment, size int64, data []byte) {
	b := rawBlock(name, tar.TypeGNUSparse, int64(len(data)), gnu)
	b.set(483, fmt.Sprintf("%011o\x00", size))
	put := func(p []byte, n int) {
		for i := range n {
			if len(frags) == 0 {
				return
			}
			copy(p[24*i:], fmt.Sprintf("%011o\x00%011o\x00", frags[0].off, frags[0].len))
			frags = frags[1:]
		}
	}
	put(b[sparseInHeader:], 4)
	if len(frags) > 0 {
		b[extendedField] = 1
	}
	// The checksum is of the header block alone.
	a.raw(b, nil)
	for len(frags) > 0 {
		ext := new(block512)
		put(ext[:], sparseBlockLen)
		if len(frags) > 0 {
			ext[extendedInBlock] = 1
		}
		a.b.Write(ext[:])
	}
	a.data(data)
}

// sparseList returns the numbers of a map.
func sparseList(frags []fragment, sep string) string {
	var words []string
	for _, f := range frags {
		words = append(words, fmt.Sprint(f.off), fmt.Sprint(f.len))
	}
	return strings.Join(words, sep)
}

// manyFrags returns n fragments of a byte each.
func manyFrags(n int) (frags []fragment) {
	for i := range n {
		frags = append(frags, fragment{int64(i) * 100, 1})
	}
	return frags
}

// archives are layers with what is rare in a tar.
var archives = []struct {
	name  string
	fill  func(a *archive)
	noEnd bool
}{
	{"nothing", func(*archive) {}, false},
	{"nothing without end", func(*archive) {}, true},
	{"without end", func(a *archive) { a.add(tar.Header{Name: "a"}, inflatetest.Text(1, 1000)) }, true},
	{"one block of zeros", func(a *archive) {
		a.add(tar.Header{Name: "a"}, inflatetest.Text(1, 1000))
		a.b.Write(make([]byte, blockSize))
	}, true},
	{"something after the end", func(a *archive) {
		a.add(tar.Header{Name: "a"}, inflatetest.Text(1, 1000))
		a.b.Write(make([]byte, 1024))
		a.b.WriteString("anything")
	}, true},
	{"kinds", func(a *archive) {
		a.add(tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
		a.add(tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "dir", Mode: 0o644}, nil)
		a.add(tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "link"}, nil)
		a.add(tar.Header{Name: "char", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}, nil)
		a.add(tar.Header{Name: "block", Typeflag: tar.TypeBlock, Devmajor: 259, Devminor: 70000}, nil)
		a.add(tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}, nil)
		a.add(tar.Header{Name: ".wh.gone"}, nil)
		a.add(tar.Header{Name: "dir/.wh..wh..opq"}, nil)
	}, false},
	{"fifo without device numbers", func(a *archive) { a.raw(rawBlock("fifo", tar.TypeFifo, 0, posix), nil) }, false},
	{"contiguous file", func(a *archive) { a.raw(rawBlock("cont", tar.TypeCont, 700, posix), inflatetest.Text(1, 700)) }, false},
	{"V7", func(a *archive) {
		a.raw(rawBlock("v7dir/", 0, 0, ""), nil)
		a.raw(rawBlock("v7dir/file", 0, 9, ""), []byte("some text"))
	}, false},
	{"prefix", func(a *archive) {
		b := rawBlock("name", tar.TypeReg, 3, posix)
		b.set(345, "a/long/prefix")
		a.raw(b, []byte("abc"))
	}, false},
	{"base-256 numbers", func(a *archive) {
		b := rawBlock("wide", tar.TypeReg, 0, gnu)
		b.set(sizeField, "\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x01")
		b.set(108, "\x80\x00\x00\x00\x7f\xff\xff\xff")
		b.set(116, "\x80\x00\x00\x00\x00\x20\x00\x01")
		a.raw(b, inflatetest.Text(1, 513))
		a.add(tar.Header{Name: "after"}, nil)
	}, false},
	{"owner of all bits", func(a *archive) {
		a.pax(tar.TypeXHeader, "uid", "4294967294", "gid", "2147483648")
		a.raw(rawBlock("owner", tar.TypeReg, 0, posix), nil)
	}, false},
	{"long names", func(a *archive) {
		for _, f := range []tar.Format{tar.FormatGNU, tar.FormatPAX} {
			long := strings.Repeat("long/", 100) + f.String()
			a.add(tar.Header{Name: long, Format: f}, inflatetest.Text(2, 300))
			a.add(tar.Header{Name: "s" + long, Typeflag: tar.TypeSymlink, Linkname: "../" + long, Format: f}, nil)
		}
	}, false},
	{"names that are not UTF-8", func(a *archive) {
		a.raw(rawBlock("latin1-\xe4\xf6\xfc", tar.TypeReg, 0, gnu), nil)
		a.add(tar.Header{Name: "umlaut-\u00e4", Format: tar.FormatPAX}, []byte("x"))
		b := rawBlock("symlink", tar.TypeSymlink, 0, gnu)
		b.set(157, "to-\xff\xfe")
		a.raw(b, nil)
	}, false},
	{"names that are not clean", func(a *archive) {
		for _, name := range []string{"/abs", "./a/../b", "a//b", "..", "../../up"} {
			a.add(tar.Header{Name: name}, []byte(name))
		}
	}, false},
	{"times", func(a *archive) {
		a.add(tar.Header{Name: "nanos", ModTime: time.Unix(1234567890, 123456789), Format: tar.FormatPAX}, nil)
		a.add(tar.Header{Name: "before", ModTime: time.Unix(-5, 5), Format: tar.FormatPAX}, nil)
		a.add(tar.Header{Name: "late", ModTime: time.Unix(1<<40, 0), Format: tar.FormatPAX}, nil)
	}, false},
	{"extended attributes", func(a *archive) {
		a.add(tar.Header{Name: "ping", Mode: 0o755, PAXRecords: map[string]string{
			"SCHILY.xattr.security.capability":     "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
			"SCHILY.xattr.user.b":                  "two\nlines",
			"SCHILY.xattr.user.a":                  "\x00\xff",
			"SCHILY.xattr.trusted.overlay.opaque":  "y",
			"LIBARCHIVE.xattr.user.not.understood": "x",
		}}, inflatetest.Text(1, 100))
		a.add(tar.Header{Name: "plain"}, inflatetest.Text(2, 100))
		a.add(tar.Header{Name: "d/", Typeflag: tar.TypeDir, PAXRecords: map[string]string{"SCHILY.xattr.user.d": "v"}}, nil)
	}, false},
	{"global headers", func(a *archive) {
		a.pax(tar.TypeXGlobalHeader, "comment", "0123456789012345678901234567890123456789", "SCHILY.xattr.user.none", "x")
		a.add(tar.Header{Name: "a"}, inflatetest.Text(1, 700))
		a.pax(tar.TypeXGlobalHeader, "mtime", "12")
		a.oldSparse("sparse", sparseFrags, sparseSize, sparseData())
		a.pax(tar.TypeXGlobalHeader, "uid", "12")
	}, false},
	{"old GNU sparse", func(a *archive) {
		a.add(tar.Header{Name: "before"}, inflatetest.Text(1, 300))
		a.oldSparse("sparse", sparseFrags[:4], 200_512, sparseData()[:700+1+9000+512])
		a.oldSparse("extended", sparseFrags, sparseSize, sparseData())
		a.oldSparse("much extended", manyFrags(100), 10_000, inflatetest.Noise(5, 100))
		a.raw(rawBlock("././@LongLink", tar.TypeGNULongName, 201, gnu), []byte(strings.Repeat("n", 200)+"\x00"))
		a.oldSparse("hole", nil, 1<<20, nil)
		a.add(tar.Header{Name: "after"}, inflatetest.Text(2, 300))
	}, false},
	{"PAX sparse 0.0", func(a *archive) {
		kv := []string{"GNU.sparse.size", fmt.Sprint(sparseSize), "GNU.sparse.numblocks", fmt.Sprint(len(sparseFrags))}
		for _, f := range sparseFrags {
			kv = append(kv, "GNU.sparse.offset", fmt.Sprint(f.off), "GNU.sparse.numbytes", fmt.Sprint(f.len))
		}
		a.pax(tar.TypeXHeader, kv...)
		a.raw(rawBlock("sparse", tar.TypeReg, int64(len(sparseData())), posix), sparseData())
		a.add(tar.Header{Name: "after"}, inflatetest.Text(2, 300))
	}, false},
	{"PAX sparse 0.1", func(a *archive) {
		a.pax(tar.TypeXHeader, "GNU.sparse.size", fmt.Sprint(sparseSize), "GNU.sparse.numblocks", fmt.Sprint(len(sparseFrags)),
			"GNU.sparse.map", sparseList(sparseFrags, ","), "GNU.sparse.name", "real/name")
		a.raw(rawBlock("sparse", tar.TypeReg, int64(len(sparseData())), posix), sparseData())
		a.add(tar.Header{Name: "after"}, inflatetest.Text(2, 300))
	}, false},
	{"PAX sparse 1.0", func(a *archive) {
		for _, frags := range [][]fragment{sparseFrags, manyFrags(100), nil} {
			pad := make([]byte, blockSize)
			list := fmt.Sprintf("%d\n", len(frags))
			if len(frags) > 0 {
				list += sparseList(frags, "\n") + "\n"
			}
			data := append([]byte(list), pad[:-len(list)&(blockSize-1)]...)
			for i, f := range frags {
				data = append(data, inflatetest.Noise(uint64(i), int(f.len))...)
			}
			kv := []string{"GNU.sparse.major", "1", "GNU.sparse.minor", "0",
				"GNU.sparse.name", fmt.Sprint("name", len(frags)), "GNU.sparse.realsize", fmt.Sprint(sparseSize)}
			if len(frags) == 100 {
				kv = append(kv, "size", fmt.Sprint(len(data)))
			}
			a.pax(tar.TypeXHeader, kv...)
			a.raw(rawBlock("GNUSparseFile.0/x", tar.TypeReg, int64(len(data)), posix), data)
		}
		a.add(tar.Header{Name: "after"}, inflatetest.Text(2, 300))
	}, false},
	{"huge sparse file", func(a *archive) {
		a.pax(tar.TypeXHeader, "GNU.sparse.major", "0", "GNU.sparse.minor", "1", "GNU.sparse.size", fmt.Sprint(int64(1)<<50),
			"GNU.sparse.numblocks", "2", "GNU.sparse.map", fmt.Sprintf("0,10,%d,5", int64(1)<<49))
		a.raw(rawBlock("huge", tar.TypeReg, 15, posix), inflatetest.Text(1, 15))
		a.add(tar.Header{Name: "after"}, inflatetest.Text(2, 300))
	}, false},
	{"unknown sparse version", func(a *archive) {
		a.pax(tar.TypeXHeader, "GNU.sparse.major", "7", "GNU.sparse.minor", "0", "GNU.sparse.size", "12345")
		a.raw(rawBlock("dense", tar.TypeReg, 100, posix), inflatetest.Text(1, 100))
	}, false},
	{"size in a PAX record", func(a *archive) {
		a.pax(tar.TypeXHeader, "size", "1000", "path", "renamed")
		a.raw(rawBlock("sized", tar.TypeReg, 3, posix), inflatetest.Text(1, 1000))
		a.add(tar.Header{Name: "after"}, inflatetest.Text(2, 300))
	}, false},
	{"size of what has no data", func(a *archive) {
		for _, typ := range []byte{tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo, tar.TypeChar} {
			b := rawBlock("no data", typ, 5000, posix)
			b.set(157, "target")
			a.raw(b, nil)
		}
		a.add(tar.Header{Name: "after"}, inflatetest.Text(2, 300))
	}, false},
}

func TestTar(t *testing.T) {
	for _, row := range archives {
		t.Run(row.name, func(t *testing.T) {
			a := &archive{t: t}
			row.fill(a)
			if !row.noEnd {
				a.end()
			}
			plain := a.b.Bytes()
			for _, cfg := range []Config{{}, {ChunkSize: 512, SpanSize: 100}} {
				verify(t, build(t, plain, cfg), plain, plain)
				enc := gz(t, 6, gzip.Header{}, plain)
				verify(t, build(t, enc, cfg), enc, plain)
			}
		})
	}
}

// TestTarHoles checks that holes are no extents.
func TestTarHoles(t *testing.T) {
	a := &archive{t: t}
	a.oldSparse("sparse", sparseFrags, sparseSize, sparseData())
	x := build(t, a.end(), Config{})
	for e, err := range x.layer.Entries {
		if err != nil {
			t.Fatal(err)
		}
		if e.Size != sparseSize || len(e.Extents) != len(sparseFrags) {
			t.Errorf("%d bytes in %d extents", e.Size, len(e.Extents))
		}
		for i, f := range sparseFrags {
			if got := e.Extents[i]; got.Off != f.off || got.Len != f.len {
				t.Errorf("extent %d is %+v, not %+v", i, got, f)
			}
		}
	}
}

// TestTarBad checks archives that can't be unpacked.
func TestTarBad(t *testing.T) {
	for _, row := range []struct {
		name string
		fill func(a *archive)
		want error
	}{
		{"unknown type", func(a *archive) { a.raw(rawBlock("x", 'Z', 0, posix), nil) }, errType},
		{"volume header", func(a *archive) { a.raw(rawBlock("x", 'V', 0, gnu), nil) }, errType},
		{"device number out of range", func(a *archive) {
			b := rawBlock("x", tar.TypeChar, 0, gnu)
			b.set(329, "\xff\xff\xff\xff\xff\xff\xff\xff")
			a.raw(b, nil)
		}, errDevice},
		{"NUL in a name", func(a *archive) {
			a.pax(tar.TypeXHeader, "GNU.sparse.map", "0,1", "GNU.sparse.numblocks", "1", "GNU.sparse.name", "a\x00b", "GNU.sparse.size", "1")
			a.raw(rawBlock("x", tar.TypeReg, 1, posix), []byte("x"))
		}, errNUL},
		{"sparse file with too little data", func(a *archive) { a.oldSparse("x", []fragment{{0, 10}}, 100, make([]byte, 9)) }, errSparse},
		{"sparse file with too much data", func(a *archive) { a.oldSparse("x", []fragment{{0, 10}}, 100, make([]byte, 11)) }, errSparse},
		{"sparse fragments overlap", func(a *archive) { a.oldSparse("x", []fragment{{0, 10}, {9, 1}}, 100, make([]byte, 11)) }, tar.ErrHeader},
		{"sparse fragment beyond the end", func(a *archive) { a.oldSparse("x", []fragment{{95, 10}}, 100, make([]byte, 10)) }, tar.ErrHeader},
		{"headers without end", func(a *archive) {
			long := make([]byte, 1<<20-1)
			for range 9 {
				a.raw(rawBlock("x", tar.TypeGNULongName, int64(len(long)), gnu), long)
			}
		}, errHeaders},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := &archive{t: t}
			a.add(tar.Header{Name: "good"}, inflatetest.Text(1, 100))
			row.fill(a)
			_, err := Build(t.Context(), bytes.NewReader(a.end()), new(bytes.Buffer), new(bytes.Buffer), Config{})
			// The cause is told, not wrapped.
			if !errors.Is(err, chunk.ErrCorrupt) || !strings.Contains(err.Error(), row.want.Error()) {
				t.Errorf("error is %v, not %v", err, row.want)
			}
		})
	}
}

// TestTarProgram compares sparse files of the tar program with the files that
// they were made of.
func TestTarProgram(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range 60 {
		if _, err := f.WriteAt(inflatetest.Noise(uint64(i), 5000), int64(i)*100_000); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(10_000_000); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--format=gnu"},
		{"--format=posix", "--sparse-version=0.0"},
		{"--format=posix", "--sparse-version=0.1"},
		{"--format=posix", "--sparse-version=1.0"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			plain := command(t, nil, "tar", append(args, "-C", dir, "--sparse", "-cf", "-", "sparse")...)
			if len(plain) > 1<<20 {
				t.Skip("the file system keeps no holes")
			}
			enc := gz(t, 6, gzip.Header{}, plain)
			x := build(t, enc, Config{ChunkSize: 16 << 10, SpanSize: 32 << 10})
			verify(t, x, enc, plain)
			for e, err := range x.layer.Entries {
				if err != nil {
					t.Fatal(err)
				}
				if e.Mode&syscall.S_IFMT != syscall.S_IFREG || e.Size != 10_000_000 || len(e.Extents) < 60 {
					t.Errorf("mode %o, %d bytes, %d extents", e.Mode, e.Size, len(e.Extents))
				}
			}
		})
	}
}

// TestTarEntry checks fields of entries against their known values.
func TestTarEntry(t *testing.T) {
	a := &archive{t: t}
	a.add(tar.Header{Name: "f", Mode: 0o4755, Uid: 7, Gid: 8, ModTime: time.Unix(9, 10), Format: tar.FormatPAX}, []byte("data"))
	a.pax(tar.TypeXHeader, "uid", "4294967295", "gid", "-1")
	a.raw(rawBlock("root", tar.TypeReg, 0, posix), nil)
	x := build(t, a.end(), Config{})
	var got []image.Entry
	for e, err := range x.layer.Entries {
		if err != nil {
			t.Fatal(err)
		}
		c := *e
		c.Extents = append([]chunk.Extent(nil), e.Extents...)
		got = append(got, c)
	}
	if len(got) != 2 {
		t.Fatalf("%d entries", len(got))
	}
	if f := got[0]; f.Mode != syscall.S_IFREG|0o4755 || f.UID != 7 || f.GID != 8 || f.MTime != (image.Time{Sec: 9, Nsec: 10}) ||
		f.Size != 4 || len(f.Extents) != 1 || f.Extents[0] != (chunk.Extent{Len: 4}) {
		t.Errorf("entry is %+v", f)
	}
	if f := got[1]; f.UID != 0 || f.GID != 0 {
		t.Errorf("owner is %d:%d, not root", f.UID, f.GID)
	}
}
