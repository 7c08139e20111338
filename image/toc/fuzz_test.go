package toc

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"graze/chunk"
	"graze/image"
	"graze/image/fixture"
	"graze/image/imagetest"
)

const testBlob = chunk.Blob("sha256:0000000000000000000000000000000000000000000000000000000000000001")

// tocOf makes a TOC of entries; "D" in an entry stands for a digest.
func tocOf(entries ...string) string {
	s := `{"version":1,"entries":[` + strings.Join(entries, ",") + "]}"
	return strings.ReplaceAll(s, `"D"`, `"`+chunk.SHA256.Sum(nil).String()+`"`)
}

// read reads a table whose members end at 1000.
func read(table string) (*image.Layer, error) {
	x, err := Read(strings.NewReader(table), Config{Blob: testBlob, End: 1000})
	if err != nil {
		return nil, err
	}
	return layer(x), nil
}

// layer makes a layer of an index.
func layer(x *Index) *image.Layer {
	return &image.Layer{Digest: testBlob, Size: 1 << 40, Table: x.Table, Prefetch: x.Prefetch, Entries: x.Entries}
}

// collect returns copies of a layer's entries.
func collect(t testing.TB, l *image.Layer) []image.Entry {
	t.Helper()
	list, err := imagetest.Collect(l)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// checkTable fails if the table breaks a rule of image.Table.
func checkTable(t testing.TB, l *image.Layer) {
	t.Helper()
	if err := imagetest.CheckMembers(l, chunk.Gzip); err != nil {
		t.Fatal(err)
	}
}

// written returns a TOC that the writer of eStargz has made of odd files.
func written(t testing.TB) []byte {
	t.Helper()
	var packed []byte
	e := imagetest.ExternalTOC(func(toc []byte) { packed = bytes.Clone(toc) })
	if _, err := e.Encode(imagetest.Adversarial()[0]); err != nil {
		t.Fatal(err)
	}
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(zr)
	if _, err := tr.Next(); err != nil {
		t.Fatal(err)
	}
	table, err := io.ReadAll(tr)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// FuzzTOC parses TOCs; what is accepted must keep to the rules of a Table.
func FuzzTOC(f *testing.F) {
	f.Add([]byte(`{"version":1,"entries":null}`))
	f.Add([]byte(tocOf(
		`{"name":"a/","type":"dir","mode":511,"uid":1,"xattrs":{"user.a":"AA=="},"modtime":"2020-01-02T03:04:05Z"}`,
		`{"name":"a/b","type":"reg","size":9,"offset":3,"chunkSize":4,"chunkDigest":"D"}`,
		`{"name":"a/b","type":"chunk","offset":3,"innerOffset":9,"chunkOffset":4,"chunkDigest":"D"}`,
		`{"name":"a/c","type":"hardlink","linkName":"a/b"}`,
		`{"name":"a/d","type":"char","devMajor":1,"devMinor":3}`,
		`{"name":".prefetch.landmark","type":"reg","size":1,"offset":9}`,
		`{"name":"a/e","type":"symlink","linkName":"b"}`,
	)))
	f.Add([]byte(tocOf(
		`{"name":"a","type":"reg","size":30,"offset":3,"chunkSize":10,"chunkType":"zeros"}`,
		`{"name":"a","type":"chunk","offset":9,"chunkOffset":10,"chunkDigest":"D"}`,
		`{"name":"a","type":"reg","size":9,"offset":20,"digest":"D"}`,
	)))
	f.Add(written(f))
	if p := fixture.Seed(f, "nydus/tests/texture/stargz/estargz_sample.json"); p != nil {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, table []byte) {
		const size = 1 << 20
		for _, cfg := range []Config{
			{Blob: testBlob, End: size},
			{Blob: testBlob, End: size, Codec: chunk.Zstd, Archive: true},
		} {
			x, err := Read(bytes.NewReader(table), cfg)
			if err != nil {
				continue
			}
			l := layer(x)
			if err := imagetest.CheckMembers(l, cmp.Or(cfg.Codec, chunk.Gzip)); err != nil {
				t.Error(err)
			}
			for _, e := range collect(t, l) {
				if e.Name == "" || strings.IndexByte(e.Name+e.Link, 0) >= 0 || e.Hardlink == (e.Mode != 0) || e.MTime.Nsec >= 1e9 {
					t.Errorf("entry %+v", e)
				}
			}
		}
	})
}
