package image

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"graze/chunk"
)

// everything returns layers whose view has rows in all sections.
func everything() []*Layer {
	l := deflated("a", "dir/b", "dir/sub/c")
	more := layer(
		symlink("l", "dir/b"), hardlink("dir/h", "a"), char("c", 5, 1), entry("p", syscall.S_IFIFO|0o600),
		file("x", 5, xattr("user.a", "1"), xattr("user.bb", "22")), dir("y", 0o700, xattr("user.a", "3")), dir("dir/z", 0o700),
		symlink("m", "x"), file("dir/sub/d", 900, owner(1, 2), mtime(3, 4), extent(5, 6, 0, 1), extent(100, 100, 1, 0)),
	)
	return []*Layer{l, withChunks(more, "t", 10, 200)}
}

// sign makes the checksums of a view file right again.
func sign(file []byte) {
	h, err := decodeHeaderUnchecked(file)
	if err != nil {
		return
	}
	off := int64(headerSize)
	for i, n := range h.lens {
		h.crcs[i] = crc32.Checksum(file[off:off+n], castagnoli)
		off += n
	}
	copy(file, h.encode())
}

// decodeHeaderUnchecked is decodeHeader without its checksum.
func decodeHeaderUnchecked(file []byte) (*header, error) {
	if len(file) < headerSize {
		return nil, chunk.ErrCorrupt
	}
	file = slices.Clone(file)
	le.PutUint32(file[headerSize-4:], crc32.Checksum(file[:headerSize-4], castagnoli))
	return decodeHeader(file)
}

// use calls all methods of a view.
func use(t *testing.T, v *View) {
	t.Helper()
	total := v.Totals()
	names := int64(0)
	for ino := uint64(0); ino < uint64(total.Inodes)+2; ino++ {
		a, ok := v.Attr(ino)
		if want := ino > 0 && ino <= uint64(total.Inodes); ok != want || a.Blocks < 0 || a.Size < 0 {
			t.Errorf("inode %d: %+v, %v", ino, a, ok)
		}
		for pos, d := range v.ReadDir(ino, 0) {
			names++
			if got, ok := v.Lookup(ino, d.Name); !ok || got != d.Ino {
				t.Errorf("position %d of inode %d is %+v, but lookup gives %d, %v", pos, ino, d, got, ok)
			}
			if d.Mode&syscall.S_IFMT == syscall.S_IFDIR && v.Parent(d.Ino) != ino {
				t.Errorf("parent of %d is %d, not %d", d.Ino, v.Parent(d.Ino), ino)
			}
		}
		if target, ok := v.Readlink(ino); ok {
			// It can lead anywhere, but has to come to an end.
			if to, err := v.Resolve(target); err == nil && (to == 0 || to > uint64(total.Inodes)) {
				t.Errorf("%q leads to inode %d", target, to)
			}
		}
		for name, value := range v.Xattrs(ino) {
			if got, ok := v.Xattr(ino, name); !ok || string(got) != string(value) {
				t.Errorf("xattr %q of inode %d is %q, %v, not %q", name, ino, got, ok, value)
			}
		}
		for e := range v.Extents(ino, 0, MaxFileSize) {
			ref, span := v.Chunk(e.Chunk)
			if int64(e.At)+e.Len > int64(ref.Size) || int(span) >= v.NumSpans() || e.Off+e.Len > a.Size {
				t.Errorf("inode %d of %d bytes has extent %+v in %s", ino, a.Size, e, ref)
			}
			for range v.Extents(ino, e.Off+1, e.Len) {
				break
			}
		}
	}
	if names != total.Names {
		t.Errorf("%d names, but total is %d", names, total.Names)
	}
	for n := range v.NumSpans() {
		s := v.Span(uint32(n))
		if s.Decoded() <= 0 || s.Blob == "" {
			t.Errorf("span %d is %+v", n, s)
		}
		if s.Window != nil {
			s.Window.Ref()
		}
	}
	for n := range v.Prefetch() {
		v.Span(n)
	}
}

func TestUse(t *testing.T) {
	v, err := buildView(everything()...)
	if err != nil {
		t.Fatal(err)
	}
	use(t, v)
	for i, s := range v.secs {
		if len(s) == 0 {
			t.Errorf("section %s is empty", sections[i].name)
		}
	}
}

// TestEveryBit expects that a view file with any bit flipped is refused.
func TestEveryBit(t *testing.T) {
	file, err := encode(everything()...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range file {
		file[i] ^= 1 << (i % 8)
		if _, err := decodeView(file); !errors.Is(err, chunk.ErrCorrupt) {
			t.Errorf("flipped bit of byte %d: error %v", i, err)
		}
		file[i] ^= 1 << (i % 8)
	}
	for n := range len(file) {
		if _, err := decodeView(file[:n]); !errors.Is(err, chunk.ErrCorrupt) {
			t.Errorf("cut to %d bytes: error %v", n, err)
		}
	}
}

// TestSignedNonsense changes bytes of a view file and makes its checksums right
// again. What is not refused has to be safe to use.
func TestSignedNonsense(t *testing.T) {
	good, err := encode(everything()...)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	refused := 0
	const n = 5000
	for range n {
		file := slices.Clone(good)
		for range 1 + rnd.IntN(3) {
			i := headerSize + rnd.IntN(len(file)-headerSize)
			file[i] = []byte{0, 1, 255, file[i] + 1, file[i] - 1, byte(rnd.Uint32())}[rnd.IntN(6)]
		}
		sign(file)
		v, err := decodeView(file)
		if err != nil {
			if !errors.Is(err, chunk.ErrCorrupt) {
				t.Fatalf("error %v is not ErrCorrupt", err)
			}
			refused++
			continue
		}
		use(t, v)
		if t.Failed() {
			t.FailNow()
		}
	}
	if refused < n/10 || refused > n*9/10 {
		t.Errorf("%d of %d files refused", refused, n)
	}
}

func FuzzOpenView(f *testing.F) {
	for _, layers := range [][]*Layer{everything(), nil, {layer(file("a/b", 1))}, {deflated("x")}} {
		file, err := encode(layers...)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		sign(file)
		if v, err := decodeView(file); err == nil {
			use(t, v)
		}
	})
}

func TestOpenViewErrors(t *testing.T) {
	good, err := encode(everything()...)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(file []byte) []byte
		want   string
	}{
		{"empty", func([]byte) []byte { return nil }, "no view file"},
		{"other file", func(b []byte) []byte { return []byte(strings.Repeat("x", len(b))) }, "no view file"},
		{"other version", func(b []byte) []byte { b[len(magic)]++; return b }, "version 2, not 1"},
		{"header", func(b []byte) []byte { b[20]++; return b }, "checksum of the header"},
		{"section", func(b []byte) []byte { b[headerSize]++; return b }, "checksum of section inodes at offset 164"},
		{"longer", func(b []byte) []byte { return append(b, 0) }, "in a file of"},
		{"cut", func(b []byte) []byte { return b[:len(b)-8] }, "in a file of"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "view")
			if err := os.WriteFile(name, tt.change(slices.Clone(good)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := OpenView(name)
			if !errors.Is(err, chunk.ErrCorrupt) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), name) {
				t.Errorf("got error %v, want ErrCorrupt with %q", err, tt.want)
			}
		})
	}
	dir := t.TempDir()
	if _, err := OpenView(dir); !errors.Is(err, chunk.ErrCorrupt) {
		t.Errorf("directory: error %v", err)
	}
	if _, err := OpenView(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: error %v", err)
	}
}

// FuzzMerge makes layers of arbitrary bytes: they may be refused, but a view
// that is written can be opened and used.
func FuzzMerge(f *testing.F) {
	f.Add([]byte("\x00a/b\xff\x03l\xfea\xff\x04h\xfea/b\xff\xfd\x05a\xff\x06a/b\xff"))
	f.Add([]byte("\x03a\xfe../../a\xff\x00a/x\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var layers [][]*Entry
		for part := range strings.SplitSeq(string(data), "\xfd") {
			var entries []*Entry
			for op := range strings.SplitSeq(part, "\xff") {
				if op != "" {
					entries = append(entries, fuzzEntry(op))
				}
			}
			layers = append(layers, entries)
		}
		var list []*Layer
		for _, entries := range layers {
			list = append(list, layer(entries...))
		}
		v, err := buildView(list...)
		if errors.Is(err, chunk.ErrCorrupt) {
			t.Fatalf("view that was just written: %v", err)
		}
		if err == nil {
			use(t, v)
		}
	})
}

// fuzzEntry makes an entry of a byte for its kind, a name, and after a byte 0xfe
// the target of a link.
func fuzzEntry(op string) *Entry {
	name, target, _ := strings.Cut(op[1:], "\xfe")
	switch op[0] % 8 {
	case 0, 1:
		return file(name, int64(len(target)))
	case 2:
		return dir(name, 0o755, xattr("user."+target, target))
	case 3:
		return symlink(name, target)
	case 4:
		return hardlink(name, target)
	case 5:
		return hidden(name)
	case 6:
		return opaqueDir(name)
	}
	return char(name, uint32(len(target)), 0)
}
