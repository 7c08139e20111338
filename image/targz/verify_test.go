package targz

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"

	"graze/chunk"
	"graze/image"
	"graze/image/codec"
	"graze/image/inflate"
)

// small cuts layers of tests into many chunks and spans.
var small = Config{ChunkSize: 4 << 10, SpanSize: 16 << 10}

// built is what Build makes of a layer.
type built struct {
	info              Info
	tree, checkpoints []byte
	layer             *image.Layer
}

// build makes the index of a layer and opens it.
func build(t testing.TB, enc []byte, cfg Config) *built {
	t.Helper()
	var tree, checkpoints bytes.Buffer
	info, err := Build(context.Background(), bytes.NewReader(enc), &tree, &checkpoints, cfg)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := Open(tree.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return &built{info, tree.Bytes(), checkpoints.Bytes(), layer}
}

func sha(p []byte) chunk.Blob {
	sum := sha256.Sum256(p)
	return chunk.Blob("sha256:" + hex.EncodeToString(sum[:]))
}

// verify checks everything about the index of a layer whose decoded form is
// plain.
func verify(t testing.TB, x *built, enc, plain []byte) {
	t.Helper()
	if want := (Blob{sha(enc), int64(len(enc))}); x.info.Layer != want || x.layer.Digest != want.Digest || x.layer.Size != want.Size {
		t.Errorf("layer is %v, not %v", x.info.Layer, want)
	}
	if x.info.DiffID != sha(plain) || x.info.Unpacked != int64(len(plain)) {
		t.Errorf("diffID is %s of %d bytes, not %s of %d", x.info.DiffID, x.info.Unpacked, sha(plain), len(plain))
	}
	if want := (Blob{sha(x.tree), int64(len(x.tree))}); x.info.Tree != want {
		t.Errorf("tree is %v, not %v", x.info.Tree, want)
	}
	if want := (Blob{sha(x.checkpoints), int64(len(x.checkpoints))}); x.info.Checkpoints != want {
		t.Errorf("checkpoints are %v, not %v", x.info.Checkpoints, want)
	}
	verifyEntries(t, x.layer, plain)
	verifySpans(t, x, enc)
	verifyIndependently(t, x, enc)
}

// blobs returns the blob that a span is of.
func (x *built) blob(enc []byte, name chunk.Blob) []byte {
	if name == x.layer.Digest {
		return enc
	}
	return x.checkpoints
}

// window returns the window of a span, fetched and verified as readers do.
func (x *built) window(d *codec.Decoder, s *chunk.Span, enc []byte) (w []byte, err error) {
	if s.Window == nil {
		return nil, nil
	}
	from := s.Window.Span
	if from.Window != nil || from.Blob != x.info.Checkpoints.Digest {
		return nil, errors.New("window is in the wrong blob, or nested")
	}
	err = d.Decode(bytes.NewReader(x.checkpoints[from.Off:from.Off+from.Len]), []chunk.Span{from}, nil, func(_, part int, p []byte) error {
		if part == s.Window.Part {
			w = bytes.Clone(p[s.Window.Off:][:s.Window.Len])
		}
		_, err := from.Parts[part].Verify(p)
		return err
	})
	return w, err
}

// verifySpans decodes every chunk from no more than its span's bytes and window,
// and then runs of spans.
func verifySpans(t testing.TB, x *built, enc []byte) {
	t.Helper()
	var d codec.Decoder
	n := uint32(len(x.layer.Table.Spans))
	spans := make([]chunk.Span, n)
	for i := range spans {
		spans[i] = x.layer.Table.Span(uint32(i))
	}
	decode := func(from, to int) {
		run := spans[from:to]
		end := int64(0)
		for _, s := range run {
			end = max(end, s.Off+s.Len)
		}
		w, err := x.window(&d, &run[0], enc)
		if err != nil {
			t.Errorf("window of span %d: %v", from, err)
			return
		}
		parts := 0
		err = d.Decode(bytes.NewReader(x.blob(enc, run[0].Blob)[run[0].Off:end]), run, w, func(i, j int, p []byte) error {
			parts++
			if _, err := run[i].Parts[j].Verify(p); err != nil {
				return fmt.Errorf("chunk %d of span %d: %w", j, from+i, err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("spans %d to %d of %d: %v", from, to, n, err)
		}
		for i := range run {
			parts -= len(run[i].Parts)
		}
		if parts != 0 {
			t.Errorf("spans %d to %d: %d parts too many", from, to, parts)
		}
	}
	layers := int(x.info.Spans)
	for i := range spans {
		decode(i, i+1)
		if i+3 <= layers {
			decode(i, i+3)
		}
	}
	if layers > 0 {
		decode(0, layers)
	}
}

// verifyIndependently decodes every chunk of each gzip and deflate span by
// klauspost's decoder, from no more than the span's bytes and window: Build finds
// the spans, and tries its checkpoints, with the decoder that readers use, so
// that it would not see an error in that.
func verifyIndependently(t testing.TB, x *built, enc []byte) {
	t.Helper()
	var d codec.Decoder
	for i := range uint32(x.info.Spans) {
		s := x.layer.Table.Span(i)
		window, err := x.window(&d, &s, enc)
		if err != nil {
			t.Errorf("window of span %d: %v", i, err)
			continue
		}
		var r io.Reader
		src := bytes.NewReader(enc[s.Off : s.Off+s.Len])
		switch s.Codec {
		case chunk.Gzip:
			r, err = gzip.NewReader(src)
		case chunk.Deflate:
			r, err = fromBlock(src, s.Bits, window)
		default:
			continue
		}
		if err != nil {
			t.Errorf("span %d: %v", i, err)
			continue
		}
		at := int64(0)
		for _, p := range s.Parts {
			buf := make([]byte, p.Size)
			if _, err = io.CopyN(io.Discard, r, p.At-at); err == nil {
				_, err = io.ReadFull(r, buf)
			}
			if err == nil {
				_, err = p.Verify(buf)
			}
			if err != nil {
				t.Errorf("chunk at %d of span %d by klauspost's decoder: %v", p.At, i, err)
				break
			}
			at = p.At + int64(p.Size)
		}
	}
}

// fromBlock reads from a deflate block within a gzip member on, and all members
// that follow.
func fromBlock(src *bytes.Reader, bits uint8, window []byte) (io.Reader, error) {
	r := flate.NewReader(nil)
	resumer := r.(interface {
		ResetCP(io.Reader, flate.InflateCheckpoint) error
	})
	if err := resumer.ResetCP(src, flate.InflateCheckpoint{BitOffset: bits, Window: window}); err != nil {
		return nil, err
	}
	return io.MultiReader(r, &nextMembers{src: src}), nil
}

// nextMembers reads a member's trailer and the members after it.
type nextMembers struct {
	src *bytes.Reader
	gz  *gzip.Reader
}

func (m *nextMembers) Read(p []byte) (n int, err error) {
	if m.gz == nil {
		if _, err := m.src.Seek(inflate.TrailerLen, io.SeekCurrent); err != nil {
			return 0, err
		}
		if m.gz, err = gzip.NewReader(m.src); err != nil {
			return 0, err
		}
	}
	return m.gz.Read(p)
}

// TestRealLayer makes the index of the gzip layer that GRAZE_LAYER names.
func TestRealLayer(t *testing.T) {
	name := os.Getenv("GRAZE_LAYER")
	if name == "" {
		t.Skip("GRAZE_LAYER names no layer")
	}
	enc, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(enc))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	verify(t, build(t, enc, Config{}), enc, plain)
}

// verifyEntries compares the entries with what archive/tar makes of plain, and
// the bytes that their extents name with the files.
func verifyEntries(t testing.TB, l *image.Layer, plain []byte) {
	t.Helper()
	starts := make([]int64, len(l.Table.Chunks))
	for i, c := range l.Table.Chunks {
		starts[i] = l.Table.Spans[c.Span].Start + c.At
	}
	tr := tar.NewReader(bytes.NewReader(plain))
	n := 0
	for e, err := range l.Entries {
		if err != nil {
			t.Fatal(err)
		}
		hdr, err := tr.Next()
		for err == nil && hdr.Typeflag == tar.TypeXGlobalHeader {
			hdr, err = tr.Next()
		}
		if err != nil {
			t.Fatalf("entry %d, %q: the archive has %v", n, e.Name, err)
		}
		n++
		got := *e
		got.Extents = nil
		if diff := cmp.Diff(wantEntry(hdr), got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("entry %q (-want +got):\n%s", e.Name, diff)
		}
		if e.Size > 1<<30 {
			continue
		}
		file := make([]byte, e.Size)
		at := int64(0)
		for _, x := range e.Extents {
			if x.Off < at || x.Len <= 0 || x.Off+x.Len > e.Size || int64(x.At)+x.Len > int64(l.Table.Chunks[x.Chunk].Size) {
				t.Fatalf("entry %q has extent %+v", e.Name, x)
			}
			copy(file[x.Off:x.Off+x.Len], plain[starts[x.Chunk]+int64(x.At):])
			at = x.Off + x.Len
		}
		want, err := io.ReadAll(tr)
		if err != nil {
			t.Fatalf("entry %q: %v", e.Name, err)
		}
		if e.Mode&syscall.S_IFMT == syscall.S_IFREG && !bytes.Equal(file, want) {
			t.Errorf("entry %q has wrong contents", e.Name)
		}
	}
	if hdr, err := tr.Next(); err == nil && hdr.Typeflag != tar.TypeXGlobalHeader {
		t.Errorf("entry %q is missing after %d", hdr.Name, n)
	}
}

// wantEntry returns the entry of hdr, but for its extents.
func wantEntry(hdr *tar.Header) image.Entry {
	e := image.Entry{
		Name: hdr.Name,
		Mode: uint32(hdr.Mode & 0o7777),
		UID:  uint32(hdr.Uid),
		GID:  uint32(hdr.Gid),
	}
	if s := hdr.ModTime.Unix(); s >= 0 && s < math.MaxInt64/1_000_000_000 {
		e.MTime = image.Time{Sec: s, Nsec: uint32(hdr.ModTime.Nanosecond())}
	}
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		e.Mode |= syscall.S_IFREG
		e.Size = hdr.Size
	case tar.TypeLink:
		e.Hardlink, e.Link = true, hdr.Linkname
	case tar.TypeSymlink:
		e.Mode = syscall.S_IFLNK | 0o777
		e.Link = hdr.Linkname
	case tar.TypeDir:
		e.Mode |= syscall.S_IFDIR
	case tar.TypeFifo:
		e.Mode |= syscall.S_IFIFO
	case tar.TypeChar:
		e.Mode |= syscall.S_IFCHR
		e.Major, e.Minor = uint32(hdr.Devmajor), uint32(hdr.Devminor)
	case tar.TypeBlock:
		e.Mode |= syscall.S_IFBLK
		e.Major, e.Minor = uint32(hdr.Devmajor), uint32(hdr.Devminor)
	}
	for k, v := range hdr.PAXRecords {
		if name, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok && !strings.HasPrefix(name, "trusted.") {
			e.Xattrs = append(e.Xattrs, image.Xattr{Name: name, Value: []byte(v)})
		}
	}
	slices.SortFunc(e.Xattrs, func(a, b image.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return e
}
