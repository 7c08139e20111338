package estargz

import (
	"bytes"
	"strings"
	"testing"

	writer "github.com/containerd/stargz-snapshotter/estargz"
)

func FuzzFooter(f *testing.F) {
	f.Add(writer.CreateGzipFooter([]byte("SG\x16\x0000000000000003b4STARGZ")), int64(1000))
	f.Add(writer.CreateGzipFooter([]byte("00000000000003b4STARGZ")), int64(1000))
	f.Add(writer.CreateGzipFooter([]byte("SG\x11\x00STARGZEXTERNALTOC")), int64(1000))
	f.Fuzz(func(t *testing.T, tail []byte, size int64) {
		size = max(size, int64(len(tail)))
		foot, err := parseFooter(tail, size)
		if err != nil {
			return
		}
		if foot.tocOff < 0 || foot.tocOff > size-foot.size {
			t.Errorf("footer %+v of %d bytes", foot, size)
		}
		if !HasFooter(tail) {
			t.Error("HasFooter is false")
		}
	})
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
	f.Fuzz(func(t *testing.T, toc []byte) {
		const size = 1 << 20
		b := newBuilder(size)
		if decodeTOC(bytes.NewReader(toc), b) != nil {
			return
		}
		x, err := b.finish(testBlob)
		if err != nil {
			return
		}
		l := &Layer{}
		l.Size, l.Table, l.Prefetch, l.Entries = size, x.table, x.prefetch, x.entries
		checkTable(t, l)
		for _, e := range collect(t, l) {
			if e.Name == "" || strings.IndexByte(e.Name+e.Link, 0) >= 0 || e.Hardlink == (e.Mode != 0) || e.MTime.Nsec >= 1e9 {
				t.Errorf("entry %+v", e)
			}
		}
	})
}

// FuzzOpen opens whole layers.
func FuzzOpen(f *testing.F) {
	blob, annotations := build(f, sample()[:10])
	f.Add(blob, annotations[TOCDigestAnnotation])
	f.Add(legacy(f, nil), "")
	f.Add(layerOf(f, tocOf(`{"name":"a","type":"reg","size":9,"chunkDigest":"D"}`), 100), "")
	f.Fuzz(func(t *testing.T, blob []byte, digest string) {
		annotations := map[string]string{TOCDigestAnnotation: digest}
		cfg := Config{Blob: testBlob, Annotations: annotations, Unverified: Accept, MaxTOC: 1 << 20}
		l, err := Open(t.Context(), &ranger{p: blob}, cfg)
		if err != nil {
			return
		}
		if (digest == "") != l.Unverified || digest != "" && digest != l.TOCDigest.String() {
			t.Errorf("opened by digest %q, unverified %t", digest, l.Unverified)
		}
		checkTable(t, l)
	})
}
