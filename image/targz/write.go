package targz

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"graze/chunk"
)

// groupWindows is how many windows of neighbouring checkpoints are packed into a
// chunk of the checkpoints blob.
const groupWindows = 16

// A blobWriter writes a blob and names it.
type blobWriter struct {
	w   io.Writer
	sum hash.Hash
	n   int64
}

func (b *blobWriter) Write(p []byte) (int, error) {
	n, err := b.w.Write(p)
	b.sum.Write(p[:n])
	b.n += int64(n)
	return n, err
}

// A rows collects rows of one kind of block.
type rows struct {
	kind    byte
	n       int
	columns [][]byte
}

func newRows(kind byte, columns int) rows { return rows{kind: kind, columns: make([][]byte, columns)} }

func (r *rows) size() (n int) {
	for _, c := range r.columns {
		n += len(c)
	}
	return n
}

func (r *rows) uvarint(col int, v int64) {
	r.columns[col] = binary.AppendUvarint(r.columns[col], uint64(v))
}

func (r *rows) varint(col int, v int64) {
	r.columns[col] = binary.AppendVarint(r.columns[col], v)
}

func (r *rows) byte(col int, b byte) { r.columns[col] = append(r.columns[col], b) }

func (r *rows) bytes(col int, s string) {
	r.uvarint(col, int64(len(s)))
	r.columns[col] = append(r.columns[col], s...)
}

// A writer writes an index as it comes to be: it holds a block of each kind and
// a group of windows, never more.
type writer struct {
	tree, checkpoints blobWriter
	alg               chunk.Algorithm
	zstd              *zstd.Encoder
	raw, packed       []byte
	err               error // the first that there was

	entries, chunks, spans, groups rows
	info                           Info

	name      string // of the last entry
	uid, gid  int64
	sec       int64
	dataEnd   int64 // of the last entry that has data
	chunkEnd  int64
	spanOff   int64
	windows   []byte // of the current group
	inWindows int
}

func newWriter(tree, checkpoints io.Writer, alg chunk.Algorithm) (*writer, error) {
	enc, err := newPacker()
	if err != nil {
		return nil, err
	}
	w := &writer{
		tree:        blobWriter{w: tree, sum: sha256.New()},
		checkpoints: blobWriter{w: checkpoints, sum: sha256.New()},
		alg:         alg,
		zstd:        enc,
		entries:     newRows(entryBlock, entryColumns),
		chunks:      newRows(chunkBlock, chunkColumns),
		spans:       newRows(spanBlock, spanColumns),
		groups:      newRows(windowBlock, windowColumns),
	}
	_, err = io.WriteString(&w.tree, headMagic)
	return w, err
}

// fail keeps the first error, and returns it.
func (w *writer) fail(err error) error {
	if w.err == nil {
		w.err = err
	}
	return w.err
}

// entry adds an entry.
func (w *writer) entry(e *entry) error {
	if w.err != nil {
		return w.err
	}
	r := &w.entries
	kind := kindOf(e)
	flags := byte(0)
	if e.sparse {
		flags |= flagSparse
	}
	if len(e.Xattrs) > 0 {
		flags |= flagXattrs
	}
	r.byte(colKind, kind|flags)
	shared := 0
	for shared < min(len(e.Name), len(w.name)) && e.Name[shared] == w.name[shared] {
		shared++
	}
	r.uvarint(colShared, int64(shared))
	r.uvarint(colSuffix, int64(len(e.Name)-shared))
	r.columns[colName] = append(r.columns[colName], e.Name[shared:]...)
	r.uvarint(colMode, int64(e.Mode&0o7777))
	r.varint(colUID, int64(e.UID)-w.uid)
	r.varint(colGID, int64(e.GID)-w.gid)
	r.varint(colSec, e.MTime.Sec-w.sec)
	r.uvarint(colNsec, int64(e.MTime.Nsec))
	w.name, w.uid, w.gid, w.sec = e.Name, int64(e.UID), int64(e.GID), e.MTime.Sec
	switch kind {
	case kindReg:
		r.uvarint(colSize, e.Size)
		w.data(e)
	case kindSymlink, kindHardlink:
		r.bytes(colLink, e.Link)
	case kindChar, kindBlock:
		r.uvarint(colDev, int64(e.Major))
		r.uvarint(colDev, int64(e.Minor))
	}
	if len(e.Xattrs) > 0 {
		r.uvarint(colXattr, int64(len(e.Xattrs)))
		for _, x := range e.Xattrs {
			r.bytes(colXattr, x.Name)
			r.bytes(colXattr, string(x.Value))
		}
	}
	w.info.Entries++
	w.row(r)
	if r.n == 0 {
		// Blocks of entries are decoded one at a time, so each begins afresh.
		w.name, w.uid, w.gid, w.sec = "", 0, 0, 0
	}
	return w.err
}

// data adds where the data of a regular file lies.
func (w *writer) data(e *entry) {
	r := &w.entries
	if e.sparse {
		r.uvarint(colMap, int64(len(e.fragments)))
	}
	stored, end := int64(0), int64(0)
	for _, f := range e.fragments {
		if e.sparse {
			r.uvarint(colMap, f.off-end)
			r.uvarint(colMap, f.len)
		}
		stored, end = stored+f.len, f.off+f.len
	}
	if stored > 0 {
		r.uvarint(colGap, e.at-w.dataEnd)
		w.dataEnd = e.at + stored
	}
}

// kindOf returns the kind of e.
func kindOf(e *entry) byte {
	if e.Hardlink {
		return kindHardlink
	}
	switch e.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return kindDir
	case syscall.S_IFLNK:
		return kindSymlink
	case syscall.S_IFCHR:
		return kindChar
	case syscall.S_IFBLK:
		return kindBlock
	case syscall.S_IFIFO:
		return kindFifo
	}
	return kindReg
}

// chunk adds a chunk of the layer that begins at start in the decoded bytes. An
// error is left for the next call of another method.
func (w *writer) chunk(start int64, ref chunk.Ref) {
	if w.info.Chunks++; w.info.Chunks > maxChunks {
		w.fail(fmt.Errorf("layer has more than %d chunks", maxChunks))
	}
	sum := ref.ID.Sum()
	r := &w.chunks
	r.uvarint(colChunkGap, start-w.chunkEnd)
	r.uvarint(colChunkSize, int64(ref.Size))
	r.columns[colChunkSum] = append(r.columns[colChunkSum], sum[:]...)
	w.chunkEnd = start + int64(ref.Size)
	w.row(r)
}

// span adds a span that holds the chunks that no other does, and its window.
func (w *writer) span(s spanRow, window []byte) error {
	if w.err != nil {
		return w.err
	}
	if w.info.Spans++; w.info.Spans > maxSpans {
		return w.fail(fmt.Errorf("layer has more than %d spans", maxSpans))
	}
	r := &w.spans
	r.byte(colSpanCodec, byte(s.codec)|s.skip<<4)
	r.uvarint(colSpanOff, s.off-w.spanOff)
	r.uvarint(colSpanLen, s.len)
	r.uvarint(colSpanLead, s.lead)
	r.uvarint(colSpanCount, s.count)
	w.spanOff = s.off
	if len(window) == 0 {
		r.uvarint(colSpanGroup, 0)
		return w.row(r)
	}
	r.uvarint(colSpanGroup, 1+w.info.Windows)
	r.uvarint(colSpanWindow, int64(len(w.windows)))
	r.uvarint(colSpanWindow, int64(len(window)))
	w.windows = append(w.windows, window...)
	if w.inWindows++; w.inWindows == groupWindows {
		w.group()
	}
	return w.row(r)
}

// group writes the current group of windows, if there are any in it.
func (w *writer) group() error {
	if w.inWindows == 0 || w.err != nil {
		return w.err
	}
	w.packed = w.zstd.EncodeAll(w.windows, w.packed[:0])
	if _, err := w.checkpoints.Write(w.packed); err != nil {
		return w.fail(err)
	}
	sum := w.alg.Sum(w.windows).Sum()
	r := &w.groups
	r.uvarint(colGroupLen, int64(len(w.packed)))
	r.uvarint(colGroupSize, int64(len(w.windows)))
	r.columns[colGroupSum] = append(r.columns[colGroupSum], sum[:]...)
	w.windows, w.inWindows = w.windows[:0], 0
	w.info.Windows++
	return w.row(r)
}

// row ends a row, and the block if it has grown large.
func (w *writer) row(r *rows) error {
	r.n++
	if r.n < blockRows && r.size() < blockBytes {
		return w.err
	}
	return w.block(r)
}

// block writes a block, if there are any rows.
func (w *writer) block(r *rows) error {
	if r.n == 0 || w.err != nil {
		return w.err
	}
	w.raw = packColumns(w.raw[:0], r.columns)
	if len(w.raw) > maxBlock {
		return w.fail(errors.New("headers are too large for the index"))
	}
	w.packed = w.zstd.EncodeAll(w.raw, w.packed[:0])
	var head [blockHead]byte
	head[0] = r.kind
	binary.LittleEndian.PutUint32(head[1:], uint32(r.n))
	binary.LittleEndian.PutUint32(head[5:], uint32(len(w.raw)))
	binary.LittleEndian.PutUint32(head[9:], uint32(len(w.packed)))
	if _, err := w.tree.Write(head[:]); err != nil {
		return w.fail(err)
	}
	if _, err := w.tree.Write(w.packed); err != nil {
		return w.fail(err)
	}
	r.n = 0
	for i := range r.columns {
		r.columns[i] = r.columns[i][:0]
	}
	return nil
}

// finish writes what is left and the summary, which completes info.
func (w *writer) finish(info Info) (Info, error) {
	w.group()
	for _, r := range []*rows{&w.entries, &w.chunks, &w.spans, &w.groups} {
		w.block(r)
	}
	if w.err != nil {
		return Info{}, w.err
	}
	info.Entries, info.Chunks, info.Spans, info.Windows = w.info.Entries, w.info.Chunks, w.info.Spans, w.info.Windows
	info.Checkpoints = Blob{digest(w.checkpoints.sum), w.checkpoints.n}
	p, err := json.Marshal(info)
	if err != nil {
		return Info{}, err
	}
	sum := crc32.Checksum(p, castagnoli)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(p)))
	p = binary.LittleEndian.AppendUint32(p, sum)
	if _, err := w.tree.Write(p); err != nil {
		return Info{}, err
	}
	info.Tree = Blob{digest(w.tree.sum), w.tree.n}
	return info, nil
}
