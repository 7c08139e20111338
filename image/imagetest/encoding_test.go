package imagetest

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/klauspost/compress/zstd"
)

// decode returns the archive in a blob.
func decode(t testing.TB, b *Blob) []byte {
	t.Helper()
	r, err := b.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var src io.Reader = r
	switch b.MediaType {
	case MediaTypeTarGzip:
		src, err = gzip.NewReader(r)
	case MediaTypeTarZstd:
		src, err = zstd.NewReader(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := io.ReadAll(src)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEncodings(t *testing.T) {
	data := Random(1, 1<<20)
	layer := Layer{Name: "files", Members: Members(
		File("a", nil), File("b", data), sparsePAX("c", 1<<20, []fragment{{1000, data[:1000]}}), File("d", Text(1, 300<<10)), File("e", []byte("e")),
	), Trailer: make([]byte, 5000)}
	want, err := layer.Tar()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range Encodings() {
		t.Run(e.Name, func(t *testing.T) {
			b, err := e.Encode(layer)
			if err != nil {
				t.Fatal(err)
			}
			got := decode(t, &b)
			if !e.rewrites && !bytes.Equal(got, want) {
				t.Error("the archive in the blob is another")
			}
			if b.DiffID != bytesDigest(got) || b.Digest != bytesDigest(b.Data) || b.Size != int64(len(b.Data)) {
				t.Errorf("blob %s of %d bytes, diff id %s", b.Digest, b.Size, b.DiffID)
			}
			name := filepath.Join(t.TempDir(), "blob")
			f, err := e.EncodeFile(name, layer)
			if err != nil {
				t.Fatal(err)
			}
			if f.Digest != b.Digest || f.DiffID != b.DiffID || f.Size != b.Size {
				t.Errorf("as a file: %+v", f)
			}
		})
	}
}

func TestEncodingForms(t *testing.T) {
	layer := Layer{Name: "text", Members: Members(File("text", Text(1, 1<<20)))}
	for _, tt := range []struct {
		name string
		e    Encoding
		ok   func(p []byte) bool
	}{
		{"stored", StoredGzip(), func(p []byte) bool { return len(p) > 1<<20 }},
		{"compressed", Gzip(9), func(p []byte) bool { return len(p) < 1<<19 }},
		{"members", MultiMemberGzip(100 << 10), func(p []byte) bool { return bytes.Count(p, []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0}) > 15 }},
		{"fields", GzipHeaderFields(), func(p []byte) bool { return p[3] == 4|8|16 && bytes.Contains(p[:64], []byte("layer.tar")) }},
		{"frames", MultiFrameZstd(100 << 10), func(p []byte) bool { return bytes.Count(p, []byte("skipped")) > 5 }},
	} {
		b, err := tt.e.Encode(layer)
		if err != nil || !tt.ok(b.Data) {
			t.Errorf("%s: %d bytes, error %v", tt.name, b.Size, err)
		}
	}
}

// TestEStargzUnpacks opens and unpacks every layer in that format.
func TestEStargzUnpacks(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	for _, l := range Adversarial() {
		b, err := EStargz("estargz").Encode(l)
		if err != nil {
			t.Fatal(err)
		}
		r, err := estargz.Open(io.NewSectionReader(bytes.NewReader(b.Data), 0, b.Size))
		if err != nil {
			t.Fatalf("%s: %v", l.Name, err)
		}
		if got := r.TOCDigest().String(); got != b.Annotations[estargz.TOCJSONDigestAnnotation] {
			t.Errorf("%s: TOC %s, annotations %v", l.Name, got, b.Annotations)
		}
		if err := unpackFlat(t.Context(), dir, []io.Reader{bytes.NewReader(decode(t, &b))}); err != nil {
			t.Fatalf("%s: %v", l.Name, err)
		}
	}
	plain := t.TempDir()
	if err := unpackFlat(t.Context(), plain, archives(t, Adversarial())); err != nil {
		t.Fatal(err)
	}
	// The differences are those that EStargz tells of, and the format's own files.
	opts := SameFiles()
	opts.Ignore |= MTime
	opts.Skip = map[string]bool{estargz.TOCTarName: true, estargz.NoPrefetchLandmark: true}
	opts.Skip["names/not UTF-8 \xff\xfe"] = true
	opts.Skip["names/not UTF-8 \xff\xfd"] = true
	opts.Skip["links/odd"] = true
	for _, d := range Diff(snapshot(t, plain), snapshot(t, dir), opts) {
		t.Error(d)
	}
}

func TestLargeFile(t *testing.T) {
	const size = 64 << 20
	l := LargeFile("large", size)
	b, err := Gzip(1).EncodeFile(filepath.Join(t.TempDir(), "blob"), l)
	if err != nil {
		t.Fatal(err)
	}
	if b.Size < size {
		t.Errorf("contents compress to %d bytes", b.Size)
	}
	sum := sha256.New()
	if n, err := io.Copy(sum, LargeBody(size)); n != size || err != nil {
		t.Fatalf("%d bytes, error %v", n, err)
	}
	p := decode(t, &b)
	if got := sha256.Sum256(p[512 : 512+size]); !bytes.Equal(got[:], sum.Sum(nil)) {
		t.Error("LargeBody is not what is in the layer")
	}
}

// store is as much of a registry as Push needs.
type store struct {
	blobs  map[string][]byte
	writes int
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, last, _ := strings.Cut(r.URL.Path, "/v2/some/name/")
	switch {
	case r.Method == http.MethodPost && last == "blobs/uploads/":
		w.Header().Set("Location", "/v2/some/name/upload?state=1")
		w.WriteHeader(http.StatusAccepted)
	case r.Method == http.MethodPut && last == "upload" && r.URL.Query().Get("state") == "1" && bytesDigest(p) == r.URL.Query().Get("digest"):
		s.blobs["blobs/"+bytesDigest(p)] = p
		s.writes++
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodPut && strings.HasPrefix(last, "manifests/") && r.Header.Get("Content-Type") == mediaTypeManifest:
		s.blobs[last] = p
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodHead && s.blobs[last] != nil:
		w.WriteHeader(http.StatusOK)
	default:
		http.NotFound(w, r)
	}
}

func TestPush(t *testing.T) {
	s := &store{blobs: make(map[string][]byte)}
	srv := httptest.NewServer(s)
	defer srv.Close()
	addr := strings.TrimPrefix(srv.URL, "http://")
	empty := Layer{Name: "empty", Members: Members()}
	img, err := Build([]Layer{empty, SmallFiles("f", 10), empty}, Gzip(1), "/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := img.Push(t.Context(), addr, "some/name:tag"); err != nil {
			t.Fatal(err)
		}
	}
	if s.writes != 3 { // the config and two layers, each once
		t.Errorf("%d blobs written", s.writes)
	}
	if !bytes.Equal(s.blobs["manifests/tag"], img.Manifest) {
		t.Error("another manifest")
	}
	var m struct {
		Config descriptor
		Layers []descriptor
	}
	if err := json.Unmarshal(img.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	for _, d := range append(m.Layers, m.Config) {
		if got := s.blobs["blobs/"+d.Digest]; int64(len(got)) != d.Size {
			t.Errorf("blob %s has %d bytes, want %d", d.Digest, len(got), d.Size)
		}
	}
	if err := img.Push(t.Context(), addr, "other"); err == nil {
		t.Error("no error from a registry that refuses")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := img.Push(ctx, addr, "some/name"); err == nil {
		t.Error("no error after cancellation")
	}
}

// TestLayoutUnpacks has another program unpack the layout.
func TestLayoutUnpacks(t *testing.T) {
	needRoot(t)
	umoci, err := exec.LookPath("umoci")
	if err != nil {
		t.Skip(err)
	}
	layers := []Layer{SmallFiles("f", 200), {Name: "links", Members: Members(links()...)}, {Name: "more", Members: Members(File("f/00000/0", []byte("new")))}}
	img, err := Build(layers, Gzip(1), "/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	layout := filepath.Join(dir, "layout")
	if err := img.WriteLayout(layout, "tag"); err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(dir, "bundle")
	if out, err := exec.CommandContext(t.Context(), umoci, "unpack", "--image", layout+":tag", bundle).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	flat := filepath.Join(dir, "flat")
	if err := os.Mkdir(flat, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unpackFlat(t.Context(), flat, archives(t, layers)); err != nil {
		t.Fatal(err)
	}
	opts := SameFiles()
	opts.IgnoreAt["f/00000"] = MTime // changed without an entry of its own
	for _, d := range Diff(snapshot(t, flat), snapshot(t, filepath.Join(bundle, "rootfs")), opts) {
		t.Error(d)
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, e := range []Encoding{Plain(), Gzip(1), EStargz("estargz")} {
		b.Run(fmt.Sprintf("encoding=%s", strings.ReplaceAll(e.Name, " ", "-")), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				blob, err := e.Encode(SmallFiles("f", 1000))
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(blob.Size)
			}
		})
	}
}
