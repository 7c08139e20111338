package estargz

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	writer "github.com/containerd/stargz-snapshotter/estargz"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"graze/chunk"
	"graze/image"
	"graze/image/imagetest"
	"graze/image/toc"
)

const testBlob = chunk.Blob("sha256:0000000000000000000000000000000000000000000000000000000000000001")

// A ranger is a layer in memory that records what was asked for.
type ranger struct {
	p    []byte
	asks []string
	fail error // what a request's body ends with, half way
}

func (r *ranger) Size() int64 { return int64(len(r.p)) }

func (r *ranger) ReadRange(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off > r.Size()-n {
		return nil, fmt.Errorf("range %d+%d of %d bytes", off, n, len(r.p))
	}
	r.asks = append(r.asks, fmt.Sprintf("%d+%d", off, n))
	if r.fail != nil {
		return io.NopCloser(io.MultiReader(bytes.NewReader(r.p[off:off+n/2]), errReader{r.fail})), nil
	}
	return io.NopCloser(bytes.NewReader(r.p[off : off+n])), nil
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// A file is a member of a test's archive.
type file struct {
	hdr  tar.Header
	data []byte
}

func tarOf(t testing.TB, files []file) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		f.hdr.Size = int64(len(f.data))
		f.hdr.Format = tar.FormatPAX
		if err := w.WriteHeader(&f.hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// build makes an eStargz layer and its annotations.
func build(t testing.TB, files []file, opts ...writer.Option) ([]byte, map[string]string) {
	t.Helper()
	p := tarOf(t, files)
	blob, err := writer.Build(io.NewSectionReader(bytes.NewReader(p), 0, int64(len(p))), opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	layer, err := io.ReadAll(blob)
	if err != nil {
		t.Fatal(err)
	}
	return layer, map[string]string{TOCDigestAnnotation: blob.TOCDigest().String()}
}

// legacy makes a stargz layer with the older footer.
func legacy(t testing.TB, files []file) []byte {
	t.Helper()
	layer, _ := build(t, files)
	n := len(layer) - footerSize
	extra := string(layer[n+16 : n+16+22])
	out := append([]byte(nil), layer[:n]...)
	out = append(out, 0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 22, 0)
	out = append(out, extra...)
	return append(out, 1, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0)
}

func random(n int) []byte {
	p := make([]byte, n)
	rand.Read(p)
	return p
}

// sample has every kind of entry, and files of some sizes.
func sample() []file {
	mtime := time.Date(2024, 2, 29, 12, 0, 1, 0, time.UTC)
	files := []file{
		{hdr: tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: mtime, Uid: 70000, Gid: 1 << 22}},
		{hdr: tar.Header{Name: "dir/empty", Typeflag: tar.TypeReg, Mode: 0o600}},
		{hdr: tar.Header{Name: "dir/suid", Typeflag: tar.TypeReg, Mode: 0o6755, PAXRecords: map[string]string{
			"SCHILY.xattr.user.b":              "x",
			"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\xff",
			"SCHILY.xattr.user.a":              "",
		}}, data: []byte("suid")},
		{hdr: tar.Header{Name: "dir/link", Typeflag: tar.TypeSymlink, Linkname: "../none", Mode: 0o777}},
		{hdr: tar.Header{Name: "dir/hard", Typeflag: tar.TypeLink, Linkname: "dir/suid"}},
		{hdr: tar.Header{Name: "fifo", Typeflag: tar.TypeFifo, Mode: 0o644}},
		{hdr: tar.Header{Name: "null", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3}},
		{hdr: tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Mode: 0o660, Devmajor: 259, Devminor: 70000}},
		{hdr: tar.Header{Name: "./odd//name/", Typeflag: tar.TypeDir, Mode: 0o755}},
		{hdr: tar.Header{Name: "new\nline é", Typeflag: tar.TypeReg, Mode: 0o644}, data: []byte("n")},
		{hdr: tar.Header{Name: "data", Typeflag: tar.TypeDir, Mode: 0o755}},
	}
	for _, n := range []int{1, 511, 512, 513, 4095, 4096, 65535, 65536, 65537, 200000} {
		files = append(files, file{
			hdr:  tar.Header{Name: fmt.Sprintf("data/%d", n), Typeflag: tar.TypeReg, Mode: 0o644, ModTime: mtime},
			data: random(n),
		})
	}
	return files
}

// collect returns copies of a layer's entries.
func collect(t testing.TB, l *Layer) []image.Entry {
	t.Helper()
	list, err := imagetest.Collect(&l.Layer)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// contents decodes the layer and returns the files' contents.
func contents(t testing.TB, blob []byte, l *Layer) map[string][]byte {
	t.Helper()
	files, err := imagetest.Contents(&l.Layer, blob)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// checkTable fails if the layer's table breaks a rule of image.Table.
func checkTable(t testing.TB, l *Layer) {
	t.Helper()
	if err := imagetest.CheckMembers(&l.Layer, chunk.Gzip); err != nil {
		t.Fatal(err)
	}
}

// compareArchive compares the entries of a layer, and the files' contents, with the
// archive that it is.
func compareArchive(t *testing.T, got *Layer, blob []byte) {
	t.Helper()
	checkTable(t, got)
	zr, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	want, files, err := imagetest.ReadArchive(zr)
	if err != nil {
		t.Fatal(err)
	}
	ignore := cmpopts.IgnoreFields(image.Entry{}, "Extents")
	if diff := cmp.Diff(want, collect(t, got), ignore, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	for name, data := range contents(t, blob, got) {
		if !bytes.Equal(data, files[name]) {
			t.Errorf("%q has other contents", name)
		}
	}
}

// layerOf makes a layer of pad bytes, a TOC and a footer.
func layerOf(t testing.TB, table string, pad int) []byte {
	t.Helper()
	var buf bytes.Buffer
	buf.Write(make([]byte, pad))
	zw := gzip.NewWriter(&buf)
	zw.Write(tarOf(t, []file{{hdr: tar.Header{Name: toc.Name, Typeflag: tar.TypeReg}, data: []byte(table)}}))
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&buf, "%s", writer.CreateGzipFooter([]byte(fmt.Sprintf("SG\x16\x00%016xSTARGZ", pad))))
	return buf.Bytes()
}

// tocOf makes a TOC of entries; "D" in an entry stands for a digest.
func tocOf(entries ...string) string {
	s := `{"version":1,"entries":[` + strings.Join(entries, ",") + "]}"
	return strings.ReplaceAll(s, `"D"`, `"`+chunk.SHA256.Sum(nil).String()+`"`)
}

// incompressibleTOC returns a TOC of n directories that exceeds the first
// request when compressed.
func incompressibleTOC(n int) string {
	entries := make([]string, n)
	for i := range entries {
		entries[i] = fmt.Sprintf(`{"name":"%x","type":"dir"}`, random(tailSize/n))
	}
	return tocOf(entries...)
}
