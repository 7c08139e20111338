package soci

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"graze/chunk"
	"graze/image"
	"graze/image/codec"
	"graze/image/imagetest"
	"graze/image/soci/socitest"
)

const (
	testBlob = chunk.Blob("sha256:0000000000000000000000000000000000000000000000000000000000000001")
	testZTOC = chunk.Blob("sha256:0000000000000000000000000000000000000000000000000000000000000002")
)

// contents opens all spans of a layer, each from its own bytes and its window, and
// returns the contents of the files by their names.
func contents(t *testing.T, l *image.Layer, layer, ztoc []byte) map[string][]byte {
	t.Helper()
	var d codec.Decoder
	opened := make([][]byte, len(l.Table.Chunks))
	for n, s := range l.Table.Spans {
		blob := layer
		if s.Blob == 1 {
			blob = ztoc
		}
		p := blob[s.Off : s.Off+s.Len]
		if _, err := l.Table.Chunks[s.First].Verify(p); err != nil || s.Count != 1 {
			t.Fatalf("span %d of %d chunks: %v", n, s.Count, err)
		}
		opened[s.First] = p
	}
	for n, s := range l.Table.Spans {
		if s.Seal == 0 {
			continue
		}
		span := chunk.Span{Codec: s.Seal, Bits: s.Bits, Len: s.Len, Parts: []chunk.Part{{Ref: chunk.Ref{ID: chunk.SHA256.Sum(nil), Size: s.Opened}}}}
		var window []byte
		if s.Window.Len > 0 {
			window = opened[s.Window.Chunk]
			span.Window = &chunk.Slice{Len: s.Window.Len}
		}
		err := d.Decode(bytes.NewReader(layer[s.Off:s.Off+s.Len]), []chunk.Span{span}, window, func(_, _ int, p []byte) error {
			opened[s.First] = bytes.Clone(p)
			return nil
		})
		if err != nil {
			t.Fatalf("span %d: %v", n, err)
		}
	}
	list, err := imagetest.Collect(l)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, e := range list {
		data := make([]byte, e.Size)
		for _, x := range e.Extents {
			copy(data[x.Off:x.Off+x.Len], opened[x.Chunk][x.At:])
		}
		files[e.Name] = data
	}
	return files
}

// encoded returns a layer, and the archive in it.
func encoded(t testing.TB, l imagetest.Layer, e imagetest.Encoding) (layer, archive []byte) {
	t.Helper()
	b, err := e.Encode(l)
	if err != nil {
		t.Fatal(err)
	}
	if archive, err = l.Tar(); err != nil {
		t.Fatal(err)
	}
	return b.Data, archive
}

// TestAdversarial opens zTOCs of odd layers and compares the entries, and the files'
// contents, with the archive. One of them can't have a zTOC, as it has a global
// header, and the zTOC of another lacks what a sparse file needs.
func TestAdversarial(t *testing.T) {
	for _, e := range []imagetest.Encoding{imagetest.Gzip(1), imagetest.Gzip(9), imagetest.Plain()} {
		for _, l := range imagetest.Adversarial() {
			t.Run(e.Name+"/"+l.Name, func(t *testing.T) {
				layer, archive := encoded(t, l, e)
				ztoc, err := socitest.ZTOC(layer, 100_000)
				if l.Name == "archive" {
					if err == nil {
						t.Error("a layer with a global header has a zTOC")
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if l.Name == "contents" {
					if _, err := Open(ztoc, Config{Blob: testBlob, Size: int64(len(layer)), ZTOC: testZTOC}); !errors.Is(err, ErrUnsupported) {
						t.Errorf("layer with a sparse file: %v", err)
					}
					return
				}
				compareArchive(t, layer, archive, ztoc)
			})
		}
	}
}

// writerVariable names SOCI's own writer of zTOCs.
const writerVariable = "GRAZE_ZTOC"

// written returns the zTOC that SOCI's own writer makes of a layer.
func written(t testing.TB, layer []byte, algorithm string, spanSize int) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(name, layer, 0o600); err != nil {
		t.Fatal(err)
	}
	ztoc, err := exec.Command(os.Getenv(writerVariable), name, algorithm, strconv.Itoa(spanSize)).Output()
	if err != nil {
		t.Fatal(err)
	}
	return ztoc
}

// TestWriter compares the tests' zTOCs with those of SOCI's own writer, by what is
// read from them.
func TestWriter(t *testing.T) {
	if os.Getenv(writerVariable) == "" {
		t.Skip(writerVariable + " does not name the writer of zTOCs: see scripts/ztoc.sh")
	}
	for _, tt := range []struct {
		encoding  imagetest.Encoding
		algorithm string
	}{{imagetest.Gzip(6), "gzip"}, {imagetest.Plain(), "uncompressed"}} {
		for _, l := range append(imagetest.Adversarial(), imagetest.SmallFiles("files", 3000)) {
			if l.Name == "archive" || l.Name == "contents" {
				continue
			}
			t.Run(tt.algorithm+"/"+l.Name, func(t *testing.T) {
				layer, archive := encoded(t, l, tt.encoding)
				ztoc, err := socitest.ZTOC(layer, 70_000)
				if err != nil {
					t.Fatal(err)
				}
				theirs := written(t, layer, tt.algorithm, 70_000)
				ours := compareArchive(t, layer, archive, ztoc)
				got := compareArchive(t, layer, archive, theirs)
				if len(ours.Table.Spans) != len(got.Table.Spans) {
					t.Fatalf("spans %+v, theirs %+v", ours.Table.Spans, got.Table.Spans)
				}
				for i := range got.Table.Spans {
					if ours.Table.Spans[i].Blob == 1 { // each stands at its place in its zTOC
						ours.Table.Spans[i].Off, ours.Table.Spans[i].Start = got.Table.Spans[i].Off, got.Table.Spans[i].Start
					}
				}
				if diff := cmp.Diff(got.Table, ours.Table, cmp.Comparer(func(a, b chunk.ID) bool { return a == b })); diff != "" {
					t.Errorf("tables (-theirs +ours):\n%s", diff)
				}
			})
		}
	}
}

// compareArchive compares a layer as its zTOC has it with the archive in it.
func compareArchive(t *testing.T, layer, archive, ztoc []byte) *image.Layer {
	t.Helper()
	l, err := Open(ztoc, Config{Blob: testBlob, Size: int64(len(layer)), ZTOC: testZTOC})
	if err != nil {
		t.Fatal(err)
	}
	if err := image.WriteView(t.TempDir()+"/view", []*image.Layer{l}, image.Info{}); err != nil {
		t.Error(err)
	}
	want, files, err := imagetest.ReadArchive(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	got, err := imagetest.Collect(l)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(image.Entry{}, "Extents"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	data := contents(t, l, layer, ztoc)
	for name, want := range files {
		if !bytes.Equal(data[name], want) {
			t.Errorf("%q has other contents", name)
		}
	}
	return l
}

// TestSpans opens a layer of which most spans begin within a byte.
func TestSpans(t *testing.T) {
	layer, archive := encoded(t, imagetest.SmallFiles("files", 3000), imagetest.Gzip(6))
	ztoc, err := socitest.ZTOC(layer, 50_000)
	if err != nil {
		t.Fatal(err)
	}
	l := compareArchive(t, layer, archive, ztoc)
	bits, shared := 0, 0
	for i, s := range l.Table.Spans {
		if s.Bits > 0 {
			bits++
		}
		if i > 0 && s.Seal != 0 && s.Off < l.Table.Spans[i-1].Off+l.Table.Spans[i-1].Len {
			shared++
		}
	}
	if bits < 3 || bits != shared {
		t.Errorf("%d spans of %d begin within a byte, %d share one", bits, len(l.Table.Spans), shared)
	}
}

// TestFirstVersion opens a zTOC whose checkpoints lack the first one.
func TestFirstVersion(t *testing.T) {
	layer, archive := encoded(t, imagetest.SmallFiles("files", 1000), imagetest.Gzip(6))
	ztoc, err := socitest.ZTOC(layer, 50_000)
	if err != nil {
		t.Fatal(err)
	}
	f := &flat{p: ztoc}
	info := f.root().table(ztocCompression)
	at := info.follow(infoCheckpoints)
	p := info.bytes(infoCheckpoints)
	copy(p[checkpointsHead:], p[checkpointsHead+checkpointSize:])
	short := uint32(len(p) - checkpointSize)
	ztoc[at], ztoc[at+1], ztoc[at+2], ztoc[at+3] = byte(short), byte(short>>8), byte(short>>16), byte(short>>24)
	compareArchive(t, layer, archive, ztoc)
}

// TestRefuses opens zTOCs that are damaged, or of another layer.
func TestRefuses(t *testing.T) {
	layer, _ := encoded(t, imagetest.SmallFiles("files", 100), imagetest.Gzip(6))
	good, err := socitest.ZTOC(layer, 50_000)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(p []byte) []byte
		size   int64
		want   error
	}{
		{"empty", func([]byte) []byte { return nil }, 0, chunk.ErrCorrupt},
		{"cut short", func(p []byte) []byte { return p[:len(p)/2] }, 0, chunk.ErrCorrupt},
		{"other layer", func(p []byte) []byte { return p }, 1, chunk.ErrCorrupt},
		{"other version", replace("0.9", "1.0"), 0, ErrUnsupported},
		{"other type", replace("\x03\x00\x00\x00reg", "\x03\x00\x00\x00xyz"), 0, ErrUnsupported},
		{"bad digest", replace("sha256:", "sha257:"), 0, chunk.ErrCorrupt},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Open(tt.change(bytes.Clone(good)), Config{Blob: testBlob, Size: int64(len(layer)) + tt.size, ZTOC: testZTOC})
			if !errors.Is(err, tt.want) || !strings.Contains(fmt.Sprint(err), string(testBlob)) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// replace returns a change of a text that is in the zTOC.
func replace(from, to string) func([]byte) []byte {
	return func(p []byte) []byte { return bytes.Replace(p, []byte(from), []byte(to), 1) }
}

// FuzzOpen opens zTOCs; a view must take what is accepted.
func FuzzOpen(f *testing.F) {
	for algorithm, e := range map[string]imagetest.Encoding{"gzip": imagetest.Gzip(6), "uncompressed": imagetest.Plain()} {
		layer, _ := encoded(f, imagetest.SmallFiles("files", 20), e)
		if os.Getenv(writerVariable) != "" {
			f.Add(written(f, layer, algorithm, 10_000), int64(len(layer)))
		}
		ztoc, err := socitest.ZTOC(layer, 10_000)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(ztoc, int64(len(layer)))
	}
	f.Fuzz(func(t *testing.T, ztoc []byte, size int64) {
		l, err := Open(ztoc, Config{Blob: testBlob, Size: size, ZTOC: testZTOC})
		if err != nil {
			return
		}
		if _, err := imagetest.Collect(l); err != nil {
			t.Error(err)
		}
		for i := range l.Table.Spans {
			s := l.Table.Span(uint32(i))
			if s.Off < 0 || s.Len <= 0 || s.Blob == testBlob && s.Off+s.Len > size || len(s.Parts) != 1 || s.Parts[0].Check() != nil {
				t.Errorf("span %d is %+v", i, s)
			}
		}
	})
}
