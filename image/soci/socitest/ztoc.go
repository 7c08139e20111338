package socitest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	flatbuffers "github.com/google/flatbuffers/go"
	"github.com/klauspost/compress/flate"

	"graze/image/inflate"
)

const windowSize = 32 << 10

// ZTOC returns the zTOC of a layer that is a gzip member with a plain header, or an
// archive that is not compressed. Spans decode to spanSize bytes at least.
func ZTOC(layer []byte, spanSize int64) ([]byte, error) {
	z := writer{layer: layer, spanSize: spanSize, b: flatbuffers.NewBuilder(1 << 20)}
	if bytes.HasPrefix(layer, []byte(inflate.Magic)) {
		return z.gzip()
	}
	return z.plain()
}

type writer struct {
	layer    []byte
	spanSize int64
	b        *flatbuffers.Builder
	digests  []string
}

// digest adds the digest of a span.
func (z *writer) digest(off, end int64) {
	z.digests = append(z.digests, fmt.Sprintf("sha256:%x", sha256.Sum256(z.layer[off:end])))
}

// A checkpoint is where a span begins.
type checkpoint struct {
	in, out int64
	bits    uint8
	window  []byte
}

// gzip writes the zTOC of a gzip layer.
func (z *writer) gzip() ([]byte, error) {
	var list []checkpoint
	last := int64(0)
	// The decoder tells of each deflate block, the first one among them.
	r := flate.NewReaderOpts(bytes.NewReader(z.layer[inflate.HeaderLen:]), flate.WithEobCallback(func(c flate.InflateCheckpoint) {
		if c.UncompressedOffset-last <= z.spanSize {
			return
		}
		last = c.UncompressedOffset
		p := checkpoint{in: inflate.HeaderLen + c.CompressedOffset, out: last, window: make([]byte, windowSize)}
		if c.BitOffset > 0 {
			p.in, p.bits = p.in+1, 8-c.BitOffset
		}
		w := c.Window[max(0, len(c.Window)-windowSize):]
		copy(p.window[windowSize-len(w):], w)
		list = append(list, p)
	}))
	decoded, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	list = slices.Insert(list, 0, checkpoint{in: inflate.HeaderLen, window: make([]byte, windowSize)})
	const trailer = 8 // of a gzip member
	if n := len(list); n > 1 && list[n-1].in+trailer >= int64(len(z.layer)) {
		list = list[:n-1] // there is no block
	}
	blob := binary.LittleEndian.AppendUint32(nil, uint32(len(list)))
	blob = binary.LittleEndian.AppendUint64(blob, uint64(z.spanSize))
	for i, p := range list {
		blob = binary.LittleEndian.AppendUint64(blob, uint64(p.in))
		blob = binary.LittleEndian.AppendUint64(blob, uint64(p.out))
		blob = append(append(blob, p.bits), p.window...)
		off, end := p.in, int64(len(z.layer))
		if p.bits > 0 {
			off--
		}
		if i+1 < len(list) {
			end = list[i+1].in
		}
		z.digest(off, end)
	}
	return z.write(decoded, 1, blob)
}

// plain writes the zTOC of a layer that is not compressed.
func (z *writer) plain() ([]byte, error) {
	size := int64(len(z.layer))
	for off := int64(0); off < size; off += z.spanSize {
		z.digest(off, min(off+z.spanSize, size))
	}
	b := flatbuffers.NewBuilder(0)
	b.StartObject(3)
	b.PrependInt32Slot(0, 2, 0)
	b.PrependInt64Slot(1, z.spanSize, 0)
	b.PrependInt64Slot(2, size, 0)
	b.Finish(b.EndObject())
	return z.write(z.layer, 2, b.FinishedBytes())
}

// write writes the flatbuffer.
func (z *writer) write(decoded []byte, algorithm byte, checkpoints []byte) ([]byte, error) {
	b := z.b
	list, size, err := z.files(decoded)
	if err != nil {
		return nil, err
	}
	metadata := z.vector(list)
	b.StartObject(1)
	b.PrependUOffsetTSlot(0, metadata, 0)
	toc := b.EndObject()

	blob := b.CreateByteVector(checkpoints)
	var sums []flatbuffers.UOffsetT
	for _, d := range z.digests {
		sums = append(sums, b.CreateString(d))
	}
	digests := z.vector(sums)
	b.StartObject(4)
	b.PrependByteSlot(0, algorithm, 1)
	b.PrependInt32Slot(1, int32(len(sums)-1), 0)
	b.PrependUOffsetTSlot(2, digests, 0)
	b.PrependUOffsetTSlot(3, blob, 0)
	info := b.EndObject()

	version, tool := b.CreateString("0.9"), b.CreateString("socitest")
	b.StartObject(6)
	b.PrependUOffsetTSlot(0, version, 0)
	b.PrependUOffsetTSlot(1, tool, 0)
	b.PrependInt64Slot(2, int64(len(z.layer)), 0)
	b.PrependInt64Slot(3, size, 0)
	b.PrependUOffsetTSlot(4, toc, 0)
	b.PrependUOffsetTSlot(5, info, 0)
	b.Finish(b.EndObject())
	return b.FinishedBytes(), nil
}

// vector writes a vector of references.
func (z *writer) vector(list []flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	z.b.StartVector(4, len(list), 4)
	for _, off := range slices.Backward(list) {
		z.b.PrependUOffsetT(off)
	}
	return z.b.EndVector(len(list))
}

// files writes the entries of the archive, and returns how far it was read.
func (z *writer) files(archive []byte) (list []flatbuffers.UOffsetT, size int64, err error) {
	r := bytes.NewReader(archive)
	at := func() int64 { return int64(len(archive)) - int64(r.Len()) }
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return list, at(), nil
		}
		if err != nil {
			return nil, 0, err
		}
		off, err := z.file(h, at())
		if err != nil {
			return nil, 0, err
		}
		list = append(list, off)
	}
}

// file writes an entry whose bytes are at off in the archive.
func (z *writer) file(h *tar.Header, off int64) (flatbuffers.UOffsetT, error) {
	kind := map[byte]string{
		tar.TypeReg: "reg", tar.TypeDir: "dir", tar.TypeSymlink: "symlink", tar.TypeLink: "hardlink",
		tar.TypeChar: "char", tar.TypeBlock: "block", tar.TypeFifo: "fifo",
	}[h.Typeflag]
	if kind == "" {
		return 0, fmt.Errorf("%q is of the type %q, of which a zTOC has none", h.Name, h.Typeflag)
	}
	mtime, err := h.ModTime.MarshalText()
	if err != nil {
		mtime = nil
	}
	b := z.b
	var records []flatbuffers.UOffsetT
	for _, key := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		k, v := b.CreateString(key), b.CreateString(h.PAXRecords[key])
		b.StartObject(2)
		b.PrependUOffsetTSlot(0, k, 0)
		b.PrependUOffsetTSlot(1, v, 0)
		records = append(records, b.EndObject())
	}
	pax := z.vector(records)
	name, typ, link := b.CreateString(h.Name), b.CreateString(kind), b.CreateString(h.Linkname)
	user, group, when := b.CreateString(h.Uname), b.CreateString(h.Gname), b.CreateByteString(mtime)
	b.StartObject(14)
	b.PrependUOffsetTSlot(0, name, 0)
	b.PrependUOffsetTSlot(1, typ, 0)
	b.PrependInt64Slot(2, off, 0)
	b.PrependInt64Slot(3, h.Size, 0)
	b.PrependUOffsetTSlot(4, link, 0)
	b.PrependInt64Slot(5, h.Mode, 0)
	b.PrependUint32Slot(6, uint32(h.Uid), 0)
	b.PrependUint32Slot(7, uint32(h.Gid), 0)
	b.PrependUOffsetTSlot(8, user, 0)
	b.PrependUOffsetTSlot(9, group, 0)
	b.PrependUOffsetTSlot(10, when, 0)
	b.PrependInt64Slot(11, h.Devmajor, 0)
	b.PrependInt64Slot(12, h.Devminor, 0)
	b.PrependUOffsetTSlot(13, pax, 0)
	return b.EndObject(), nil
}
