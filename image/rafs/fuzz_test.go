package rafs

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"graze/chunk"
	"graze/image"
	"graze/image/fixture"
	"graze/image/imagetest"
	"graze/image/rafs/rafstest"
)

// smallTree is a tree of few bytes with most of what there is.
func smallTree() *rafstest.Node {
	file := func(n int) *rafstest.Node {
		return &rafstest.Node{Mode: syscall.S_IFREG | 0o644, Data: imagetest.Text(uint64(n), n)}
	}
	linked := file(5000)
	linked.Xattrs = []rafstest.Xattr{{Name: "user.a", Value: "1"}, {Name: "security.b", Value: "2"}}
	return &rafstest.Node{Mode: syscall.S_IFDIR | 0o755, Entries: []rafstest.Entry{
		{Name: "a", Node: linked},
		{Name: "b", Node: &rafstest.Node{Mode: syscall.S_IFDIR | 0o755, Entries: []rafstest.Entry{{Name: "c", Node: linked}}}},
		{Name: "d", Node: &rafstest.Node{Mode: syscall.S_IFLNK | 0o777, Target: "a"}},
		{Name: "e", Node: &rafstest.Node{Mode: syscall.S_IFCHR | 0o600, Rdev: 259}},
		{Name: "f", Node: file(100)},
	}}
}

// The bytes of a real blob of version 6: its chunks, chunk information, digests and
// table of contents.
const realBlob = "nydus/tests/texture/blobs/be7d77eeb719f70884758d1aa800ed0fb09d701aaec469964e9d54325f0d5fef"

// seeds calls add with bootstraps and one blob of each: those of small images of
// all kinds, and those of small real ones where there are any.
func seeds(f *testing.F, add func(boot, blob []byte)) {
	tree := smallTree()
	plain, packed := smallTar(f)
	for _, opts := range []rafstest.Options{
		{Version: 5, ChunkSize: 4096, Prefetch: []string{"b"}},
		{Version: 6, ChunkSize: 4096, Prefetch: []string{"b"}, Compressor: rafstest.LZ4},
		{Version: 6, ChunkSize: 4096, Compact: true, Batch: 4096, TOC: true, Compressor: rafstest.Zstd},
		{Version: 6, ChunkSize: 4096, TOC: true, InlineDigests: true, CopyInodes: true},
		{Version: 6, ChunkSize: 4096, Layers: []rafstest.Layer{{Blob: packed, Tar: plain}}},
		{Version: 6, ChunkSize: 4096, Layers: []rafstest.Layer{{Blob: plain, Tar: plain, Kind: rafstest.Tarfs}}},
	} {
		img, err := rafstest.Build(tree, opts)
		if err != nil {
			f.Fatal(err)
		}
		blob := plain
		if len(img.Blobs) > 0 {
			blob = img.Blobs[0].Data
		}
		add(img.Bootstrap, blob)
	}
	for name := range bootstraps {
		if p := fixture.Seed(f, name); len(p) > 0 && len(p) < 64<<10 {
			add(p, fixture.Seed(f, realBlob))
		}
	}
}

// smallTar returns a layer with the files of smallTree.
func smallTar(t testing.TB) (plain, packed []byte) {
	layer := imagetest.Layer{Members: imagetest.Members(
		imagetest.File("a", imagetest.Text(5000, 5000)), imagetest.File("f", imagetest.Text(100, 100)))}
	plain, err := layer.Tar()
	if err != nil {
		t.Fatal(err)
	}
	blob, err := imagetest.Gzip(6).Encode(layer)
	if err != nil {
		t.Fatal(err)
	}
	return plain, blob.Data
}

// FuzzOpen opens bootstraps whose blobs are all the same bytes. What is accepted
// must keep to the rules of a layer.
func FuzzOpen(f *testing.F) {
	seeds(f, func(boot, blob []byte) { f.Add(boot, blob) })
	f.Fuzz(func(t *testing.T, boot, blob []byte) {
		cfg := blobs{}.config()
		cfg.Blob = func(chunk.Blob) image.Ranger { return ranger(blob) }
		l, err := Open(t.Context(), boot, cfg)
		if err != nil {
			return
		}
		if err := checkLayer(l); err != nil {
			t.Error(err)
		}
	})
}

// checkLayer returns what is wrong with a layer that was accepted.
func checkLayer(l *image.Layer) error {
	t := &l.Table
	next := 0
	for i, s := range t.Spans {
		if int(s.First) != next || s.Count == 0 || s.Count > maxParts && s.Window.Len > 0 || s.Off < 0 || s.Len <= 0 || int(s.Blob) >= len(t.Blobs) {
			return fmt.Errorf("span %d: %+v", i, s)
		}
		end := int64(0)
		for _, c := range t.Chunks[s.First : s.First+s.Count] {
			if int(c.Span) != i || c.At < end || c.Check() != nil {
				return fmt.Errorf("span %d: chunk %+v", i, c)
			}
			end = c.At + int64(c.Size)
		}
		if w := s.Window; w.Len > 0 && int64(w.Off)+int64(w.Len) > int64(t.Chunks[w.Chunk].Size) {
			return fmt.Errorf("span %d: window %+v", i, w)
		}
		next += int(s.Count)
	}
	if next != len(t.Chunks) || l.Prefetch > len(t.Spans) {
		return fmt.Errorf("%d chunks in spans of %d", len(t.Chunks), next)
	}
	for e, err := range l.Entries {
		if err != nil {
			return fmt.Errorf("entries of a layer that was accepted: %w", err)
		}
		if e.Name == "" || strings.IndexByte(e.Name, 0) >= 0 {
			return fmt.Errorf("entry %q", e.Name)
		}
		for _, x := range e.Extents {
			if int(x.Chunk) >= len(t.Chunks) || x.Len != int64(t.Chunks[x.Chunk].Size) {
				return fmt.Errorf("entry %q: extent %+v", e.Name, x)
			}
		}
	}
	return nil
}

// FuzzUnpack takes layers of bootstraps apart.
func FuzzUnpack(f *testing.F) {
	img, err := rafstest.Build(smallTree(), rafstest.Options{Version: 6, MetaBeside: true})
	if err != nil {
		f.Fatal(err)
	}
	layer, err := img.BootstrapLayer()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(layer.Data)
	// A real layer that has no bootstrap, and one whose bootstrap is none. Others are
	// too large to be changed often.
	for _, name := range []string{"invalid.tar.gz", "invalid-bootstrap-file-size-133513.tar.gz"} {
		if p := fixture.Seed(f, "snapshotter/pkg/filesystem/testdata/"+name); p != nil {
			f.Add(p)
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		boot, _, err := Unpack(p)
		if err == nil && boot == nil || err != nil && boot != nil {
			t.Errorf("bootstrap of %d bytes, error %v", len(boot), err)
		}
	})
}

// FuzzMeta reads chunk information.
func FuzzMeta(f *testing.F) {
	plain, packed := smallTar(f)
	for _, opts := range []rafstest.Options{
		{Version: 6}, {Version: 6, InfoV2: true}, {Version: 6, Batch: 8192},
		{Version: 6, Layers: []rafstest.Layer{{Blob: packed, Tar: plain}}},
	} {
		opts.ChunkSize, opts.MetaBeside = 4096, true
		img, err := rafstest.Build(smallTree(), opts)
		if err != nil {
			f.Fatal(err)
		}
		b, err := Parse(img.Bootstrap)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(img.Metas[b.blobs[0].id], b.blobs[0].features, b.blobs[0].chunkCount)
	}
	if p := fixture.Seed(f, realZRan); p != nil {
		f.Add(p, uint32(featureInfoV2|featureZRan), uint32(163))
	}
	f.Fuzz(func(t *testing.T, p []byte, features, count uint32) {
		n := max(len(p)-infoHeaderSize, 0)
		b := &blob{features: features, chunkCount: count}
		m, err := parseMeta(p[:n], p[n:], b)
		if err != nil {
			return
		}
		for i := range count {
			info, err := m.info(i)
			if err != nil {
				t.Fatalf("chunk %d of %d: %v", i, count, err)
			}
			c := &fileChunk{index: i, size: info.usize}
			if z, err := fromZRan(m, c, &info); err == nil && (z.len == 0 || z.bits > 7 || z.dictOff+uint64(z.dictSize) > uint64(len(m.dicts))) {
				t.Errorf("place %+v", z)
			}
			if p, err := fromBatch(b, m, c, &info); err == nil && p.len == 0 {
				t.Errorf("place %+v", p)
			}
		}
	})
}

// FuzzTOC reads tables of contents.
func FuzzTOC(f *testing.F) {
	img, err := rafstest.Build(smallTree(), rafstest.Options{Version: 6, TOC: true, InlineDigests: true})
	if err != nil {
		f.Fatal(err)
	}
	p := img.Blobs[0].Data
	f.Add(bytes.Clone(p[len(p)-512-3*128 : len(p)-512]))
	if p := fixture.Seed(f, realBlob); p != nil {
		f.Add(bytes.Clone(p[len(p)-512-3*128 : len(p)-512]))
		f.Add(bytes.Clone(p[len(p)-512:]))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		entries, err := parseTOC(p)
		if err == nil && len(entries) != len(p)/tocEntrySize {
			t.Errorf("%d entries in %d bytes", len(entries), len(p))
		}
		if len(p) >= tarBlock {
			if _, size, err := parseTarHeader(p[:tarBlock]); err == nil && size < 0 {
				t.Errorf("size %d", size)
			}
		}
	})
}
