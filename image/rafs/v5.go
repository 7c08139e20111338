package rafs

import (
	"bytes"
	"fmt"
	"math"
	"syscall"

	"graze/chunk"
	"graze/image"
)

// The superblock of version 5.
const (
	magic5   = 0x52414653
	version5 = 0x500
	sb5Size  = 8192

	maxSize5     = 2 << 30
	extBlob5Size = 64
	inode5Size   = 128
)

// The flags of an inode of version 5.
const (
	inodeSymlink = 1 << 0
	inodeXattr   = 1 << 2
)

// A tree5 is the tree of a bootstrap of version 5. Numbers of inodes are those of
// rows of its table, from 1 on.
type tree5 struct {
	p     []byte
	table []byte // rows of 4 bytes: offset of the inode in words
	owned bool   // the image says whose the files are
}

func parse5(p []byte) (*Bootstrap, error) {
	if v := le.Uint32(p[4:]); v != version5 {
		return nil, fmt.Errorf("%w: version %#x", ErrNotRAFS, v)
	}
	if n := le.Uint32(p[8:]); n != sb5Size || len(p)%8 != 0 || len(p) > maxSize5 {
		return nil, fmt.Errorf("%w: bootstrap of %d bytes with a superblock of %d", chunk.ErrCorrupt, len(p), n)
	}
	b := &Bootstrap{version: 5, maxChunks: len(p) / chunkRecordSize}
	if err := b.setChunkSize(le.Uint32(p[12:])); err != nil {
		return nil, err
	}
	if err := b.setFlags(le.Uint64(p[16:])); err != nil {
		return nil, err
	}
	inodes, entries := le.Uint64(p[24:]), le.Uint32(p[56:])
	table, err := cut(p, le.Uint64(p[32:]), uint64(entries)*4)
	if err != nil {
		return nil, fmt.Errorf("table of inodes: %w", err)
	}
	if inodes > uint64(entries) || entries == 0 {
		return nil, fmt.Errorf("%w: %d inodes, but a table of %d", chunk.ErrCorrupt, inodes, entries)
	}
	b.maxNames = int(entries)
	b.tree = &tree5{p: p, table: table, owned: b.flags&flagOwners != 0}
	if err := b.prefetch5(p); err != nil {
		return nil, err
	}
	return b, b.blobs5(p)
}

// prefetch5 reads the inodes that are wanted at the start. A row of 0 ends them.
func (b *Bootstrap) prefetch5(p []byte) error {
	rows, err := cut(p, le.Uint64(p[40:]), uint64(le.Uint32(p[60:]))*4)
	if err != nil {
		return fmt.Errorf("table of prefetched inodes: %w", err)
	}
	for ; len(rows) > 0 && le.Uint32(rows) != 0; rows = rows[4:] {
		b.prefetch = append(b.prefetch, uint64(le.Uint32(rows)))
	}
	return nil
}

// blobs5 reads the table of blobs and the one that extends it, which old images
// lack.
func (b *Bootstrap) blobs5(p []byte) error {
	table, err := cut(p, le.Uint64(p[48:]), uint64(le.Uint32(p[64:])))
	if err != nil {
		return fmt.Errorf("table of blobs: %w", err)
	}
	extEntries, extOff := le.Uint32(p[68:]), le.Uint64(p[72:])
	var ext []byte
	if extOff != 0 {
		if ext, err = cut(p, extOff, uint64(extEntries)*extBlob5Size); err != nil {
			return fmt.Errorf("extended table of blobs: %w", err)
		}
	}
	for len(table) > 8 {
		id, rest, _ := bytes.Cut(table[8:], []byte{0})
		table = rest
		one := blob{id: string(id), compress: b.compress, digest: b.digest}
		if len(ext) > 0 {
			one.chunkCount, one.features = le.Uint32(ext), le.Uint32(ext[4:])
			ext = ext[extBlob5Size:]
		} else if extOff != 0 {
			return fmt.Errorf("%w: extended table has %d rows, fewer than there are blobs", chunk.ErrCorrupt, extEntries)
		}
		if err := checkFeatures(one.features); err != nil {
			return err
		}
		if one.features&(featureZRan|featureBatch|featureTarfs|featureSeparate) != 0 {
			return fmt.Errorf("%w: features %#x of a blob in version 5", ErrUnsupported, one.features)
		}
		b.blobs = append(b.blobs, one)
	}
	return nil
}

func (t *tree5) root() uint64 { return 1 }

func (t *tree5) inode(num uint64) (in inode, err error) {
	if num == 0 || num > uint64(len(t.table)/4) {
		return in, fmt.Errorf("%w: inode %d of %d", chunk.ErrCorrupt, num, len(t.table)/4)
	}
	word := uint64(le.Uint32(t.table[(num-1)*4:]))
	if word <= sb5Size/8 || word >= 1<<29 {
		return in, fmt.Errorf("%w: inode %d at word %d", chunk.ErrCorrupt, num, word)
	}
	p, err := cut(t.p, word*8, inode5Size)
	if err != nil {
		return in, fmt.Errorf("inode %d: %w", num, err)
	}
	in = inode{
		num:   num,
		ino:   le.Uint64(p[40:]),
		mode:  le.Uint32(p[60:]),
		size:  int64(le.Uint64(p[64:])),
		nlink: le.Uint32(p[88:]),
		first: le.Uint32(p[92:]),
		count: le.Uint32(p[96:]),
		rdev:  le.Uint32(p[104:]),
		mtime: image.Time{Sec: int64(le.Uint64(p[112:])), Nsec: le.Uint32(p[108:])},
	}
	if t.owned {
		in.uid, in.gid = le.Uint32(p[48:]), le.Uint32(p[52:])
	}
	err = t.tailOf(&in, word*8+inode5Size, p)
	if err != nil {
		return in, fmt.Errorf("inode %d: %w", num, err)
	}
	return in, nil
}

// tailOf reads what follows the fixed part p of an inode: name, target,
// attributes and chunks.
func (t *tree5) tailOf(in *inode, off uint64, p []byte) (err error) {
	nameSize, linkSize, flags := uint64(le.Uint16(p[100:])), uint64(le.Uint16(p[102:])), le.Uint64(p[80:])
	if in.names, err = cut(t.p, off, nameSize); err != nil {
		return err
	}
	off += align8(nameSize)
	isLink := in.mode&syscall.S_IFMT == syscall.S_IFLNK
	if isLink != (flags&inodeSymlink != 0) || isLink != (linkSize > 0) {
		return fmt.Errorf("%w: mode %#o, flags %#x and a target of %d bytes", chunk.ErrCorrupt, in.mode, flags, linkSize)
	}
	link, err := cut(t.p, off, linkSize)
	if err != nil {
		return err
	}
	in.link = string(link)
	off += align8(linkSize)
	if flags&inodeXattr != 0 {
		head, err := cut(t.p, off, 8)
		if err != nil {
			return err
		}
		n := le.Uint64(head)
		if in.attrs, err = cut(t.p, off+8, n); err != nil {
			return err
		}
		off += 8 + align8(n)
	}
	if in.mode&syscall.S_IFMT == syscall.S_IFREG {
		in.chunks = int(in.count)
		in.refs, err = cut(t.p, off, uint64(in.count)*chunkRecordSize)
	}
	return err
}

func (t *tree5) children(dir *inode, yield func(string, uint64) error) error {
	if uint64(dir.first)+uint64(dir.count) > uint64(len(t.table)/4)+1 {
		return fmt.Errorf("%w: directory has %d entries from number %d of %d", chunk.ErrCorrupt, dir.count, dir.first, len(t.table)/4)
	}
	for i := range uint64(dir.count) {
		in, err := t.inode(uint64(dir.first) + i)
		if err != nil {
			return err
		}
		if err := yield(string(in.names), in.num); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree5) xattrs(in *inode, list []image.Xattr) ([]image.Xattr, error) {
	for p := in.attrs; len(p) > 0; {
		if len(p) < 4 || uint64(le.Uint32(p)) > uint64(len(p)-4) {
			return nil, fmt.Errorf("%w: extended attribute is cut off", chunk.ErrCorrupt)
		}
		n := le.Uint32(p)
		pair := p[4 : 4+n]
		p = p[4+n:]
		name, value, ok := bytes.Cut(pair, []byte{0})
		if !ok {
			return nil, fmt.Errorf("%w: extended attribute %.80q has no value", chunk.ErrCorrupt, name)
		}
		list = append(list, image.Xattr{Name: string(name), Value: value})
	}
	return list, nil
}

func (t *tree5) chunk(in *inode, i int) (fileChunk, error) {
	r := decodeRecord(in.refs[i*chunkRecordSize:])
	if r.fileOff > math.MaxInt64 {
		return fileChunk{}, fmt.Errorf("%w: chunk at %d of a file", chunk.ErrCorrupt, r.fileOff)
	}
	return fileChunk{off: int64(r.fileOff), size: r.usize, blob: r.blob, index: r.index, row: in.refs[i*chunkRecordSize:]}, nil
}

func (t *tree5) record(c *fileChunk) []byte { return c.row }
