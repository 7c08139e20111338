package rafs

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"graze/chunk"
	"graze/image"
)

const (
	// maxParts bounds the chunks of one span, so that a request can carry it.
	maxParts = 256
	// windowGroup is how many bytes of windows make a chunk, at least.
	windowGroup = 512 << 10
	// noRank is the rank of chunks that nobody wants at the start.
	noRank = math.MaxUint32
)

// A place is where a chunk's bytes are: in a stretch of a blob, and in what that
// decodes to.
type place struct {
	blob     uint32
	context  uint32 // from 1 on: the batch or context that it is decoded from; 0: none
	codec    chunk.Codec
	bits     uint8
	off, len uint64 // of the encoded bytes
	start    uint64 // of the decoded bytes, in those of the whole blob
	at       uint64 // of the chunk, in the decoded bytes
	dictOff  uint64
	dictSize uint32
}

// A placeKey tells places apart.
type placeKey struct {
	blob, context uint32
	at            uint64 // in the decoded context; without one, in the blob
}

func (p *place) key() placeKey {
	if p.context == 0 {
		return placeKey{p.blob, 0, p.off}
	}
	return placeKey{p.blob, p.context, p.at}
}

// A located chunk is one of the table that is being made.
type located struct {
	chunk.Ref
	place
	rank uint32 // its position among those that are wanted at the start
}

// A locator finds the chunks of files, and gives each a number.
type locator struct {
	b       *Bootstrap
	metas   []*meta   // by blob; nil where the bootstrap says all
	digests [][]byte  // by blob; nil where the bootstrap has them
	sums    []tarSums // by blob; of those that have no digests at all

	chunks  []located
	numbers map[placeKey]uint32
}

// number returns the number of a chunk of a file. Those that it was not asked
// for before come at the end.
func (l *locator) number(c *fileChunk) (uint32, error) {
	one, err := l.locate(c)
	if err != nil {
		return 0, err
	}
	key := one.key()
	n, ok := l.numbers[key]
	if !ok {
		n = uint32(len(l.chunks))
		l.numbers[key] = n
		l.chunks = append(l.chunks, one)
		return n, nil
	}
	if have := &l.chunks[n]; have.Ref != one.Ref || have.place != one.place {
		return 0, fmt.Errorf("%w: two chunks at %d of blob %d", chunk.ErrCorrupt, one.off, one.blob)
	}
	return n, nil
}

// locate finds out the digest and the place of a chunk.
func (l *locator) locate(c *fileChunk) (one located, err error) {
	if uint64(c.blob) >= uint64(len(l.b.blobs)) {
		return one, fmt.Errorf("%w: chunk in blob %d of %d", chunk.ErrCorrupt, c.blob, len(l.b.blobs))
	}
	blob := &l.b.blobs[c.blob]
	one.Size, one.rank = int32(c.size), noRank
	if c.size == 0 || c.size > chunk.MaxSize {
		return one, fmt.Errorf("%w: chunk of %d bytes", chunk.ErrCorrupt, c.size)
	}
	if blob.features&featureTarfs != 0 {
		one.place = place{blob: c.blob, codec: chunk.Raw, off: c.start, len: uint64(c.size)}
		one.ID, err = l.sums[c.blob].id(c.start, c.size)
		return one, err
	}
	row := l.b.tree.record(c)
	if one.ID, err = l.id(blob, c, row); err != nil {
		return one, err
	}
	if m := l.metas[c.blob]; m != nil {
		one.place, err = l.fromMeta(blob, m, c)
	} else if row != nil {
		r := decodeRecord(row)
		one.place, err = fromRecord(blob, c, &r)
	} else {
		err = fmt.Errorf("%w: nothing says where chunk %d of blob %d is", chunk.ErrCorrupt, c.index, c.blob)
	}
	return one, err
}

// id returns the name of a chunk, whose record begins with it.
func (l *locator) id(b *blob, c *fileChunk, row []byte) (chunk.ID, error) {
	var sum [chunk.SumSize]byte
	if row != nil {
		sum = [chunk.SumSize]byte(row)
	} else if digests := l.digests[c.blob]; digests != nil {
		p, err := cut(digests, uint64(c.index)*chunk.SumSize, chunk.SumSize)
		if err != nil {
			return chunk.ID{}, fmt.Errorf("digest of chunk %d: %w", c.index, err)
		}
		sum = [chunk.SumSize]byte(p)
	}
	if sum == [chunk.SumSize]byte{} {
		return chunk.ID{}, fmt.Errorf("%w: chunk %d of blob %d", ErrNoDigest, c.index, c.blob)
	}
	return chunk.NewID(b.digest, sum)
}

// fromRecord returns the place that a chunk's record says.
func fromRecord(b *blob, c *fileChunk, r *chunkRecord) (place, error) {
	if r.flags&chunkEncrypted != 0 {
		return place{}, ErrEncrypted
	}
	if r.flags&chunkBatch != 0 {
		return place{}, fmt.Errorf("%w: chunk %d is in a batch, its blob has none", chunk.ErrCorrupt, c.index)
	}
	return single(b, c, r.usize, r.csize, r.coff, r.flags&chunkCompressed != 0)
}

// single returns the place of a chunk that is encoded by itself.
func single(b *blob, c *fileChunk, usize, csize uint32, coff uint64, compressed bool) (place, error) {
	p := place{blob: c.blob, codec: chunk.Raw, off: coff, len: uint64(csize)}
	if compressed {
		p.codec = b.compress.codec()
	}
	if usize != c.size || csize == 0 || p.codec == chunk.Raw && csize != usize {
		return p, fmt.Errorf("%w: chunk %d of blob %d has %d bytes, encoded to %d as %s; the file has %d there",
			chunk.ErrCorrupt, c.index, c.blob, usize, csize, p.codec, c.size)
	}
	return p, nil
}

// fromMeta returns the place that the meta of a blob says.
func (l *locator) fromMeta(b *blob, m *meta, c *fileChunk) (place, error) {
	info, err := m.info(c.index)
	if err != nil {
		return place{}, err
	}
	switch {
	case info.flags&infoEncrypted != 0:
		return place{}, ErrEncrypted
	case info.usize != c.size:
		return place{}, fmt.Errorf("%w: chunk %d of blob %d has %d bytes, the file has %d there", chunk.ErrCorrupt, c.index, c.blob, info.usize, c.size)
	case info.flags&infoBatch != 0:
		return fromBatch(b, m, c, &info)
	case info.flags&infoZRan != 0:
		return fromZRan(m, c, &info)
	}
	return single(b, c, info.usize, info.csize, info.coff, info.flags&infoCompressed != 0)
}

func fromBatch(b *blob, m *meta, c *fileChunk, info *chunkInfo) (place, error) {
	csize, usize, err := m.batch(info.context)
	if err != nil {
		return place{}, err
	}
	if uint64(info.at)+uint64(info.usize) > uint64(usize) || csize == 0 || csize > usize {
		return place{}, fmt.Errorf("%w: chunk at %d of a batch of %d bytes, encoded to %d", chunk.ErrCorrupt, info.at, usize, csize)
	}
	p := place{blob: c.blob, context: info.context + 1, codec: chunk.Raw, off: info.coff, len: uint64(csize), at: uint64(info.at)}
	if csize != usize {
		p.codec = b.compress.codec()
	}
	return p, nil
}

func fromZRan(m *meta, c *fileChunk, info *chunkInfo) (place, error) {
	z, err := m.zran(info.context)
	if err != nil {
		return place{}, err
	}
	if uint64(info.at)+uint64(info.usize) > uint64(z.outLen) || z.inLen == 0 {
		return place{}, fmt.Errorf("%w: chunk at %d of a context of %d bytes", chunk.ErrCorrupt, info.at, z.outLen)
	}
	p := place{
		blob: c.blob, context: info.context + 1, codec: chunk.Deflate,
		off: z.inOff, len: uint64(z.inLen), start: z.outOff, at: uint64(info.at),
		dictOff: z.dictOff, dictSize: z.dictSize,
	}
	if z.bits > 0 { // the block begins within the byte before
		p.off, p.len, p.bits = p.off-1, p.len+1, 8-z.bits
	}
	return p, nil
}

// rank gives those chunks that are wanted at the start their ranks.
func (l *locator) rank(numbers []uint32) {
	next := uint32(0)
	for _, n := range numbers {
		if l.chunks[n].rank == noRank {
			l.chunks[n].rank = next
			next++
		}
	}
}

// sort brings the chunks into the order of the table: first what is wanted at
// the start, then blob by blob.
func (l *locator) sort() {
	order := make([]uint32, len(l.chunks))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(i, j uint32) int {
		a, b := &l.chunks[i], &l.chunks[j]
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.blob, b.blob), cmp.Compare(a.off, b.off),
			cmp.Compare(a.context, b.context), cmp.Compare(a.at, b.at))
	})
	sorted := make([]located, len(order))
	for to, from := range order {
		sorted[to] = l.chunks[from]
		l.numbers[sorted[to].key()] = uint32(to)
	}
	l.chunks = sorted
}

// A tabler makes the table of an image of its located chunks.
type tabler struct {
	l      *locator
	table  image.Table
	blobs  map[chunk.Blob]uint32 // numbers in the table
	groups map[uint32]*windows   // by blob of the bootstrap
}

// build returns the table of the sorted chunks, and how many of its spans are
// wanted at the start.
func (l *locator) build() (t image.Table, prefetch int, err error) {
	b := tabler{l: l, blobs: make(map[chunk.Blob]uint32), groups: make(map[uint32]*windows)}
	if len(l.chunks) > image.MaxChunks {
		return t, 0, fmt.Errorf("%w: %d chunks", ErrUnsupported, len(l.chunks))
	}
	b.table.Chunks = make([]image.ChunkRow, 0, len(l.chunks))
	b.table.Spans = make([]image.SpanRow, 0, len(l.chunks))
	var end uint64 // of the last chunk in its span
	for i := range l.chunks {
		c := &l.chunks[i]
		if c.off > math.MaxInt64/4 || c.len > math.MaxInt64/4 || c.start > math.MaxInt64/4 {
			return t, 0, fmt.Errorf("%w: bytes %d+%d of a blob", chunk.ErrCorrupt, c.off, c.len)
		}
		if i == 0 || !l.chunks[i-1].joins(c) || c.at < end || b.last().Count == maxParts {
			if err := b.span(c, uint32(i)); err != nil {
				return t, 0, err
			}
		}
		span := b.last()
		span.Count++
		end = c.at + uint64(c.Size)
		b.table.Chunks = append(b.table.Chunks, image.ChunkRow{Ref: c.Ref, Span: uint32(len(b.table.Spans) - 1), At: int64(c.at)})
		if c.rank != noRank {
			prefetch = len(b.table.Spans)
		}
	}
	return b.table, prefetch, b.addWindows()
}

// joins reports whether two chunks are decoded from the same stretch, and are
// wanted at the same time.
func (c *located) joins(d *located) bool {
	return c.context != 0 && c.context == d.context && c.blob == d.blob && c.off == d.off &&
		(c.rank == noRank) == (d.rank == noRank)
}

func (b *tabler) last() *image.SpanRow { return &b.table.Spans[len(b.table.Spans)-1] }

// span begins a span with chunk number first.
func (b *tabler) span(c *located, first uint32) error {
	name, err := b.l.b.ref(c.blob)
	if err != nil {
		return err
	}
	b.table.Spans = append(b.table.Spans, image.SpanRow{
		Blob: b.blob(name), Codec: c.codec, Bits: c.bits, First: first,
		Off: int64(c.off), Len: int64(c.len), Start: int64(c.start),
	})
	if c.dictSize == 0 {
		return nil
	}
	w := b.groups[c.blob]
	if w == nil {
		w = &windows{}
		b.groups[c.blob] = w
	}
	w.add(uint32(len(b.table.Spans)-1), c.dictOff, c.dictSize)
	return nil
}

// blob returns the number of a blob in the table.
func (b *tabler) blob(name chunk.Blob) uint32 {
	n, ok := b.blobs[name]
	if !ok {
		n = uint32(len(b.table.Blobs))
		b.blobs[name] = n
		b.table.Blobs = append(b.table.Blobs, name)
	}
	return n
}
