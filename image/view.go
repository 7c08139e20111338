package image

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"sort"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"graze/chunk"
)

// A View is the merged tree of an image's layers, mapped from its file. Its
// methods are safe for concurrent use and do no I/O but for page faults; they
// must not be called after Close, nor may strings and slices that they returned
// be used then. Inode numbers that do not exist are answered with ok false or
// an empty sequence.
//
// The file must not be changed while it is open, only be replaced or removed.
type View struct {
	secs   [numSections][]byte
	blobs  []chunk.Blob
	info   Info
	totals Totals
	sum    uint32

	close func() error
}

// OpenView maps the view file that WriteView wrote. It compares all checksums
// and checks every reference in the file; a file that fails this is reported
// with chunk.ErrCorrupt.
func OpenView(path string) (*View, error) {
	v, err := openView(path)
	if err != nil {
		return nil, fmt.Errorf("open view %s: %w", path, err)
	}
	return v, nil
}

func openView(path string) (*View, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := fi.Size()
	if !fi.Mode().IsRegular() || size < int64(headerSize) || size > math.MaxInt {
		return nil, fmt.Errorf("%w: no view file", chunk.ErrCorrupt)
	}
	file, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	v, err := decodeView(file)
	if err != nil {
		return nil, cmp.Or(err, unix.Munmap(file))
	}
	v.close = sync.OnceValue(func() error { return unix.Munmap(file) })
	return v, nil
}

// decodeView returns the view that the bytes of its file make.
func decodeView(file []byte) (*View, error) {
	h, err := decodeHeader(file)
	if err != nil {
		return nil, err
	}
	secs, err := h.split(file)
	if err != nil {
		return nil, err
	}
	v := &View{secs: secs, sum: le.Uint32(file[headerSize-4:]), close: func() error { return nil }}
	if err := v.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
	}
	if len(secs[secInfo]) > maxInfo {
		return nil, fmt.Errorf("%w: info of %d bytes", chunk.ErrCorrupt, len(secs[secInfo]))
	}
	if err := json.Unmarshal(secs[secInfo], &v.info); err != nil {
		return nil, fmt.Errorf("%w: info: %w", chunk.ErrCorrupt, err)
	}
	return v, nil
}

// Close unmaps the file. No other method may be running or be called later.
func (v *View) Close() error { return v.close() }

// Checksum returns the checksum of all that is in the file. Views that have the same
// have the same inode numbers.
func (v *View) Checksum() uint32 { return v.sum }

// Info returns what WriteView was given to keep.
func (v *View) Info() Info { return v.info }

// Totals returns the sums over the view.
func (v *View) Totals() Totals { return v.totals }

// rows returns the number of rows of a section.
func (v *View) rows(sec int) int { return len(v.secs[sec]) / sections[sec].row }

// inode returns the row of an inode.
func (v *View) inode(ino uint64) (inodeRec, bool) {
	// Number 0 becomes the largest one.
	i := ino - 1
	if i >= uint64(v.rows(secInodes)) {
		return inodeRec{}, false
	}
	return decodeInode(v.secs[secInodes][i*inodeRow:]), true
}

// typed returns the row of an inode if it is of the type given.
func (v *View) typed(ino uint64, typ uint32) (inodeRec, bool) {
	r, ok := v.inode(ino)
	return r, ok && r.mode&syscall.S_IFMT == typ
}

// Attr returns the attributes of an inode.
func (v *View) Attr(ino uint64) (Attr, bool) {
	r, ok := v.inode(ino)
	if !ok {
		return Attr{}, false
	}
	a := Attr{
		Ino:   ino,
		Mode:  r.mode,
		NLink: r.nlink,
		UID:   r.uid,
		GID:   r.gid,
		MTime: Time{r.sec, r.nsec},
	}
	switch r.mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		a.Size = r.size
	case syscall.S_IFDIR:
		a.Size = dirSize
	case syscall.S_IFLNK:
		a.Size = int64(r.b)
	case syscall.S_IFCHR, syscall.S_IFBLK:
		a.Major, a.Minor = r.a, r.b
	}
	a.Blocks = blocks(a.Mode, a.Size)
	return a, true
}

// direntIno returns the inode that dirent number i names.
func (v *View) direntIno(i int) uint32 {
	return le.Uint32(v.secs[secDirents][i*direntRow:])
}

// direntName returns the name in dirent number i. It points into the map.
func (v *View) direntName(i int) string {
	d := v.secs[secDirents]
	var start uint32
	if i > 0 {
		start = le.Uint32(d[i*direntRow-4:])
	}
	return view(v.secs[secNames][start:le.Uint32(d[i*direntRow+4:])])
}

// view returns p as a string without copying it.
func view(p []byte) string { return unsafe.String(unsafe.SliceData(p), len(p)) }

// Lookup returns the inode that a directory has under a name.
func (v *View) Lookup(dir uint64, name string) (ino uint64, ok bool) {
	r, ok := v.typed(dir, syscall.S_IFDIR)
	if !ok {
		return 0, false
	}
	lo, end := int(r.a), int(r.a+r.b)
	for hi := end; lo < hi; {
		mid := int(uint(lo+hi) >> 1)
		if v.direntName(mid) < name {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == end || v.direntName(lo) != name {
		return 0, false
	}
	return uint64(v.direntIno(lo)), true
}

// ReadDir yields the entries of a directory, sorted by the bytes of their
// names, with their positions: the first has position 0. It begins with
// position from. The entries "." and ".." are not among them.
func (v *View) ReadDir(dir uint64, from int) iter.Seq2[int, Dirent] {
	return func(yield func(int, Dirent) bool) {
		r, ok := v.typed(dir, syscall.S_IFDIR)
		if !ok {
			return
		}
		for pos := max(from, 0); pos < int(r.b); pos++ {
			i := int(r.a) + pos
			ino := v.direntIno(i)
			mode := le.Uint32(v.secs[secInodes][int(ino-1)*inodeRow:])
			if !yield(pos, Dirent{v.direntName(i), uint64(ino), mode}) {
				return
			}
		}
	}
}

// Parent returns the directory that a directory stands in. The root is its own
// parent; what is no directory has parent 0.
func (v *View) Parent(dir uint64) uint64 {
	r, ok := v.typed(dir, syscall.S_IFDIR)
	if !ok {
		return 0
	}
	return uint64(r.size)
}

// Readlink returns the target of a symbolic link.
func (v *View) Readlink(ino uint64) (string, bool) {
	r, ok := v.typed(ino, syscall.S_IFLNK)
	if !ok {
		return "", false
	}
	return view(v.secs[secLinks][r.a:][:r.b]), true
}

// Xattrs yields the names and values of an inode's extended attributes, sorted
// by name.
func (v *View) Xattrs(ino uint64) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		r, ok := v.inode(ino)
		if !ok || r.xattrs == 0 {
			return
		}
		ends := v.secs[secXattrEnds]
		var start uint32
		if r.xattrs > 1 {
			start = le.Uint32(ends[(r.xattrs-2)*4:])
		}
		set := v.secs[secXattrs][start:le.Uint32(ends[(r.xattrs-1)*4:])]
		for len(set) > 0 {
			name, value, rest, _ := cutXattr(set)
			if !yield(view(name), value) {
				return
			}
			set = rest
		}
	}
}

// Xattr returns the value of an inode's extended attribute.
func (v *View) Xattr(ino uint64, name string) ([]byte, bool) {
	for n, value := range v.Xattrs(ino) {
		if n == name {
			return value, true
		}
	}
	return nil, false
}

// Extents yields the extents of a file that overlap the n bytes from off on, by
// rising Off. They are not clipped to that range.
func (v *View) Extents(ino uint64, off, n int64) iter.Seq[chunk.Extent] {
	return func(yield func(chunk.Extent) bool) {
		r, ok := v.typed(ino, syscall.S_IFREG)
		if !ok || n <= 0 {
			return
		}
		if off < 0 {
			n += off // can't overflow: the signs differ
			off = 0
		}
		rows := v.secs[secExtents][int(r.a)*extentRow:][:int(r.b)*extentRow]
		first := sort.Search(int(r.b), func(i int) bool {
			e := decodeExtent(rows[i*extentRow:])
			return e.Off+e.Len > off
		})
		for rows = rows[first*extentRow:]; len(rows) > 0; rows = rows[extentRow:] {
			e := decodeExtent(rows)
			if e.Off-off >= n || !yield(e) {
				return
			}
		}
	}
}

// NumChunks returns how many chunks the view's table has.
func (v *View) NumChunks() int { return v.rows(secChunks) }

// NumSpans returns how many spans the view's table has.
func (v *View) NumSpans() int { return v.rows(secSpans) }

// Chunk returns chunk number n and the number of the span that it comes from.
// The number must be below NumChunks, as those in extents are.
func (v *View) Chunk(n uint32) (ref chunk.Ref, span uint32) {
	c := decodeChunk(v.secs[secChunks][int(n)*chunkRow:])
	return c.Ref, c.Span
}

// Span returns span number n, which must be below NumSpans, with all its chunks
// and its window. It allocates.
func (v *View) Span(n uint32) chunk.Span {
	row := v.spanRow(n)
	s := v.span(row)
	if w := row.Window; w.Len > 0 && row.Seal == 0 {
		_, from := v.Chunk(w.Chunk)
		of := v.spanRow(from)
		s.Window = &chunk.Slice{
			Span: v.span(of),
			Part: int(w.Chunk - of.First),
			Off:  w.Off,
			Len:  w.Len,
		}
	}
	return s
}

func (v *View) spanRow(n uint32) SpanRow {
	return decodeSpan(v.secs[secSpans][int(n)*spanRow:])
}

// span is Span without the window, so that windows can't nest.
func (v *View) span(row SpanRow) chunk.Span {
	s := chunk.Span{
		Blob:  v.blobs[row.Blob],
		Off:   row.Off,
		Len:   row.Len,
		Codec: row.Codec,
		Start: row.Start,
		Parts: make([]chunk.Part, row.Count),
	}
	if row.Seal == 0 {
		s.Bits = row.Bits
	}
	for i := range s.Parts {
		c := decodeChunk(v.secs[secChunks][(int(row.First)+i)*chunkRow:])
		s.Parts[i] = chunk.Part{Ref: c.Ref, At: c.At}
	}
	return s
}

// Prefetch yields the spans that the image's builder wants to have fetched when
// the image is mounted, in the order in which he wants them.
func (v *View) Prefetch() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for p := v.secs[secPrefetch]; len(p) > 0; p = p[4:] {
			if !yield(le.Uint32(p)) {
				return
			}
		}
	}
}

var _ io.Closer = (*View)(nil)
