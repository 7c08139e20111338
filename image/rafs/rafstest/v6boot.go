package rafstest

import (
	"bytes"
	"cmp"
	"slices"
)

// bootstrap6 encodes the tree in version 6.
func (b *builder) bootstrap6() ([]byte, error) {
	l := b.newLayout6()
	l.root = l.place(b.root, nil)

	p := make([]byte, align(dev6+128*len(b.blobs), 4096))
	ext := p[ext6:]
	le.PutUint64(ext[8:], uint64(len(p)))
	le.PutUint32(ext[16:], uint32(256*len(b.blobs)))
	for i, o := range b.blobs {
		copy(p[dev6+128*i:], o.id)
		le.PutUint32(p[dev6+128*i+64:], uint32(o.usize)/uint32(l.blk))
		p = append(p, o.row6(i)...)
	}
	if len(b.Prefetch) > 0 {
		le.PutUint64(p[ext6+40:], uint64(len(p)))
		le.PutUint32(p[ext6+48:], uint32(4*len(b.Prefetch)))
		for _, path := range b.Prefetch {
			n, err := b.root.find(path)
			if err != nil {
				return nil, err
			}
			p = le.AppendUint32(p, uint32(l.first[n].nid))
		}
	}
	p = pad(p, 4096)
	meta := len(p)
	p = l.appendInodes(p)
	p = l.appendRecords(p)
	l.superblock(p, meta)
	return p, nil
}

// appendInodes appends the inodes, and behind them the blocks of their data.
func (l *layout6) appendInodes(p []byte) []byte {
	meta := len(p)
	p = pad(append(p, make([]byte, l.next)...), 4096)
	for _, in := range l.all {
		data := l.data(in)
		whole := data[:len(data)-l.tailSize(in)]
		if len(whole) == 0 {
			continue
		}
		in.blocks = len(p) / l.blk
		p = pad(append(p, whole...), l.blk)
	}
	for _, in := range l.all {
		l.write(p[meta:], in)
	}
	return pad(p, 4096)
}

// appendRecords appends the table of chunks, which is sorted by digest.
func (l *layout6) appendRecords(p []byte) []byte {
	var all []*piece
	for _, o := range l.blobs {
		all = append(all, o.pieces...)
	}
	if l.InlineDigests || l.tarfs() {
		all = nil
	}
	slices.SortStableFunc(all, func(x, y *piece) int {
		return cmp.Or(bytes.Compare(x.digest[:], y.digest[:]), cmp.Compare(x.blob, y.blob))
	})
	le.PutUint64(p[ext6+24:], uint64(len(p)))
	le.PutUint64(p[ext6+32:], uint64(80*len(all)))
	for _, c := range all {
		p = appendChunk(p, c, 0)
	}
	return pad(p, 4096)
}

// superblock fills in what is not known before the end.
func (l *layout6) superblock(p []byte, meta int) {
	sb, ext := p[sb6:], p[ext6:]
	le.PutUint32(sb, 0xe0f5e1e2)
	le.PutUint32(sb[8:], 0x4000_0000)
	sb[12] = byte(l.bits)
	le.PutUint16(sb[14:], uint16(l.root.nid))
	le.PutUint64(sb[16:], uint64(l.inodes))
	le.PutUint32(sb[40:], uint32(meta/l.blk))
	le.PutUint32(sb[80:], 4|8)
	le.PutUint16(sb[86:], uint16(len(l.blobs)))
	le.PutUint16(sb[88:], 11)
	flags := l.flags()
	if l.InlineDigests {
		flags |= 0x100
	}
	if l.tarfs() {
		flags |= 0x200
	}
	le.PutUint64(ext, flags)
	le.PutUint32(ext[20:], uint32(l.ChunkSize))
}

// row6 returns the blob's row in the table of blobs.
func (o *blob) row6(index int) []byte {
	p := make([]byte, 256)
	copy(p, o.id)
	le.PutUint32(p[64:], uint32(index))
	le.PutUint32(p[68:], uint32(o.b.ChunkSize))
	le.PutUint32(p[72:], uint32(len(o.pieces)))
	le.PutUint32(p[76:], uint32(o.compressor()))
	if !o.b.BLAKE3 {
		le.PutUint32(p[80:], 1)
	}
	le.PutUint32(p[84:], o.features)
	le.PutUint64(p[88:], uint64(len(o.data)))
	le.PutUint64(p[96:], uint64(o.usize))
	le.PutUint32(p[104:], uint32(o.tocSize))
	if o.infoCSize != o.infoSize {
		le.PutUint32(p[108:], uint32(o.b.InfoCompressor))
	}
	le.PutUint64(p[112:], uint64(o.infoOff))
	le.PutUint64(p[120:], uint64(o.infoCSize))
	le.PutUint64(p[128:], uint64(o.infoSize))
	copy(p[136:], o.tocDigest[:])
	copy(p[168:], o.metaDigest[:])
	le.PutUint64(p[200:], uint64(o.metaSize))
	return p
}

// compressor returns that of the blob's chunks.
func (o *blob) compressor() Compressor {
	switch {
	case o.layer == nil:
		return o.b.Compressor
	case o.layer.Kind == ZRan:
		return Gzip
	}
	return None
}
