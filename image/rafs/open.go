package rafs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"

	"graze/chunk"
	"graze/image"
)

// A Config says what Open needs to know about an image.
type Config struct {
	// Digest and Size are those of the layer that has the bootstrap, as the
	// manifest names it. Required.
	Digest chunk.Blob
	Size   int64

	// Metas are the chunk information of blobs that came along with the bootstrap,
	// as Unpack returns them.
	Metas map[chunk.Blob][]byte

	// Blob returns a reader of one of the image's blobs. It is asked for those
	// only whose chunk information is needed, and is neither in the bootstrap nor
	// in Metas. The size may be unknown, a negative number, if the blob is read
	// from its beginning only. Required.
	Blob func(blob chunk.Blob) image.Ranger

	// ReadAll allows to read all of the blobs of an image that has no digests of
	// chunks, to make them. Otherwise such an image is ErrNoDigest.
	ReadAll bool

	// Keep gets the chunks that are seen meanwhile. May be nil.
	Keep func(chunk.Verified)
}

// Open reads a bootstrap and returns the index of the image: its only layer.
// Errors wrap chunk.ErrCorrupt, one of this package's errors, or the error of a
// reader.
func Open(ctx context.Context, bootstrap []byte, cfg Config) (*image.Layer, error) {
	l, err := open(ctx, bootstrap, cfg)
	if err != nil {
		return nil, &chunk.Error{Op: "open RAFS bootstrap", What: string(cfg.Digest), Err: err}
	}
	return l, nil
}

func open(ctx context.Context, bootstrap []byte, cfg Config) (*image.Layer, error) {
	if cfg.Digest == "" || cfg.Blob == nil {
		return nil, errors.New("no digest or no blobs given")
	}
	b, err := Parse(bootstrap)
	if err != nil {
		return nil, err
	}
	l := &locator{
		b:       b,
		metas:   make([]*meta, len(b.blobs)),
		digests: make([][]byte, len(b.blobs)),
		sums:    make([]tarSums, len(b.blobs)),
	}
	n := 0
	for i := range b.blobs {
		n += int(min(uint64(b.blobs[i].chunkCount), uint64(b.maxChunks)))
	}
	n = min(n, b.maxChunks, 1<<20) // what it claims may not be true
	l.numbers = make(map[placeKey]uint32, n)
	l.chunks = make([]located, 0, n)
	if err := l.load(ctx, &cfg); err != nil {
		return nil, err
	}
	// Every chunk gets its number, and all entries are checked.
	for _, err := range b.entries(l.number) {
		if err != nil {
			return nil, err
		}
	}
	if err := l.rankPrefetched(); err != nil {
		return nil, err
	}
	l.sort()
	table, prefetch, err := l.build()
	if err != nil {
		return nil, err
	}
	l.chunks = nil // from now on numbers alone are asked for
	return &image.Layer{
		Digest:   cfg.Digest,
		Size:     cfg.Size,
		Format:   b.Format(),
		Table:    table,
		Prefetch: prefetch,
		Entries:  b.entries(l.known),
	}, nil
}

// known is number for chunks that were asked for before.
func (l *locator) known(c *fileChunk) (uint32, error) {
	one, err := l.locate(c)
	return l.numbers[one.key()], err
}

// rankPrefetched ranks the chunks that the image's builder wants to have at the
// start, in the order in which he names their files and folders. The root alone
// is what builders write who were told nothing, and is no wish.
func (l *locator) rankPrefetched() error {
	wanted := l.b.prefetch
	if len(wanted) == 1 && wanted[0] == l.b.tree.root() {
		return nil
	}
	var numbers []uint32
	w := newWalk(l.b, func(_ string, in *inode, _ string) error {
		for i := range in.chunks {
			c, err := l.b.tree.chunk(in, i)
			if err != nil {
				return err
			}
			n, err := l.number(&c)
			if err != nil {
				return err
			}
			numbers = append(numbers, n)
		}
		return nil
	})
	seen := make(map[uint64]bool)
	for _, num := range wanted {
		if seen[num] {
			continue
		}
		seen[num] = true
		if err := w.from(num); err != nil {
			return fmt.Errorf("prefetched inode %d: %w", num, err)
		}
	}
	l.rank(numbers)
	return nil
}

// load gets what the bootstrap itself doesn't say about the chunks in use.
func (l *locator) load(ctx context.Context, cfg *Config) error {
	used := make([]usage, len(l.b.blobs))
	err := l.b.walk(func(path string, in *inode, _ string) error {
		if in.mode&syscall.S_IFMT != syscall.S_IFREG {
			return nil
		}
		for i := range in.chunks {
			c, err := l.b.tree.chunk(in, i)
			if err == nil && uint64(c.blob) >= uint64(len(used)) {
				err = fmt.Errorf("%w: chunk in blob %d of %d", chunk.ErrCorrupt, c.blob, len(used))
			}
			if err != nil {
				return fmt.Errorf("%.200q: %w", path, err)
			}
			used[c.blob].add(l.b, &c)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for n := range used {
		if err := l.loadBlob(ctx, cfg, uint32(n), &used[n]); err != nil {
			return fmt.Errorf("blob %d (%.80s): %w", n, l.b.blobs[n].id, err)
		}
	}
	return nil
}

// A usage is what an image needs of a blob.
type usage struct {
	any  bool
	bare bool    // a chunk has no record
	sums tarSums // the chunks that have no digest
}

func (u *usage) add(b *Bootstrap, c *fileChunk) {
	u.any = true
	if b.blobs[c.blob].features&featureTarfs != 0 {
		if u.sums == nil {
			u.sums = make(tarSums)
		}
		u.sums[tarSpan{c.start, c.size}] = chunk.ID{}
		return
	}
	u.bare = u.bare || b.tree.record(c) == nil
}

func (l *locator) loadBlob(ctx context.Context, cfg *Config, n uint32, u *usage) error {
	b := &l.b.blobs[n]
	name, err := l.b.ref(n)
	switch {
	case !u.any:
		return nil
	case err != nil:
		return err
	case u.sums != nil && !cfg.ReadAll:
		return fmt.Errorf("%w: it is an unpacked layer", ErrNoDigest)
	case u.sums != nil:
		l.sums[n] = u.sums
		return u.sums.fill(ctx, cfg.Blob(name), b, cfg.Keep)
	case l.b.version == 6 && (u.bare || b.features&(featureBatch|featureZRan) != 0):
		return l.loadMeta(ctx, cfg, n, u.bare)
	}
	return nil
}

// loadMeta gets the chunk information of a blob, and the digests if the bootstrap
// lacks them.
func (l *locator) loadMeta(ctx context.Context, cfg *Config, n uint32, needDigests bool) error {
	b := &l.b.blobs[n]
	name, err := l.b.ref(n)
	if err != nil {
		return err
	}
	metaName, err := l.b.metaRef(n)
	if err != nil {
		return err
	}
	var toc map[string]tocEntry
	if needDigests || b.tocDigest != [chunk.SumSize]byte{} && cfg.Metas[name] == nil {
		if toc, err = readTOC(ctx, cfg.Blob(metaName), b); err != nil {
			return err
		}
	}
	if needDigests {
		e, ok := toc[entryDigest]
		if !ok {
			return fmt.Errorf("%w: its chunks", ErrNoDigest)
		}
		if l.digests[n], err = e.read(ctx, cfg.Blob(metaName)); err != nil {
			return fmt.Errorf("digests: %w", err)
		}
	}
	raw, header, err := readMeta(ctx, cfg, b, name, metaName, toc)
	if err != nil {
		return fmt.Errorf("chunk information: %w", err)
	}
	l.metas[n], err = parseMeta(raw, header, b)
	return err
}

// readMeta returns the decoded chunk information of a blob and the header behind
// it: what came along with the bootstrap, or what is in a blob. The latter is
// compared with the digest in the blob's table of contents, if there is one. If
// not, it can only lead to bytes that don't have their digests.
func readMeta(ctx context.Context, cfg *Config, b *blob, name, metaName chunk.Blob, toc map[string]tocEntry) (raw, header []byte, err error) {
	if p := cmp.Or(cfg.key(name), cfg.key(metaName)); p != "" {
		all := cfg.Metas[p]
		if len(all) < infoHeaderSize || b.info.usize > uint64(len(all)-infoHeaderSize) {
			return nil, nil, fmt.Errorf("%w: %d bytes beside the bootstrap", chunk.ErrCorrupt, len(all))
		}
		return all[:b.info.usize], all[len(all)-infoHeaderSize:], nil
	}
	r := cfg.Blob(metaName)
	if e, ok := toc[entryMeta]; ok {
		if raw, err = e.read(ctx, r); err != nil {
			return nil, nil, err
		}
		header, err = readRange64(ctx, r, e.off+e.csize, infoHeaderSize)
		return raw, header, err
	}
	enc, err := readRange64(ctx, r, b.info.off, b.info.csize+infoHeaderSize)
	if err != nil {
		return nil, nil, err
	}
	if raw, err = b.info.compress.unpack(enc[:b.info.csize], b.info.usize); err != nil {
		return nil, nil, err
	}
	return raw, enc[b.info.csize:], nil
}

// key returns name if the blob's chunk information came with the bootstrap.
func (c *Config) key(name chunk.Blob) chunk.Blob {
	if c.Metas[name] == nil {
		return ""
	}
	return name
}
