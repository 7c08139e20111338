package toc

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sort"
	"syscall"

	"graze/chunk"
	"graze/image"
)

// An Index is what a table of contents says: the entries of a layer in the order of
// the table, and its chunks in the order of the layer. It is immutable.
type Index struct {
	Table    image.Table
	Prefetch int // see image.Layer

	rows  []row
	text  string
	order []uint32 // number in Table.Chunks by file order; nil if they are the same
	holes []hole
}

// str returns a text of the builder.
func (b *builder) str(t text) string { return b.text.String()[t.off:][:t.n] }

// finish checks what concerns more than one entry and returns the index.
func (b *builder) finish() (*Index, error) {
	if err := b.checkLinks(); err != nil {
		return nil, corrupt(err)
	}
	b.names = nameTable{}
	x := &Index{rows: slices.Clip(b.rows), text: b.text.String(), holes: slices.Clip(b.holes)}
	x.order = b.sortChunks()
	spans, err := b.spans(x.order)
	if err != nil {
		return nil, corrupt(err)
	}
	x.Table = image.Table{Blobs: []chunk.Blob{b.cfg.Blob}, Spans: spans, Chunks: slices.Clip(b.chunks)}
	if b.prefetch && !b.noPrefetch {
		x.Prefetch = sort.Search(len(spans), func(i int) bool {
			// A landmark within a member belongs to what stands before it there.
			off := spans[i].Off
			return off > b.landmark.off || off == b.landmark.off && b.landmark.inner == 0
		})
	}
	return x, nil
}

// checkLinks fails on hard links that end in a directory or in each other. A
// target that the layer doesn't have is for the merge to judge; so is all where
// names may repeat, as it depends on the order there.
func (b *builder) checkLinks() error {
	if b.cfg.Archive {
		return nil
	}
	const (
		open = 1 + iota // on the path that is being followed
		good            // ends in a file, or outside of the layer
	)
	state := make([]uint8, len(b.rows))
	var path []uint32
	for i := range b.rows {
		path = path[:0]
		for n := uint32(i); b.rows[n].mode == 0 && state[n] != good; {
			name := b.str(b.rows[n].name)
			if state[n] == open {
				return fmt.Errorf("entry %.200q: hard links in a circle", name)
			}
			state[n] = open
			path = append(path, n)
			target, ok := b.names.find(cleanName(b.str(b.rows[n].link)))
			if !ok {
				break
			}
			if b.rows[target].mode&syscall.S_IFMT == syscall.S_IFDIR {
				return fmt.Errorf("entry %.200q: hard link to a directory", name)
			}
			n = target
		}
		for _, n := range path {
			state[n] = good
		}
	}
	return nil
}

// sortChunks brings the chunks into the order in which they stand in the layer.
// It returns the new number of each by its old one, or nil if writers have kept
// that order, as they do.
func (b *builder) sortChunks() []uint32 {
	less := func(i, j uint32) int {
		if c := cmp.Compare(b.offs[i], b.offs[j]); c != 0 {
			return c
		}
		return cmp.Compare(b.chunks[i].At, b.chunks[j].At)
	}
	sorted := true
	for i := 1; i < len(b.offs) && sorted; i++ {
		sorted = less(uint32(i-1), uint32(i)) <= 0
	}
	if sorted {
		return nil
	}
	perm := make([]uint32, len(b.chunks))
	for i := range perm {
		perm[i] = uint32(i)
	}
	slices.SortStableFunc(perm, less)
	order := make([]uint32, len(perm))
	chunks := make([]image.ChunkRow, len(perm))
	offs := make([]int64, len(perm))
	for to, from := range perm {
		order[from] = uint32(to)
		chunks[to] = b.chunks[from]
		offs[to] = b.offs[from]
	}
	b.chunks, b.offs = chunks, offs
	return order
}

// maxRatio bounds how many bytes one encoded byte decodes to. In deflate, two bits
// can stand for 258 bytes; in Zstandard, a block of four bytes for 128 KiB.
func maxRatio(c chunk.Codec) int64 {
	if c == chunk.Zstd {
		return 128 << 10 / 4
	}
	return 258 * 4
}

// spans groups the sorted chunks by member. A member's encoded bytes end
// where the next one that the TOC knows of starts.
func (b *builder) spans(order []uint32) ([]image.SpanRow, error) {
	ends := append(slices.Clone(b.hidden), b.cfg.End)
	slices.Sort(ends)
	n := 0
	for i := range b.offs {
		if i == 0 || b.offs[i] != b.offs[i-1] {
			n++
		}
	}
	spans := make([]image.SpanRow, 0, n)
	for i := 0; i < len(b.offs); {
		off := b.offs[i]
		first, decoded := i, int64(0)
		for ; i < len(b.offs) && b.offs[i] == off; i++ {
			c := &b.chunks[i]
			if c.At < decoded {
				return nil, fmt.Errorf("entry %.200q: chunk at %d of the member at %d overlaps another", b.owner(i, order), c.At, off)
			}
			c.Span = uint32(len(spans))
			decoded = c.At + int64(c.Size)
		}
		at, _ := slices.BinarySearch(ends, off+1)
		end := ends[at]
		if i < len(b.offs) {
			end = min(end, b.offs[i])
		}
		if decoded > math.MaxInt64/2 || decoded/maxRatio(b.cfg.Codec) > end-off {
			return nil, fmt.Errorf("entry %.200q: chunk ends at %d of a member of %d bytes at %d", b.owner(i-1, order), decoded, end-off, off)
		}
		spans = append(spans, image.SpanRow{
			Codec: b.cfg.Codec,
			First: uint32(first),
			Count: uint32(i - first),
			Off:   off,
			Len:   end - off,
		})
	}
	return spans, nil
}

// owner returns the name of the entry that sorted chunk n belongs to.
func (b *builder) owner(n int, order []uint32) string {
	if order != nil {
		n = slices.Index(order, uint32(n))
	}
	for i := range b.rows {
		r := &b.rows[i]
		if r.mode&syscall.S_IFMT == syscall.S_IFREG && int(r.first) <= n && n < int(r.first)+int(r.more) {
			return b.str(r.name)
		}
	}
	return ""
}

// Entries yields the entries, as image.Layer.Entries does.
func (x *Index) Entries(yield func(*image.Entry, error) bool) {
	var e image.Entry
	for i := range x.rows {
		x.fill(&e, &x.rows[i])
		if !yield(&e, nil) {
			return
		}
	}
}

// fill makes e the entry of r. It reuses the slices of e.
func (x *Index) fill(e *image.Entry, r *row) {
	*e = image.Entry{
		Name:    x.str(r.name),
		Link:    x.str(r.link),
		Xattrs:  e.Xattrs[:0],
		Extents: e.Extents[:0],
	}
	if r.mode == 0 {
		e.Hardlink = true
		return
	}
	e.Mode, e.UID, e.GID = r.mode, r.uid, r.gid
	e.MTime = image.Time{Sec: r.sec, Nsec: r.nsec}
	if r.xattrs != 0 {
		e.Xattrs = x.xattrs(e.Xattrs, r.xattrs)
	}
	switch r.mode & syscall.S_IFMT {
	case syscall.S_IFCHR, syscall.S_IFBLK:
		e.Major, e.Minor = r.first, r.more
	case syscall.S_IFREG:
		e.Size = r.size
		e.Extents = x.extents(e.Extents, r)
	}
}

func (x *Index) str(t text) string { return x.text[t.off:][:t.n] }

// xattrs appends the attributes that stand at off to list.
func (x *Index) xattrs(list []image.Xattr, off uint32) []image.Xattr {
	rest := x.text[off:]
	number := func() uint32 {
		var le [4]byte
		copy(le[:], rest)
		rest = rest[len(le):]
		return binary.LittleEndian.Uint32(le[:])
	}
	str := func() string {
		n := number()
		s := rest[:n]
		rest = rest[n:]
		return s
	}
	for range number() {
		name := str()
		list = append(list, image.Xattr{Name: name, Value: []byte(str())})
	}
	return list
}

// extents appends those of the file r to list.
func (x *Index) extents(list []chunk.Extent, r *row) []chunk.Extent {
	var off int64
	at := sort.Search(len(x.holes), func(i int) bool { return x.holes[i].chunk >= r.first })
	for n := r.first; n < r.first+r.more; n++ {
		if at < len(x.holes) && x.holes[at].chunk == n {
			off += x.holes[at].size
			at++
		}
		c := n
		if x.order != nil {
			c = x.order[n]
		}
		size := int64(x.Table.Chunks[c].Size)
		list = append(list, chunk.Extent{Off: off, Len: size, Chunk: c})
		off += size
	}
	return list
}
