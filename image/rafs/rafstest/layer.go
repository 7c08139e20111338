package rafstest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"io"
	"sort"

	"graze/image/inflate"
)

// contextGap is how many decoded bytes lie between two contexts, about. Builders
// take more; tests want several in a small layer.
const contextGap = 200 << 10

// A zranContext is a place in a gzip stream from which it can be decoded.
type zranContext struct {
	inOff, outOff int64
	inLen, outLen int64
	dict          []byte
	ctxByte, bits uint8
}

// newLayerBlob returns the blob for a layer that is referred to.
func newLayerBlob(b *builder, l *Layer) (*blob, error) {
	o := &blob{b: b, layer: l, files: make(map[[32]byte]int64), taken: make(map[int64]*piece)}
	src := bytes.NewReader(l.Tar)
	for tr := tar.NewReader(src); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		off := int64(len(l.Tar)) - int64(src.Len())
		data, err := io.ReadAll(tr)
		if err != nil {
			return nil, err
		}
		// Of sparse files, what is read is not what lies there.
		if end := off + int64(len(data)); h.Typeflag == tar.TypeReg && end <= int64(len(l.Tar)) && bytes.Equal(data, l.Tar[off:end]) {
			o.files[sha256.Sum256(data)] = off
		}
	}
	switch l.Kind {
	case Tarfs:
		o.usize = int64(len(l.Tar))
	case ZRan:
		o.features |= featureZRan
		return o, o.findContexts()
	}
	return o, nil
}

// refer returns the chunk at an offset of the layer's archive.
func (o *blob) refer(off int64, data []byte) *piece {
	if p := o.taken[off]; p != nil {
		return p
	}
	p := &piece{
		digest: o.b.sum(data), index: len(o.pieces), data: data, usize: len(data),
		uoff: off, coff: off, csize: len(data), context: -1,
	}
	if o.layer.Kind != Tarfs {
		p.uoff = o.usize
		o.usize += int64(len(data)+block-1) &^ (block - 1)
	}
	if o.layer.Kind == ZRan {
		o.addToContext(p, off)
	}
	o.taken[off] = p
	o.pieces = append(o.pieces, p)
	return p
}

// addToContext finds the last context that begins before a chunk, and extends it
// to the chunk's end.
func (o *blob) addToContext(p *piece, off int64) {
	n := 0
	for n+1 < len(o.zran) && o.zran[n+1].outOff <= off {
		n++
	}
	z := &o.zran[n]
	p.context, p.at = n, int(off-z.outOff)
	p.coff, p.compressed = z.inOff, true
	end := off + int64(p.usize)
	z.outLen = max(z.outLen, end-z.outOff)
	in := o.encodedEnd(end)
	p.csize = int(in - z.inOff)
	z.inLen = max(z.inLen, in-z.inOff)
}

// encodedEnd returns how many bytes of the layer are enough for n decoded ones.
func (o *blob) encodedEnd(n int64) int64 {
	i := sort.Search(len(o.progress), func(i int) bool { return o.progress[i].decoded >= n })
	if i == len(o.progress) {
		return int64(len(o.layer.Blob))
	}
	return o.progress[i].encoded
}

// A progress says how far a layer was decoded.
type progress struct{ decoded, encoded int64 }

// findContexts decodes a layer, and makes contexts of some of the blocks.
func (o *blob) findContexts() error {
	f := &contextFinder{o: o, gz: o.layer.Blob}
	f.in.Reset(bytes.NewReader(o.layer.Blob), 0)
	f.z.Deflate().Observe(f)
	for {
		if err := f.z.Next(&f.in); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		// The first block of a member refers to nothing before it.
		f.add(zranContext{inOff: f.in.Offset(), outOff: f.z.Offset()})
		if _, err := io.Copy(io.Discard, &f.z); err != nil {
			return err
		}
	}
}

// A contextFinder is told where blocks begin.
type contextFinder struct {
	o  *blob
	gz []byte
	in inflate.Input
	z  inflate.Gzip
}

// Decoded implements inflate.Observer.
func (f *contextFinder) Decoded([]byte) {
	z := f.z.Deflate()
	at, pos := z.Decoded(), z.BitOffset()
	f.o.progress = append(f.o.progress, progress{at, (pos + 7) / 8})
	if !z.Block() {
		return
	}
	c := zranContext{inOff: (pos + 7) / 8, outOff: at, dict: bytes.Clone(z.Window())}
	if over := pos % 8; over != 0 {
		c.ctxByte, c.bits = f.gz[pos/8], uint8(8-over)
	}
	f.add(c)
}

// add appends a context, unless it is too near to the last.
func (f *contextFinder) add(c zranContext) {
	if n := len(f.o.zran); n > 0 && c.outOff < f.o.zran[n-1].outOff+contextGap {
		return
	}
	f.o.zran = append(f.o.zran, c)
}
