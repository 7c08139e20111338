package estargz

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	writer "github.com/containerd/stargz-snapshotter/estargz"
	"github.com/google/go-cmp/cmp"

	"graze/chunk"
	"graze/image"
	"graze/image/fixture"
	"graze/image/toc"
)

func TestOpen(t *testing.T) {
	tests := []struct {
		name     string
		opts     []writer.Option
		shared   bool // members hold several chunks
		prefetch bool
	}{
		{name: "default"},
		{name: "one worker", opts: []writer.Option{writer.WithParallelism(1)}},
		{name: "small chunks", opts: []writer.Option{writer.WithChunkSize(1000)}},
		{name: "shared members", opts: []writer.Option{writer.WithMinChunkSize(50000)}, shared: true},
		{name: "shared members, small chunks", opts: []writer.Option{writer.WithMinChunkSize(50000), writer.WithChunkSize(4096)}, shared: true},
		{name: "prefetch", opts: []writer.Option{writer.WithPrioritizedFiles([]string{"data/200000", "dir/hard"})}, prefetch: true},
		{name: "prefetch in shared members", opts: []writer.Option{
			writer.WithPrioritizedFiles([]string{"data/200000", "dir/hard"}), writer.WithMinChunkSize(1 << 20),
		}, prefetch: true, shared: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := sample()
			blob, annotations := build(t, files, tt.opts...)
			r := &ranger{p: blob}
			l, err := Open(t.Context(), r, Config{Blob: testBlob, Annotations: annotations})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.asks) != 1 {
				t.Errorf("requests %q, want one", r.asks)
			}
			if l.Unverified || l.TOCDigest.String() != annotations[TOCDigestAnnotation] {
				t.Errorf("digest %s, unverified %t", l.TOCDigest, l.Unverified)
			}
			if l.Digest != testBlob || l.Size != int64(len(blob)) || l.Format != image.EStargz {
				t.Errorf("layer is %s, %d bytes, %s", l.Digest, l.Size, l.Format)
			}
			checkTable(t, l)
			got := contents(t, blob, l)
			for _, f := range files {
				if f.hdr.Typeflag == tar.TypeReg && !bytes.Equal(got[f.hdr.Name], f.data) {
					t.Errorf("%q has other contents", f.hdr.Name)
				}
			}
			if n := len(collect(t, l)); n != len(files) {
				t.Errorf("%d entries, want %d", n, len(files))
			}
			if shared := len(l.Table.Spans) < len(l.Table.Chunks); shared != tt.shared {
				t.Errorf("%d spans of %d chunks", len(l.Table.Spans), len(l.Table.Chunks))
			}
			if (l.Prefetch > 0) != tt.prefetch || l.Prefetch >= len(l.Table.Spans) && tt.prefetch {
				t.Errorf("prefetch %d of %d spans", l.Prefetch, len(l.Table.Spans))
			}
			if tt.prefetch {
				checkPrefetch(t, l, "data/200000", "dir/suid")
			}
		})
	}
}

// checkPrefetch fails unless exactly the named files lie in the spans that are
// to be prefetched.
func checkPrefetch(t *testing.T, l *Layer, names ...string) {
	t.Helper()
	want := make(map[string]bool)
	for _, name := range names {
		want[name] = true
	}
	for _, e := range collect(t, l) {
		for _, x := range e.Extents {
			if first := int(l.Table.Chunks[x.Chunk].Span) < l.Prefetch; first != want[e.Name] {
				t.Errorf("%s: prefetch is %t", e.Name, first)
			}
		}
	}
}

func TestEntries(t *testing.T) {
	mtime := image.Time{Sec: time.Date(2024, 2, 29, 12, 0, 1, 0, time.UTC).Unix()}
	want := []image.Entry{
		{Name: "dir/", Mode: syscall.S_IFDIR | 0o1777, UID: 70000, GID: 1 << 22, MTime: mtime},
		{Name: "dir/empty", Mode: syscall.S_IFREG | 0o600},
		{Name: "dir/suid", Mode: syscall.S_IFREG | 0o6755, Size: 4,
			Xattrs: []image.Xattr{
				{Name: "security.capability", Value: []byte("\x01\x00\x00\x02\x00\xff")},
				{Name: "user.b", Value: []byte("x")},
			},
			Extents: []chunk.Extent{{Len: 4}},
		},
		{Name: "dir/link", Mode: syscall.S_IFLNK | 0o777, Link: "../none"},
		{Name: "dir/hard", Hardlink: true, Link: "dir/suid"},
		{Name: "fifo", Mode: syscall.S_IFIFO | 0o644},
		{Name: "null", Mode: syscall.S_IFCHR | 0o666, Major: 1, Minor: 3},
		{Name: "disk", Mode: syscall.S_IFBLK | 0o660, Major: 259, Minor: 70000},
		{Name: "./odd//name/", Mode: syscall.S_IFDIR | 0o755},
		{Name: "new\nline é", Mode: syscall.S_IFREG | 0o644, Size: 1, Extents: []chunk.Extent{{Len: 1, Chunk: 1}}},
	}
	files := sample()[:len(want)]
	delete(files[2].hdr.PAXRecords, "SCHILY.xattr.user.a") // a PAX record without a value deletes
	blob, annotations := build(t, files)
	l, err := Open(t.Context(), &ranger{p: blob}, Config{Blob: testBlob, Annotations: annotations})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // Entries can be ranged over more than once
		if diff := cmp.Diff(want, collect(t, l)); diff != "" {
			t.Fatalf("entries (-want +got):\n%s", diff)
		}
	}
	for range l.Entries {
		break
	}
}

func TestOpenEmpty(t *testing.T) {
	tests := []struct {
		name string
		blob func(t *testing.T) ([]byte, map[string]string)
	}{
		{"no files", func(t *testing.T) ([]byte, map[string]string) { return build(t, nil) }},
		{"TOC only", func(t *testing.T) ([]byte, map[string]string) {
			var buf bytes.Buffer
			digest, err := writer.NewWriter(&buf).Close()
			if err != nil {
				t.Fatal(err)
			}
			return buf.Bytes(), map[string]string{TOCDigestAnnotation: digest.String()}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			blob, annotations := tt.blob(t)
			l, err := Open(t.Context(), &ranger{p: blob}, Config{Blob: testBlob, Annotations: annotations})
			if err != nil {
				t.Fatal(err)
			}
			checkTable(t, l)
			if n := len(collect(t, l)) + len(l.Table.Spans) + l.Prefetch; n != 0 {
				t.Errorf("layer is %+v", l)
			}
		})
	}
}

func TestOpenLargeTOC(t *testing.T) {
	const n = 10000
	table := incompressibleTOC(n)
	annotations := map[string]string{TOCDigestAnnotation: chunk.SHA256.Sum([]byte(table)).String()}
	r := &ranger{p: layerOf(t, table, 1000)}
	l, err := Open(t.Context(), r, Config{Blob: testBlob, Annotations: annotations})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.asks) != 2 || !strings.HasPrefix(r.asks[1], "1000+") {
		t.Errorf("requests %q, want two", r.asks)
	}
	if got := len(collect(t, l)); got != n {
		t.Errorf("%d entries, want %d", got, n)
	}
	_, err = Open(t.Context(), r, Config{Blob: testBlob, Annotations: annotations, MaxTOC: int64(len(table)) - 1})
	if !errors.Is(err, toc.ErrUnsupported) {
		t.Errorf("with a small MaxTOC: %v", err)
	}
}

func TestOpenPolicy(t *testing.T) {
	blob, annotations := build(t, sample())
	other := map[string]string{TOCDigestAnnotation: chunk.SHA256.Sum(nil).String()}
	tests := []struct {
		name        string
		blob        []byte
		annotations map[string]string
		policy      Policy
		want        error
		unverified  bool
	}{
		{name: "annotated", blob: blob, annotations: annotations},
		{name: "annotated, accept", blob: blob, annotations: annotations, policy: Accept},
		{name: "bare, refuse", blob: blob, want: ErrUnverified},
		{name: "bare, accept", blob: blob, policy: Accept, unverified: true},
		{name: "legacy, refuse", blob: legacy(t, sample()), want: ErrUnverified},
		{name: "legacy, accept", blob: legacy(t, sample()), policy: Accept, unverified: true},
		{name: "other digest", blob: blob, annotations: other, want: chunk.ErrCorrupt},
		{name: "other digest, accept", blob: blob, annotations: other, policy: Accept, want: chunk.ErrCorrupt},
		{name: "plain", blob: tarOf(t, sample()), annotations: annotations, want: ErrNotEStargz},
		{name: "short", blob: []byte("x"), annotations: annotations, want: ErrNotEStargz},
		{name: "external", blob: writer.CreateGzipFooter([]byte("SG\x11\x00STARGZEXTERNALTOC")), annotations: annotations, want: ErrExternalTOC},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := Open(t.Context(), &ranger{p: tt.blob}, Config{Blob: testBlob, Annotations: tt.annotations, Unverified: tt.policy})
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if err == nil && l.Unverified != tt.unverified {
				t.Errorf("unverified is %t", l.Unverified)
			}
			if err != nil && !strings.Contains(err.Error(), string(testBlob)) {
				t.Errorf("error %q doesn't name the blob", err)
			}
		})
	}
}

func TestOpenBadConfig(t *testing.T) {
	blob, annotations := build(t, nil)
	tests := []struct {
		name string
		cfg  Config
	}{
		{"no blob", Config{Annotations: annotations}},
		{"bad digest", Config{Blob: testBlob, Annotations: map[string]string{TOCDigestAnnotation: "sha256:1"}}},
		{"other algorithm", Config{Blob: testBlob, Annotations: map[string]string{TOCDigestAnnotation: chunk.BLAKE3.Sum(nil).String()}}},
		{"negative MaxTOC", Config{Blob: testBlob, Annotations: annotations, MaxTOC: -1}},
		{"huge MaxTOC", Config{Blob: testBlob, Annotations: annotations, MaxTOC: math.MaxInt64}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &ranger{p: blob}
			if _, err := Open(t.Context(), r, tt.cfg); err == nil || len(r.asks) > 0 {
				t.Errorf("error %v after requests %q", err, r.asks)
			}
		})
	}
}

// TestOpenBrokenTransfer checks that an error of the network is told from
// corrupt bytes, in the first request and in the second.
func TestOpenBrokenTransfer(t *testing.T) {
	for _, tt := range []struct {
		name string
		blob []byte
	}{
		{"first", layerOf(t, `{"version":1,"entries":null}`, 0)},
		{"second", layerOf(t, incompressibleTOC(10000), 0)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			broken := errors.New("connection reset")
			r := &ranger{p: tt.blob}
			var src image.Ranger = r
			if tt.name == "first" {
				r.fail = broken
			} else {
				src = &secondFails{ranger: r, err: broken}
			}
			_, err := Open(t.Context(), src, Config{Blob: testBlob, Unverified: Accept})
			if !errors.Is(err, broken) || errors.Is(err, chunk.ErrCorrupt) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// secondFails is a ranger whose second request breaks.
type secondFails struct {
	*ranger
	err error
}

func (r *secondFails) ReadRange(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if len(r.asks) == 1 {
		r.fail = r.err
	}
	return r.ranger.ReadRange(ctx, off, n)
}

// TestSampleTOC opens a TOC from the tests of another reader of the format.
func TestSampleTOC(t *testing.T) {
	table := fixture.Read(t, "nydus/tests/texture/stargz/estargz_sample.json")
	l, err := Open(t.Context(), &ranger{p: layerOf(t, string(table), 1<<20)}, Config{Blob: testBlob, Unverified: Accept})
	if err != nil {
		t.Fatal(err)
	}
	checkTable(t, l)
	var names []string
	for _, e := range collect(t, l) {
		names = append(names, fmt.Sprintf("%s %o %d", e.Name, e.Mode, e.Size))
	}
	want := []string{"bin/ 40755 0", "bin/busybox 100755 833104", "bin/busybox2 0 0", "lib/ld-musl-x86_64.so.1 100755 580144"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if l.Prefetch != 2 {
		t.Errorf("prefetch %d, want 2", l.Prefetch)
	}
}
