package estargz

import (
	"errors"
	"testing"

	writer "github.com/containerd/stargz-snapshotter/estargz"

	"graze/chunk"
)

func TestDetect(t *testing.T) {
	blob, annotations := build(t, nil)
	zstd := map[string]string{TOCDigestAnnotation: "sha256:…", "io.containers.zstd-chunked.manifest-checksum": "sha256:…"}
	for _, tt := range []struct {
		name string
		got  bool
		want bool
	}{
		{"annotated", Annotated(annotations), true},
		{"no annotations", Annotated(nil), false},
		{"zstd:chunked", Annotated(zstd), false},
		{"blob", HasFooter(blob), true},
		{"footer alone", HasFooter(blob[len(blob)-footerSize:]), true},
		{"part of a footer", HasFooter(blob[len(blob)-footerSize+5:]), false},
		{"legacy", HasFooter(legacy(t, nil)), true},
		{"external", HasFooter(writer.CreateGzipFooter([]byte("SG\x11\x00STARGZEXTERNALTOC"))), true},
		{"other extra field", HasFooter(writer.CreateGzipFooter([]byte("SG\x16\x000000000000000000STARGY"))), false},
		{"nothing", HasFooter(nil), false},
		{"footer within", HasFooter(append(blob[:len(blob):len(blob)], 0)), false},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %t", tt.name, tt.got)
		}
	}
}

func TestParseFooter(t *testing.T) {
	foot := func(s string) []byte { return writer.CreateGzipFooter([]byte("SG\x16\x00" + s + "STARGZ")) }
	for _, tt := range []struct {
		name   string
		digits string
		want   int64
		err    error
	}{
		{"zero", "0000000000000000", 0, nil},
		{"last", "00000000000003b4", 948, nil},
		{"at the footer", "00000000000003b5", 0, chunk.ErrCorrupt},
		{"past the end", "7fffffffffffffff", 0, chunk.ErrCorrupt},
		{"negative", "ffffffffffffffff", 0, chunk.ErrCorrupt},
		{"sign", "+000000000000001", 0, chunk.ErrCorrupt},
		{"no digits", "zzzzzzzzzzzzzzzz", 0, chunk.ErrCorrupt},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := parseFooter(foot(tt.digits), 1000)
			if f.tocOff != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %+v, %v", f, err)
			}
		})
	}
}
