package targz

import (
	"errors"
	"fmt"
	"math"
	"syscall"

	"graze/chunk"
	"graze/image"
)

// modeOf is the type in the mode of each kind of entry.
var modeOf = [numKinds]uint32{
	kindReg:      syscall.S_IFREG,
	kindDir:      syscall.S_IFDIR,
	kindSymlink:  syscall.S_IFLNK,
	kindHardlink: 0,
	kindChar:     syscall.S_IFCHR,
	kindBlock:    syscall.S_IFBLK,
	kindFifo:     syscall.S_IFIFO,
}

// treeEntries are the entries of a tree. They stay packed, and are decoded a
// block at a time when they are ranged over.
type treeEntries struct {
	blocks []packedBlock
	table  *image.Table
	chunks uint32 // how many of the table's are the layer's
	info   Info
}

// all is the Entries of an image.Layer.
func (t *treeEntries) all(yield func(*image.Entry, error) bool) {
	u, err := newUnpacker()
	if err != nil {
		yield(nil, err)
		return
	}
	d := entryDecoder{t: t}
	for _, b := range t.blocks {
		more, err := d.block(u, b, yield)
		if err != nil {
			yield(nil, fmt.Errorf("%w: tree of layer %.80s: block at %d: %w", chunk.ErrCorrupt, t.info.Layer.Digest, b.at, err))
			return
		}
		if !more {
			return
		}
	}
}

// An entryDecoder decodes entries in order.
type entryDecoder struct {
	t    *treeEntries
	cols [entryColumns]cursor
	e    image.Entry

	name     []byte // of the last entry
	uid, gid int64
	sec      int64
	dataEnd  int64  // of the last entry that has data, in the decoded layer
	chunk    uint32 // where its data ended
}

// block yields the entries of a block, and reports whether more are wanted.
func (d *entryDecoder) block(u *unpacker, b packedBlock, yield func(*image.Entry, error) bool) (bool, error) {
	if err := u.unpack(b, d.cols[:]); err != nil {
		return false, err
	}
	d.name, d.uid, d.gid, d.sec = d.name[:0], 0, 0, 0
	for i := range b.rows {
		if err := d.entry(); err != nil {
			return false, fmt.Errorf("entry %d: %w", i, err)
		}
		if !yield(&d.e, nil) {
			return false, nil
		}
	}
	return true, checkColumns(d.cols[:])
}

// entry decodes the next entry into d.e.
func (d *entryDecoder) entry() error {
	kind := d.cols[colKind].byte()
	shared, n := d.cols[colShared].uvarint(), d.cols[colSuffix].uvarint()
	suffix := d.cols[colName].bytes(n)
	if kind&kindMask >= numKinds || shared > int64(len(d.name)) {
		return errColumn
	}
	d.name = append(d.name[:shared], suffix...)
	d.uid += d.cols[colUID].varint()
	d.gid += d.cols[colGID].varint()
	d.sec += d.cols[colSec].varint()
	mode, nsec := d.cols[colMode].uvarint(), d.cols[colNsec].uvarint()
	if mode > 0o7777 || nsec >= 1e9 || !isUint32(d.uid) || !isUint32(d.gid) {
		return errors.New("attribute out of range")
	}
	e := &d.e
	*e = image.Entry{
		Name:    string(d.name),
		Mode:    modeOf[kind&kindMask] | uint32(mode),
		UID:     uint32(d.uid),
		GID:     uint32(d.gid),
		MTime:   image.Time{Sec: d.sec, Nsec: uint32(nsec)},
		Xattrs:  e.Xattrs[:0],
		Extents: e.Extents[:0],
	}
	switch kind & kindMask {
	case kindReg:
		if err := d.data(kind&flagSparse != 0); err != nil {
			return err
		}
	case kindSymlink, kindHardlink:
		e.Hardlink = kind&kindMask == kindHardlink
		e.Link = string(d.cols[colLink].bytes(d.cols[colLink].uvarint()))
	case kindChar, kindBlock:
		major, minor := d.cols[colDev].uvarint(), d.cols[colDev].uvarint()
		if !isUint32(major) || !isUint32(minor) {
			return errDevice
		}
		e.Major, e.Minor = uint32(major), uint32(minor)
	}
	if kind&flagXattrs != 0 {
		d.xattrs()
	}
	if hasNUL(e.Name) || hasNUL(e.Link) {
		return errNUL
	}
	for i := range d.cols {
		if d.cols[i].bad {
			return errColumn
		}
	}
	return nil
}

// xattrs decodes extended attributes.
func (d *entryDecoder) xattrs() {
	c := &d.cols[colXattr]
	for range min(c.uvarint(), int64(len(c.p))) {
		name := string(c.bytes(c.uvarint()))
		d.e.Xattrs = append(d.e.Xattrs, image.Xattr{Name: name, Value: c.bytes(c.uvarint())})
	}
}

// data decodes where the data of a regular file lies.
func (d *entryDecoder) data(sparse bool) error {
	e := &d.e
	e.Size = d.cols[colSize].uvarint()
	if !sparse {
		if e.Size == 0 {
			return nil
		}
		d.skip()
		return d.fragment(0, e.Size)
	}
	c := &d.cols[colMap]
	end := int64(0)
	fragments := c.uvarint()
	if fragments > 0 {
		d.skip()
	}
	for range fragments {
		gap, n := c.uvarint(), c.uvarint()
		if c.bad || n == 0 || gap > e.Size-end || n > e.Size-end-gap {
			return errSparse
		}
		if err := d.fragment(end+gap, n); err != nil {
			return err
		}
		end += gap + n
	}
	return nil
}

// skip passes over what lies before the data of the entry.
func (d *entryDecoder) skip() {
	gap := d.cols[colGap].uvarint()
	d.dataEnd += min(gap, math.MaxInt64/2-d.dataEnd)
}

// fragment appends the extents of the next n bytes of data, which are those from
// off on of the file.
func (d *entryDecoder) fragment(off, n int64) error {
	t := d.t.table
	for n > 0 {
		if d.chunk >= d.t.chunks {
			return errors.New("data lies beyond the last chunk")
		}
		c := &t.Chunks[d.chunk]
		at := d.dataEnd - (t.Spans[c.Span].Start + c.At)
		if at >= int64(c.Size) {
			d.chunk++
			continue
		}
		if at < 0 {
			return errors.New("data lies between chunks")
		}
		k := min(n, int64(c.Size)-at)
		d.e.Extents = append(d.e.Extents, chunk.Extent{Off: off, Len: k, Chunk: d.chunk, At: int32(at)})
		off, n, d.dataEnd = off+k, n-k, d.dataEnd+k
	}
	return nil
}
