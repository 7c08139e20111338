package estargz

import (
	"testing"

	"graze/image/fixture"

	writer "github.com/containerd/stargz-snapshotter/estargz"
)

func FuzzFooter(f *testing.F) {
	f.Add(writer.CreateGzipFooter([]byte("SG\x16\x0000000000000003b4STARGZ")), int64(1000))
	f.Add(writer.CreateGzipFooter([]byte("00000000000003b4STARGZ")), int64(1000))
	f.Add(writer.CreateGzipFooter([]byte("SG\x11\x00STARGZEXTERNALTOC")), int64(1000))
	if p := fixture.Seed(f, "snapshotter/pkg/stargz/testdata/stargzfooter.bin"); p != nil {
		f.Add(p, int64(1<<20))
	}
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

// FuzzOpen opens whole layers.
func FuzzOpen(f *testing.F) {
	blob, annotations := build(f, sample()[:10])
	f.Add(blob, annotations[TOCDigestAnnotation])
	f.Add(legacy(f, nil), "")
	for _, name := range []string{"upper", "lower"} {
		if p := fixture.Seed(f, "nydus-history/"+name+".stargz"); p != nil {
			f.Add(p, "")
		}
	}
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
