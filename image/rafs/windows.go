package rafs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"graze/chunk"
	"graze/image"
)

// windows collects which windows the spans of one blob need. They lie end to end
// in the meta of the blob, and are fetched as chunks of the blob that has the
// meta.
type windows struct {
	list []window
}

type window struct {
	span uint32 // in the table
	off  uint64 // in the blob's dictionaries
	size uint32
}

func (w *windows) add(span uint32, off uint64, size uint32) {
	w.list = append(w.list, window{span, off, size})
}

// addWindows appends the chunks that hold the windows to the table, and has the
// spans refer to them.
func (b *tabler) addWindows() error {
	for _, n := range slices.Sorted(maps.Keys(b.groups)) {
		if err := b.addGroup(n, b.groups[n]); err != nil {
			return fmt.Errorf("windows of blob %d: %w", n, err)
		}
	}
	return nil
}

// addGroup cuts the windows of a blob into chunks.
func (b *tabler) addGroup(n uint32, w *windows) error {
	blob, m := &b.l.b.blobs[n], b.l.metas[n]
	name, err := b.l.b.metaRef(n)
	if err != nil {
		return err
	}
	if blob.info.compress == lz4Block && len(m.raw) > chunk.MaxSize {
		return fmt.Errorf("%w: %d bytes of meta in one LZ4 block", ErrUnsupported, len(m.raw))
	}
	metaBlob := b.blob(name)
	slices.SortFunc(w.list, func(x, y window) int { return cmp.Or(cmp.Compare(x.off, y.off), cmp.Compare(x.span, y.span)) })
	least := max(windowGroup, uint64(len(m.dicts))/(maxParts/2))
	list := w.list
	whole := -1 // the span of all, where they can't be decoded by themselves
	for len(list) > 0 {
		from, to, k := list[0].off, list[0].off, 0
		for ; k < len(list) && (k == 0 || list[k].off < to || list[k].off == to && to-from < least); k++ {
			to = max(to, list[k].off+uint64(list[k].size))
			if list[k].size > image.MaxWindow || to-from > chunk.MaxSize {
				return fmt.Errorf("%w: a window of %d bytes", chunk.ErrCorrupt, list[k].size)
			}
		}
		number := uint32(len(b.table.Chunks))
		row := image.ChunkRow{Ref: chunk.SHA256.Name(m.dicts[from:to]).Ref()}
		if blob.info.compress == plain || whole < 0 {
			whole = len(b.table.Spans)
			b.table.Spans = append(b.table.Spans, b.metaSpan(blob, m, metaBlob, number, from, to))
		}
		if blob.info.compress != plain {
			row.At = int64(m.dictsOff + from)
		}
		row.Span = uint32(whole)
		b.table.Spans[whole].Count++
		b.table.Chunks = append(b.table.Chunks, row)
		for _, one := range list[:k] {
			b.table.Spans[one.span].Window = image.WindowRow{Chunk: number, Off: int32(one.off - from), Len: int32(one.size)}
		}
		list = list[k:]
	}
	return nil
}

// metaSpan returns the span that bytes of a blob's windows are decoded from.
func (b *tabler) metaSpan(blob *blob, m *meta, metaBlob, first uint32, from, to uint64) image.SpanRow {
	s := image.SpanRow{Blob: metaBlob, Codec: blob.info.compress.codec(), First: first}
	s.Off, s.Len = int64(blob.info.off), int64(blob.info.csize)
	if blob.info.compress == plain {
		s.Off, s.Len = s.Off+int64(m.dictsOff+from), int64(to-from)
	}
	return s
}
