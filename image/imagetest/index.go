package imagetest

import (
	"bytes"
	"fmt"
	"slices"
	"syscall"

	"graze/chunk"
	"graze/image"
	"graze/image/codec"
)

// Collect returns copies of a layer's entries.
func Collect(l *image.Layer) ([]image.Entry, error) {
	var list []image.Entry
	for e, err := range l.Entries {
		if err != nil {
			return nil, err
		}
		c := *e
		c.Xattrs, c.Extents = nil, nil
		for _, x := range e.Xattrs {
			c.Xattrs = append(c.Xattrs, image.Xattr{Name: x.Name, Value: slices.Clone(x.Value)})
		}
		c.Extents = append(c.Extents, e.Extents...)
		list = append(list, c)
	}
	return list, nil
}

// Contents decodes every chunk of a layer of one blob, each from the bytes of its
// span only, and returns the contents of the files by their names.
func Contents(l *image.Layer, blob []byte) (map[string][]byte, error) {
	var d codec.Decoder
	chunks := make([][]byte, len(l.Table.Chunks))
	for n := range l.Table.Spans {
		s := l.Table.Span(uint32(n))
		first := int(l.Table.Spans[n].First)
		src := bytes.NewReader(blob[s.Off : s.Off+s.Len])
		err := d.Decode(src, []chunk.Span{s}, nil, func(_, part int, p []byte) error {
			_, err := s.Parts[part].Verify(p)
			chunks[first+part] = slices.Clone(p)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("span %d: %w", n, err)
		}
	}
	list, err := Collect(l)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, e := range list {
		if e.Mode&syscall.S_IFMT != syscall.S_IFREG {
			continue
		}
		data := make([]byte, e.Size)
		for _, x := range e.Extents {
			copy(data[x.Off:x.Off+x.Len], chunks[x.Chunk][x.At:])
		}
		files[e.Name] = data
	}
	return files, nil
}

// CheckMembers returns an error if the index of a layer, whose spans are members
// in the order of the layer, breaks a rule of image.Table or of image.Entry.
func CheckMembers(l *image.Layer, c chunk.Codec) error {
	end := int64(0)
	next := uint32(0)
	for i, s := range l.Table.Spans {
		if s.Off < end || s.Len <= 0 || s.Off > l.Size-s.Len {
			return fmt.Errorf("span %d at %d+%d of %d bytes, the one before ends at %d", i, s.Off, s.Len, l.Size, end)
		}
		end = s.Off + s.Len
		if s.First != next || s.Count == 0 || s.Codec != c || s.Blob != 0 || s.Window.Len != 0 {
			return fmt.Errorf("span %d is %+v", i, s)
		}
		at := int64(0)
		for ; next < s.First+s.Count; next++ {
			c := l.Table.Chunks[next]
			if c.Span != uint32(i) || c.At < at || c.Check() != nil {
				return fmt.Errorf("chunk %d is %+v", next, c)
			}
			at = c.At + int64(c.Size)
			if at < c.At {
				return fmt.Errorf("chunk %d is %+v", next, c)
			}
		}
	}
	if int(next) != len(l.Table.Chunks) || l.Prefetch < 0 || l.Prefetch > len(l.Table.Spans) {
		return fmt.Errorf("spans have %d of %d chunks; prefetch %d of %d", next, len(l.Table.Chunks), l.Prefetch, len(l.Table.Spans))
	}
	list, err := Collect(l)
	if err != nil {
		return err
	}
	for _, e := range list {
		if err := checkExtents(&e, &l.Table); err != nil {
			return fmt.Errorf("%q: %w", e.Name, err)
		}
	}
	return nil
}

// checkExtents returns an error if the extents of e can't be those of a file.
func checkExtents(e *image.Entry, t *image.Table) error {
	off := int64(0)
	for _, x := range e.Extents {
		c := t.Chunks[x.Chunk]
		if x.Off < off || x.Len <= 0 || int64(x.At)+x.Len > int64(c.Size) {
			return fmt.Errorf("extent %+v", x)
		}
		off = x.Off + x.Len
	}
	if off > e.Size {
		return fmt.Errorf("extents of %d of %d bytes", off, e.Size)
	}
	return nil
}
