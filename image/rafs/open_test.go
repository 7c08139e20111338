package rafs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
	"graze/image"
	"graze/image/codec"
	"graze/image/imagetest"
	"graze/image/rafs/rafstest"
)

const testDigest = chunk.Blob("sha256:0000000000000000000000000000000000000000000000000000000000000001")

// blobs are those of a test, by their names. They are rangers, too.
type blobs map[chunk.Blob][]byte

type ranger []byte

func (r ranger) Size() int64 { return int64(len(r)) }

func (r ranger) ReadRange(_ context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off > r.Size()-n {
		return nil, fmt.Errorf("range %d+%d of %d bytes", off, n, len(r))
	}
	return io.NopCloser(bytes.NewReader(r[off : off+n])), nil
}

// config returns what Open needs to know about an image of these blobs.
func (b blobs) config() Config {
	return Config{
		Digest: testDigest, Size: 1, ReadAll: true,
		Blob: func(name chunk.Blob) image.Ranger { return ranger(b[name]) },
	}
}

// blobsOf returns the blobs of an image and the layers that it refers to.
func blobsOf(img *rafstest.Image) blobs {
	all := make(blobs)
	for _, b := range img.Blobs {
		all[chunk.Blob(b.Digest)] = b.Data
	}
	for _, l := range img.Options.Layers {
		all[chunk.Blob(chunk.SHA256.Sum(l.Blob).String())] = l.Blob
	}
	return all
}

// testTree returns a tree with all kinds of files, and files of all sizes.
func testTree() *rafstest.Node {
	node := func(mode uint32, entries ...rafstest.Entry) *rafstest.Node {
		return &rafstest.Node{Mode: mode, UID: 1, GID: 2, Sec: 1_000_000_000, Nsec: 5, Entries: entries}
	}
	file := func(data []byte) *rafstest.Node {
		n := node(syscall.S_IFREG | 0o644)
		n.Data = data
		return n
	}
	link := func(target string) *rafstest.Node {
		n := node(syscall.S_IFLNK | 0o777)
		n.Target = target
		return n
	}
	device := func(kind, rdev uint32) *rafstest.Node {
		n := node(kind | 0o600)
		n.Rdev = rdev
		return n
	}
	entry := func(name string, n *rafstest.Node) rafstest.Entry { return rafstest.Entry{Name: name, Node: n} }
	linked := file(imagetest.Text(1, 5000))
	linked.Xattrs = []rafstest.Xattr{{Name: "user.a", Value: "1"}, {Name: "security.capability", Value: "\x01\x00\x00\x02" + strings.Repeat("\x00", 16)}}
	owned := file(nil)
	owned.UID, owned.GID, owned.Mode = 70000, 1<<32-2, syscall.S_IFREG|0o7755
	var many, sizes []rafstest.Entry
	for i := range 600 { // several blocks, and some of them to the last byte
		many = append(many, entry(fmt.Sprintf("%04d%s", i, strings.Repeat("n", i%200)), file(imagetest.Text(uint64(i), i%40*37))))
	}
	for i, n := range []int{1, 4095, 4096, 4097, 8192, 100_000, 1 << 20, 2<<20 + 5} {
		data := imagetest.Random(uint64(i), n)
		if i%2 == 0 {
			data = imagetest.Text(uint64(i), n)
		}
		sizes = append(sizes, entry(fmt.Sprint(n), file(data)))
	}
	linkedSymlink := link("nowhere")
	return node(syscall.S_IFDIR|0o755,
		entry("!first", file([]byte("sorts before . and .."))),
		entry("dir", node(syscall.S_IFDIR|0o1777, entry("again", linked), entry("empty", node(syscall.S_IFDIR|0o700)))),
		entry("dev", node(syscall.S_IFDIR|0o755,
			entry("null", device(syscall.S_IFCHR, 1<<8|3)),
			entry("large", device(syscall.S_IFBLK, 259<<8|0x70|0x111<<20)),
			entry("fifo", device(syscall.S_IFIFO, 0)),
			entry("socket", device(syscall.S_IFSOCK, 0)))),
		entry("linked", linked),
		entry("links", node(syscall.S_IFDIR|0o755,
			entry("short", link("a")), entry("long", link(strings.Repeat("long/", 800))),
			entry("1", linkedSymlink), entry("2", linkedSymlink))),
		entry("many", node(syscall.S_IFDIR|0o755, many...)),
		entry("owned", owned),
		entry("same", file(imagetest.Text(1, 5000))),
		entry("sizes", node(syscall.S_IFDIR|0o755, sizes...)),
	)
}

// tarOf returns an archive of the files of a tree, compressed too.
func tarOf(t testing.TB, root *rafstest.Node) (plain, packed []byte) {
	t.Helper()
	var buf, zbuf bytes.Buffer
	tw := tar.NewWriter(&buf)
	var walk func(n *rafstest.Node, path string)
	walk = func(n *rafstest.Node, path string) {
		if n.Mode&syscall.S_IFMT == syscall.S_IFREG {
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Size: int64(len(n.Data)), Format: tar.FormatPAX}); err != nil {
				t.Fatal(err)
			}
			if _, err := tw.Write(n.Data); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range n.Entries {
			walk(e.Node, path+"/"+e.Name)
		}
	}
	walk(root, ".")
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	// Two members, so that a context can run over from one into the other.
	for _, part := range [][]byte{buf.Bytes()[:1<<20+100], buf.Bytes()[1<<20+100:]} {
		zw := gzip.NewWriter(&zbuf)
		if _, err := zw.Write(part); err != nil {
			t.Fatal(err)
		}
		if err := zw.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return buf.Bytes(), zbuf.Bytes()
}

// rows are the options that images are tested with.
func rows(t testing.TB) map[string]rafstest.Options {
	plain, packed := tarOf(t, testTree())
	tree := testTree()
	some, somePacked := tarOf(t, tree.Entries[len(tree.Entries)-1].Node)
	zran := []rafstest.Layer{{Blob: packed, Tar: plain}}
	return map[string]rafstest.Options{
		"v5":                  {Version: 5},
		"v5, zstd":            {Version: 5, Compressor: rafstest.Zstd, ChunkSize: 64 << 10},
		"v5, lz4, blake3":     {Version: 5, Compressor: rafstest.LZ4, BLAKE3: true},
		"v5, gzip":            {Version: 5, Compressor: rafstest.Gzip, ChunkSize: 4 << 20},
		"v5, several blobs":   {Version: 5, Compressor: rafstest.LZ4, Blobs: 3, ChunkSize: 16 << 10},
		"v5, no owners":       {Version: 5, NoOwners: true},
		"v5, prefetch":        {Version: 5, Prefetch: []string{"many", "sizes/4096"}, ChunkSize: 4096},
		"v6":                  {Version: 6},
		"v6, zstd, blake3":    {Version: 6, Compressor: rafstest.Zstd, BLAKE3: true, TOC: true},
		"v6, lz4":             {Version: 6, Compressor: rafstest.LZ4, ChunkSize: 64 << 10},
		"v6, gzip":            {Version: 6, Compressor: rafstest.Gzip},
		"v6, compact":         {Version: 6, Compact: true},
		"v6, copied inodes":   {Version: 6, CopyInodes: true},
		"v6, several blobs":   {Version: 6, Blobs: 4, ChunkSize: 4096, Compressor: rafstest.Zstd},
		"v6, prefetch":        {Version: 6, Prefetch: []string{"sizes/2097157", "many"}, Compressor: rafstest.LZ4},
		"v6, prefetch of all": {Version: 6, Prefetch: []string{""}},
		"v6, inline digests":  {Version: 6, TOC: true, InlineDigests: true, Compressor: rafstest.Zstd},
		"v6, inline, long":    {Version: 6, TOC: true, InlineDigests: true, InfoV2: true, InfoCompressor: rafstest.Zstd, BLAKE3: true},
		"v6, inline, beside":  {Version: 6, TOC: true, InlineDigests: true, MetaBeside: true},
		"v6, batch, zstd":     {Version: 6, Batch: 64 << 10, Compressor: rafstest.Zstd, TOC: true},
		"v6, batch, lz4":      {Version: 6, Batch: 1 << 20, Compressor: rafstest.LZ4, InfoCompressor: rafstest.LZ4},
		"v6, batch, raw":      {Version: 6, Batch: 8 << 10, MetaBeside: true},
		"v6, ZRan":            {Version: 6, Layers: zran},
		"v6, ZRan, zstd info": {Version: 6, Layers: zran, InfoCompressor: rafstest.Zstd, TOC: true, ChunkSize: 64 << 10},
		"v6, ZRan, lz4 info":  {Version: 6, Layers: zran, InfoCompressor: rafstest.LZ4, MetaBeside: true},
		"v6, ZRan, inline":    {Version: 6, Layers: zran, TOC: true, InlineDigests: true, BLAKE3: true},
		"v6, ZRan and others": {Version: 6, Layers: []rafstest.Layer{{Blob: somePacked, Tar: some}}, Blobs: 2, Compressor: rafstest.Zstd, Batch: 8 << 10},
		"v6, tar-ref":         {Version: 6, Layers: []rafstest.Layer{{Blob: plain, Tar: plain, Kind: rafstest.TarRef}}},
		"v6, tarfs":           {Version: 6, Layers: []rafstest.Layer{{Blob: plain, Tar: plain, Kind: rafstest.Tarfs}}},
	}
}

func TestOpen(t *testing.T) {
	for name, opts := range rows(t) {
		t.Run(name, func(t *testing.T) {
			root := testTree()
			img, err := rafstest.Build(root, opts)
			if err != nil {
				t.Fatal(err)
			}
			cfg := blobsOf(img).config()
			cfg.Metas = metasOf(t, img)
			l, err := Open(t.Context(), img.Bootstrap, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("rafs-v%d", opts.Version); string(l.Format) != want || l.Digest != testDigest {
				t.Errorf("format %s of %s", l.Format, l.Digest)
			}
			checkView(t, l, root, opts, blobsOf(img))
		})
	}
}

// metasOf takes an image's bootstrap layer apart and compares the bootstrap.
func metasOf(t *testing.T, img *rafstest.Image) map[chunk.Blob][]byte {
	t.Helper()
	layer, err := img.BootstrapLayer()
	if err != nil {
		t.Fatal(err)
	}
	boot, metas, err := Unpack(layer.Data)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(boot, img.Bootstrap) || len(metas) != len(img.Metas) {
		t.Fatalf("bootstrap of %d bytes and %d metas in the layer; it was made of %d and %d", len(boot), len(metas), len(img.Bootstrap), len(img.Metas))
	}
	return metas
}

// openView makes the view of a layer.
func openView(t testing.TB, l *image.Layer) *image.View {
	t.Helper()
	path := filepath.Join(t.TempDir(), "view")
	if err := image.WriteView(path, []*image.Layer{l}, image.Info{}); err != nil {
		t.Fatal(err)
	}
	v, err := image.OpenView(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// decodeAll decodes all spans of a view, each by itself, and returns the chunks,
// which it verifies.
func decodeAll(t testing.TB, v *image.View, all blobs) map[chunk.ID][]byte {
	t.Helper()
	chunks := make(map[chunk.ID][]byte)
	var d codec.Decoder
	var decode func(s chunk.Span)
	decode = func(s chunk.Span) {
		var window []byte
		if w := s.Window; w != nil {
			if chunks[w.Ref().ID] == nil {
				decode(w.Span)
			}
			window = chunks[w.Ref().ID][w.Off : w.Off+w.Len]
		}
		p := all[s.Blob]
		if s.Off+s.Len > int64(len(p)) {
			t.Fatalf("span of bytes %d+%d of blob %s, which has %d", s.Off, s.Len, s.Blob, len(p))
		}
		err := d.Decode(bytes.NewReader(p[s.Off:s.Off+s.Len]), []chunk.Span{s}, window, func(_, i int, p []byte) error {
			v, err := s.Parts[i].Verify(bytes.Clone(p))
			chunks[s.Parts[i].ID] = v.Bytes()
			return err
		})
		if err != nil {
			t.Fatalf("span at %d of %s, %s: %v", s.Off, s.Blob, s.Codec, err)
		}
	}
	for i := range v.NumSpans() {
		decode(v.Span(uint32(i)))
	}
	return chunks
}

// checkView compares a view with the tree that its image was made of.
func checkView(t *testing.T, l *image.Layer, root *rafstest.Node, opts rafstest.Options, all blobs) {
	t.Helper()
	v := openView(t, l)
	chunks := decodeAll(t, v, all)
	inodes := make(map[*rafstest.Node]uint64)
	names := int64(0)
	var check func(n *rafstest.Node, ino uint64, path string)
	check = func(n *rafstest.Node, ino uint64, path string) {
		if have := inodes[n]; have != 0 && have != ino {
			t.Errorf("%s: inode %d, and %d by another name", path, ino, have)
		}
		inodes[n] = ino
		if path != "" { // the root is that of the view
			if got, want := describe(v, ino), wanted(n, opts); got != want {
				t.Errorf("%s:\n got %s\nwant %s", path, got, want)
			}
		}
		if !bytes.Equal(contents(v, ino, chunks), n.Data) {
			t.Errorf("%s: contents differ", path)
		}
		for _, e := range n.Entries {
			names++
			child, ok := v.Lookup(ino, e.Name)
			if !ok {
				t.Errorf("%s/%s: missing", path, e.Name)
				continue
			}
			check(e.Node, child, path+"/"+e.Name)
		}
	}
	check(root, image.RootIno, "")
	if got := v.Totals(); got.Names != names || got.Inodes != int64(len(inodes)) {
		t.Errorf("%d names and %d inodes, want %d and %d", got.Names, got.Inodes, names, len(inodes))
	}
	checkPrefetch(t, v, root, opts)
}

// describe says what a view tells of an inode.
func describe(v *image.View, ino uint64) string {
	a, _ := v.Attr(ino)
	link, _ := v.Readlink(ino)
	attrs := make(map[string]string)
	for name, value := range v.Xattrs(ino) {
		attrs[name] = string(value)
	}
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		a.Size = 0
	}
	return fmt.Sprintf("%o %d:%d size %d time %d.%d device %d:%d link %q %q", a.Mode, a.UID, a.GID, a.Size, a.MTime.Sec, a.MTime.Nsec, a.Major, a.Minor, link, attrs)
}

// wanted says the same of a node.
func wanted(n *rafstest.Node, opts rafstest.Options) string {
	uid, gid, sec, nsec := n.UID, n.GID, n.Sec, n.Nsec
	if opts.NoOwners {
		uid, gid = 0, 0
	}
	if opts.Compact && uid < 1<<16 && gid < 1<<16 {
		sec, nsec = 0, 0
	}
	major, minor := uint32(0), uint32(0)
	if k := n.Mode & syscall.S_IFMT; k == syscall.S_IFCHR || k == syscall.S_IFBLK {
		major, minor = n.Rdev>>8&0xfff, n.Rdev&0xff|n.Rdev>>12&0xfff00
	}
	attrs := make(map[string]string)
	for _, x := range n.Xattrs {
		attrs[x.Name] = x.Value
	}
	return fmt.Sprintf("%o %d:%d size %d time %d.%d device %d:%d link %q %q", n.Mode, uid, gid, len(n.Data), sec, nsec, major, minor, n.Target, attrs)
}

// contents returns the bytes of a file; nil for what is none.
func contents(v *image.View, ino uint64, chunks map[chunk.ID][]byte) []byte {
	a, _ := v.Attr(ino)
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG || a.Size == 0 {
		return nil
	}
	p := make([]byte, a.Size)
	for e := range v.Extents(ino, 0, a.Size) {
		ref, _ := v.Chunk(e.Chunk)
		copy(p[e.Off:e.Off+e.Len], chunks[ref.ID][e.At:])
	}
	return p
}

// checkPrefetch compares what is to be prefetched with the files that the image
// names.
func checkPrefetch(t *testing.T, v *image.View, root *rafstest.Node, opts rafstest.Options) {
	t.Helper()
	got, want := make(map[chunk.ID]bool), make(map[chunk.ID]bool)
	for n := range v.Prefetch() {
		for _, p := range v.Span(n).Parts {
			got[p.ID] = true
		}
	}
	var add func(ino uint64)
	add = func(ino uint64) {
		for e := range v.Extents(ino, 0, 1<<40) {
			ref, _ := v.Chunk(e.Chunk)
			want[ref.ID] = true
		}
		for _, e := range v.ReadDir(ino, 0) {
			add(e.Ino)
		}
	}
	for _, path := range opts.Prefetch {
		if path == "" {
			continue // the root is no wish
		}
		ino, err := v.Resolve("/" + path)
		if err != nil {
			t.Fatal(err)
		}
		add(ino)
	}
	if diff := cmp.Diff(slices.SortedFunc(maps.Keys(want), compareIDs), slices.SortedFunc(maps.Keys(got), compareIDs), cmp.Comparer(func(a, b chunk.ID) bool { return a == b })); diff != "" {
		t.Errorf("prefetched chunks: want, got: %.2000s", diff)
	}
}

func compareIDs(a, b chunk.ID) int { return strings.Compare(a.String(), b.String()) }

// TestRefused opens what can't be served, and must say so.
func TestRefused(t *testing.T) {
	plain, packed := tarOf(t, testTree())
	tests := []struct {
		name string
		opts rafstest.Options
		edit func(boot []byte, cfg *Config, all blobs)
		want error
	}{
		{"encrypted", rafstest.Options{Version: 6, Encrypted: true}, nil, ErrEncrypted},
		{"unpacked layer without leave to read it", rafstest.Options{Version: 6, Layers: []rafstest.Layer{{Blob: plain, Tar: plain, Kind: rafstest.Tarfs}}},
			func(_ []byte, cfg *Config, _ blobs) { cfg.ReadAll = false }, ErrNoDigest},
		{"unpacked layer with another digest", rafstest.Options{Version: 6, Layers: []rafstest.Layer{{Blob: plain, Tar: plain, Kind: rafstest.Tarfs}}},
			func(_ []byte, _ *Config, all blobs) {
				for name := range all {
					p := bytes.Clone(all[name])
					p[1000] ^= 1
					all[name] = p
				}
			}, chunk.ErrCorrupt},
		{"unknown flags", rafstest.Options{Version: 5}, func(boot []byte, _ *Config, _ blobs) { boot[17] |= 0x80 }, ErrUnsupported},
		{"unknown features", rafstest.Options{Version: 6}, func(boot []byte, _ *Config, _ blobs) { boot[4096+85] |= 0x80 }, ErrUnsupported},
		{"blob elsewhere", rafstest.Options{Version: 6}, func(boot []byte, _ *Config, _ blobs) { boot[4096+85] |= 8 }, ErrUnsupported},
		{"encrypted blob", rafstest.Options{Version: 6}, func(boot []byte, _ *Config, _ blobs) { boot[4096+216] = 1 }, ErrEncrypted},
		{"blob with no digest for a name", rafstest.Options{Version: 6}, func(boot []byte, _ *Config, _ blobs) { boot[4096], boot[1408] = 'x', 'x' }, ErrUnsupported},
		{"digests that nothing vouches for", rafstest.Options{Version: 6, TOC: true, InlineDigests: true},
			func(boot []byte, _ *Config, _ blobs) { clear(boot[4096+136 : 4096+168]) }, ErrNoDigest},
		{"digests that were changed", rafstest.Options{Version: 6, TOC: true, InlineDigests: true},
			func(_ []byte, _ *Config, all blobs) {
				for name, p := range all {
					p[bytes.LastIndex(p, []byte("blob.digest"))-1] ^= 1
					all[name] = p
				}
			}, chunk.ErrCorrupt},
		{"table of contents that was changed", rafstest.Options{Version: 6, TOC: true, Batch: 4096},
			func(_ []byte, _ *Config, all blobs) {
				for _, p := range all {
					p[len(p)-600] ^= 1
				}
			}, chunk.ErrCorrupt},
		{"no records of chunks", rafstest.Options{Version: 6}, func(boot []byte, _ *Config, _ blobs) { clear(boot[1152+32 : 1152+40]) }, ErrNoDigest},
		{"context without window", rafstest.Options{Version: 6, Layers: []rafstest.Layer{{Blob: packed, Tar: plain}}},
			func(_ []byte, _ *Config, all blobs) {
				for name, p := range all {
					if len(p) < len(packed) {
						all[name] = p[:len(p)-5000]
					}
				}
			}, chunk.ErrCorrupt},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			img, err := rafstest.Build(testTree(), tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			all := blobsOf(img)
			cfg := all.config()
			if tt.edit != nil {
				tt.edit(img.Bootstrap, &cfg, all)
			}
			if _, err := Open(t.Context(), img.Bootstrap, cfg); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}
