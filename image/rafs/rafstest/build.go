package rafstest

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
)

var le = binary.LittleEndian

// Options say how an image is to be encoded. The zero value, with a Version, is
// the plainest: one blob, nothing compressed, SHA-256.
type Options struct {
	Version    int        // 5 or 6
	Compressor Compressor // of chunks
	BLAKE3     bool       // digests of chunks, in place of SHA-256
	ChunkSize  int        // default: 1 MiB

	Blobs      int      // chunks go by turns into so many blobs; default 1
	Layers     []Layer  // files whose bytes are in one of them refer to it
	Prefetch   []string // paths
	NoOwners   bool     // the flag that owners are meant is not set
	CopyInodes bool     // each name of a file has an inode of its own; always so in version 5

	// Of version 6.
	Compact        bool       // short inodes where they fit
	Batch          int        // smaller chunks are encoded together, up to so many bytes
	InfoV2         bool       // long rows in the chunk information; Batch has them too
	InfoCompressor Compressor // of the chunk information
	TOC            bool       // blobs are archives with a table of contents
	InlineDigests  bool       // digests are in the blobs, and not in the bootstrap; needs TOC
	MetaBeside     bool       // the chunk information is beside the bootstrap, too
	Encrypted      bool       // the flags say that chunks are encrypted; they are not
}

// A Layer is a layer as a registry has it, that an image of version 6 refers to.
type Layer struct {
	Blob []byte // as it is in the registry
	Tar  []byte // unpacked
	Kind LayerKind
}

// A LayerKind says how a layer is referred to.
type LayerKind int

// The kinds.
const (
	ZRan   LayerKind = iota // a .tar.gz, read from contexts on
	TarRef                  // a .tar, with chunk information in another blob
	Tarfs                   // a .tar, without any; all layers must be so
)

// An Image is what Build makes.
type Image struct {
	Options    Options
	Bootstrap  []byte
	Blobs      []Blob            // with data, or with the meta of a layer
	References []string          // digests of layers that are referred to
	Metas      map[string][]byte // by blob: to be put beside the bootstrap
}

// A Blob is a blob of an image.
type Blob struct {
	Digest    string // "sha256:…"
	Data      []byte
	Reference string // the layer that it has the meta of
}

// A piece is a chunk.
type piece struct {
	digest       [32]byte
	blob, index  int
	data         []byte
	coff, uoff   int64
	csize, usize int
	compressed   bool
	context      int // -1: none
	at           int // in what the context decodes to
}

// A builder makes an image.
type builder struct {
	Options
	root   *Node
	blobs  []*blob // those of native chunks, and then one for each layer
	pieces map[[32]byte]*piece
	inodes int
	zstd   *zstd.Encoder // made on first use
}

// Build encodes the tree at root.
func Build(root *Node, o Options) (*Image, error) {
	if o.ChunkSize == 0 {
		o.ChunkSize = 1 << 20
	}
	b := &builder{Options: o, root: root, pieces: make(map[[32]byte]*piece)}
	root.reset()
	root.prepare(&b.inodes, make(map[*Node]bool))
	for range max(o.Blobs, 1) {
		b.blobs = append(b.blobs, &blob{b: b})
	}
	for i := range o.Layers {
		one, err := newLayerBlob(b, &o.Layers[i])
		if err != nil {
			return nil, err
		}
		b.blobs = append(b.blobs, one)
	}
	if err := root.eachFile(make(map[*Node]bool), b.cut); err != nil {
		return nil, err
	}
	b.dropEmpty()
	img := &Image{Options: o, Metas: make(map[string][]byte)}
	for _, one := range b.blobs {
		if err := one.finish(img); err != nil {
			return nil, err
		}
	}
	var err error
	if o.Version == 5 {
		img.Bootstrap, err = b.bootstrap5()
	} else {
		img.Bootstrap, err = b.bootstrap6()
	}
	return img, err
}

// dropEmpty leaves out blobs that no chunk is in, and numbers the others.
func (b *builder) dropEmpty() {
	var kept []*blob
	for _, one := range b.blobs {
		one.flushBatch()
		if len(one.pieces) == 0 {
			continue
		}
		for _, p := range one.pieces {
			p.blob = len(kept)
		}
		kept = append(kept, one)
	}
	b.blobs = kept
}

// cut makes the chunks of a file.
func (b *builder) cut(n *Node) error {
	layer, off := b.findLayer(n.Data)
	for at := 0; at < len(n.Data); at += b.ChunkSize {
		data := n.Data[at:min(at+b.ChunkSize, len(n.Data))]
		var p *piece
		if layer != nil {
			p = layer.refer(off+int64(at), data)
		} else if p = b.pieces[b.sum(data)]; p == nil {
			var err error
			if p, err = b.blobs[len(b.pieces)%max(b.Blobs, 1)].add(data); err != nil {
				return err
			}
			b.pieces[p.digest] = p
		}
		if p == nil {
			return fmt.Errorf("no place for a chunk of %d bytes", len(data))
		}
		n.chunks = append(n.chunks, p)
	}
	return nil
}

// findLayer returns the blob of the layer that has the bytes of a file, and where.
func (b *builder) findLayer(data []byte) (*blob, int64) {
	if len(data) == 0 {
		return nil, 0
	}
	for _, one := range b.blobs {
		if one.layer == nil {
			continue
		}
		if off, ok := one.files[sha256.Sum256(data)]; ok {
			return one, off
		}
	}
	return nil, 0
}

// sum returns the digest of a chunk.
func (b *builder) sum(p []byte) [32]byte {
	if b.BLAKE3 {
		return blake3.Sum256(p)
	}
	return sha256.Sum256(p)
}

// flags returns the flags of a superblock that both versions have.
func (b *builder) flags() uint64 {
	f := map[Compressor]uint64{None: 1, LZ4: 2, Gzip: 0x40, Zstd: 0x80}[b.Compressor] | 0x20
	if b.BLAKE3 {
		f |= 4
	} else {
		f |= 8
	}
	if !b.NoOwners {
		f |= 0x10
	}
	if b.Encrypted {
		return f | 0x0200_0000
	}
	return f | 0x0100_0000
}

func hexSum(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}

// pad appends zeros up to a multiple of n.
func pad(p []byte, n int) []byte {
	if over := len(p) % n; over != 0 {
		p = append(p, make([]byte, n-over)...)
	}
	return p
}
