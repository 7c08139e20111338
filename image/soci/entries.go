package soci

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"graze/chunk"
	"graze/image"
)

// The fields of a table FileMetadata.
const (
	fileName = iota
	fileType
	fileOffset // in the decoded layer
	fileSize
	fileLink
	fileMode // as in a tar header
	fileUID
	fileGID
	_ // name of the user
	_ // name of the group
	fileTime
	fileMajor
	fileMinor
	fileRecords // of the PAX header, extended attributes among them
)

// The fields of a table Xattr.
const (
	recordKey = iota
	recordValue
)

const (
	xattrPrefix  = "SCHILY.xattr."
	sparsePrefix = "GNU.sparse."

	// maxEntries bounds the entries of a zTOC. At some 200 bytes each, real ones meet
	// the caller's bound on its size first.
	maxEntries = 4 << 20
)

// entries are those of a zTOC that has been checked.
type entries struct {
	ztoc  []byte
	spans []stretch
}

// A stretch is the decoded bytes of a span.
type stretch struct{ start, end int64 }

// all implements image.Layer.Entries. If check has found no error, it yields none.
func (x *entries) all(yield func(*image.Entry, error) bool) {
	f := &flat{p: x.ztoc}
	list := files(f)
	var e image.Entry
	for i := range list.n {
		if err := x.fill(&e, list.table(i)); err != nil {
			yield(nil, fmt.Errorf("entry %d: %w", i, err))
			return
		}
		if !yield(&e, nil) {
			return
		}
	}
}

// check goes once over all entries. They must not have more text than the zTOC, nor
// more bytes than the layer, which is decoded bytes long: in a real one no two
// entries share any.
func (x *entries) check(decoded int64) error {
	f := &flat{p: x.ztoc}
	if n := files(f).n; n > maxEntries {
		return fmt.Errorf("%w: %d entries, more than %d", ErrUnsupported, n, maxEntries)
	}
	left := len(x.ztoc)
	for e, err := range x.all {
		if err != nil {
			return err
		}
		left -= len(e.Name) + len(e.Link)
		decoded -= e.Size
		for _, a := range e.Xattrs {
			left -= len(a.Name) + len(a.Value)
		}
		if left < 0 || decoded < 0 {
			return fmt.Errorf("%w: entries share names or bytes", chunk.ErrCorrupt)
		}
	}
	return f.err
}

// files returns the list of entries.
func files(f *flat) vector { return f.root().table(ztocTOC).vector(0) }

// text returns p as a string without copying it.
func text(p []byte) string { return unsafe.String(unsafe.SliceData(p), len(p)) }

// fill makes e the entry that t is. It reuses the slices of e.
func (x *entries) fill(e *image.Entry, t table) error {
	*e = image.Entry{
		Name:    text(t.bytes(fileName)),
		Link:    text(t.bytes(fileLink)),
		UID:     t.uint32(fileUID),
		GID:     t.uint32(fileGID),
		Xattrs:  e.Xattrs[:0],
		Extents: e.Extents[:0],
	}
	kind := string(t.bytes(fileType))
	if e.Name == "" || strings.IndexByte(e.Name+e.Link, 0) >= 0 {
		return fmt.Errorf("%w: name %.80q, link %.80q", chunk.ErrCorrupt, e.Name, e.Link)
	}
	if kind == "hardlink" {
		*e = image.Entry{Name: e.Name, Link: e.Link, Hardlink: true, Xattrs: e.Xattrs, Extents: e.Extents}
		return t.f.err
	}
	mode := modeOf(kind)
	if mode == 0 && t.f.err == nil {
		return fmt.Errorf("%w: %.80q is of the type %.20q", ErrUnsupported, e.Name, kind)
	}
	e.Mode = mode | uint32(t.int64(fileMode)&0o7777)
	var mtime time.Time
	if err := mtime.UnmarshalText(t.bytes(fileTime)); err == nil { // none is the epoch
		e.MTime = image.Time{Sec: mtime.Unix(), Nsec: uint32(mtime.Nanosecond())}
	}
	if err := records(e, t.vector(fileRecords)); err != nil {
		return err
	}
	switch mode {
	case syscall.S_IFREG:
		e.Link = ""
		if err := x.extents(e, t.int64(fileOffset), t.int64(fileSize)); err != nil && t.f.err == nil {
			return fmt.Errorf("%.80q: %w", e.Name, err)
		}
	case syscall.S_IFCHR, syscall.S_IFBLK:
		major, minor := t.int64(fileMajor), t.int64(fileMinor)
		if major < 0 || major > math.MaxUint32 || minor < 0 || minor > math.MaxUint32 {
			return fmt.Errorf("%w: %.80q is device %d:%d", chunk.ErrCorrupt, e.Name, major, minor)
		}
		e.Major, e.Minor = uint32(major), uint32(minor)
	case syscall.S_IFLNK:
	default:
		e.Link = ""
	}
	return t.f.err
}

// modeOf returns the type of an entry as in stat(2), or 0 if it isn't known.
func modeOf(kind string) uint32 {
	switch kind {
	case "reg":
		return syscall.S_IFREG
	case "dir":
		return syscall.S_IFDIR
	case "symlink":
		return syscall.S_IFLNK
	case "char":
		return syscall.S_IFCHR
	case "block":
		return syscall.S_IFBLK
	case "fifo":
		return syscall.S_IFIFO
	}
	return 0
}

// records adds the extended attributes among the records of an entry's PAX header.
func records(e *image.Entry, list vector) error {
	for i := range list.n {
		r := list.table(i)
		key, value := r.bytes(recordKey), r.bytes(recordValue)
		if bytes.HasPrefix(key, []byte(sparsePrefix)) {
			return fmt.Errorf("%w: %.80q is a sparse file", ErrUnsupported, e.Name)
		}
		name, ok := bytes.CutPrefix(key, []byte(xattrPrefix))
		if !ok {
			continue
		}
		if len(name) == 0 || bytes.IndexByte(name, 0) >= 0 {
			return fmt.Errorf("%w: %.80q has the extended attribute %.80q", chunk.ErrCorrupt, e.Name, name)
		}
		e.Xattrs = append(e.Xattrs, image.Xattr{Name: text(name), Value: value})
	}
	slices.SortFunc(e.Xattrs, func(a, b image.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// extents lays the size bytes of the decoded layer from off on out over the spans.
func (x *entries) extents(e *image.Entry, off, size int64) error {
	end := int64(0)
	if n := len(x.spans); n > 0 {
		end = x.spans[n-1].end
	}
	if size < 0 || size > 0 && (off < 0 || off > end || size > end-off) {
		return fmt.Errorf("%w: file of %d bytes at %d of %d", chunk.ErrCorrupt, size, off, end)
	}
	e.Size = size
	i := sort.Search(len(x.spans), func(i int) bool { return x.spans[i].end > off })
	for at := int64(0); at < size; i++ {
		s := x.spans[i]
		if s.start > off+at {
			return fmt.Errorf("%w: file at %d is before the first span", chunk.ErrCorrupt, off)
		}
		n := min(size-at, s.end-off-at)
		e.Extents = append(e.Extents, chunk.Extent{Off: at, Len: n, Chunk: uint32(i), At: int32(off + at - s.start)})
		at += n
	}
	return nil
}
