package image

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"

	"graze/chunk"
)

// check goes once over all rows of a view, and fails on any that the methods of
// the view could stumble over. It fills in v.blobs and v.totals.
func (v *View) check() error {
	for _, f := range []func() error{
		v.checkBlobs, v.checkSpans, v.checkChunks, v.checkWindows, v.checkPrefetch,
		v.checkXattrs, v.checkInodes, v.checkDirents,
	} {
		if err := f(); err != nil {
			return err
		}
	}
	v.totals.Chunks = int64(v.NumChunks())
	v.totals.Spans = int64(v.NumSpans())
	return nil
}

func (v *View) checkBlobs() error {
	for p := v.secs[secBlobs]; len(p) > 0; {
		n := int(p[0])
		if n == 0 || n >= len(p) {
			return fmt.Errorf("blob %d has a digest of %d bytes, of which %d are there", len(v.blobs), n, len(p)-1)
		}
		v.blobs = append(v.blobs, chunk.Blob(p[1:n+1]))
		p = p[n+1:]
	}
	return nil
}

func (v *View) checkSpans() error {
	next := uint64(0)
	for i := range v.NumSpans() {
		s := v.spanRow(uint32(i))
		if err := s.check(len(v.blobs)); err != nil {
			return fmt.Errorf("span %d: %w", i, err)
		}
		if uint64(s.First) != next {
			return fmt.Errorf("span %d starts with chunk %d, not %d", i, s.First, next)
		}
		next += uint64(s.Count)
	}
	if next != uint64(v.NumChunks()) {
		return fmt.Errorf("spans of %d chunks, but there are %d", next, v.NumChunks())
	}
	return nil
}

// check returns an error if no span can look like this, whatever its chunks.
func (s *SpanRow) check(blobs int) error {
	if err := s.checkSeal(); err != nil {
		return err
	}
	decodes := cmp.Or(s.Seal, s.Codec)
	switch {
	case uint64(s.Blob) >= uint64(blobs):
		return fmt.Errorf("is of blob %d of %d", s.Blob, blobs)
	case s.Count == 0:
		return errors.New("has no chunk")
	case s.Codec == 0 || s.Codec > maxCodec:
		return fmt.Errorf("has unknown %s", s.Codec)
	case s.Bits > 7 || s.Bits > 0 && decodes != chunk.Deflate:
		return fmt.Errorf("with %s starts at bit %d", s.Codec, s.Bits)
	case s.Off < 0 || s.Len <= 0 || s.Len > math.MaxInt64-s.Off:
		return fmt.Errorf("has %d bytes at offset %d", s.Len, s.Off)
	case s.Start < 0:
		return fmt.Errorf("starts at decoded offset %d", s.Start)
	}
	w := s.Window
	switch {
	case w.Len == 0:
	case decodes != chunk.Deflate:
		return fmt.Errorf("with %s has a window", decodes)
	case w.Len < 0 || w.Len > MaxWindow || w.Off < 0:
		return fmt.Errorf("has a window of %d bytes at offset %d", w.Len, w.Off)
	}
	return nil
}

// checkSeal returns an error if the span can't be sealed like this.
func (s *SpanRow) checkSeal() error {
	switch {
	case s.Seal == 0 && s.Opened == 0:
	case s.Seal == 0 || s.Seal > maxCodec || s.Opened <= 0 || s.Opened > chunk.MaxSize:
		return fmt.Errorf("sealed by %s has %d bytes when it is opened", s.Seal, s.Opened)
	case s.Codec != chunk.Raw || s.Count != 1:
		return fmt.Errorf("is sealed, with %s and %d chunks", s.Codec, s.Count)
	}
	return nil
}

// readable returns how many bytes extents can refer to in the chunk c of span s.
func (s *SpanRow) readable(c *ChunkRow) int32 {
	if s.Seal != 0 {
		return s.Opened
	}
	return c.Size
}

// checkNext returns an error if chunk c of span s does not lie behind the one
// that ends at end in the span's decoded bytes. It returns where c ends.
func (c *ChunkRow) checkNext(s *SpanRow, end int64) (int64, error) {
	if err := c.Check(); err != nil {
		return 0, err
	}
	if c.At < end || c.At > math.MaxInt64-s.Start-int64(c.Size) {
		return 0, fmt.Errorf("chunk %s is at decoded offset %d of its span, after one that ends at %d", c.ID, c.At, end)
	}
	end = c.At + int64(c.Size)
	if s.Seal != 0 && end != s.Len {
		return 0, fmt.Errorf("chunk %s is not all of a sealed span of %d bytes", c.ID, s.Len)
	}
	if s.Codec == chunk.Raw && end > s.Len {
		return 0, fmt.Errorf("chunk %s ends at offset %d of a raw span of %d bytes", c.ID, end, s.Len)
	}
	return end, nil
}

// check returns an error if w is not within the chunk c of span s.
func (w *WindowRow) check(c *ChunkRow, s *SpanRow) error {
	if s.Window.Len != 0 {
		return fmt.Errorf("the window's own span %d has a window", c.Span)
	}
	if int64(w.Off)+int64(w.Len) > int64(c.Size) {
		return fmt.Errorf("window of %d bytes at offset %d of a chunk of %d", w.Len, w.Off, c.Size)
	}
	return nil
}

func (v *View) chunkRow(n uint32) ChunkRow {
	return decodeChunk(v.secs[secChunks][int(n)*chunkRow:])
}

func (v *View) checkChunks() error {
	for i := range v.NumSpans() {
		s := v.spanRow(uint32(i))
		var end int64
		for n := s.First; n < s.First+s.Count; n++ {
			c := v.chunkRow(n)
			if c.Span != uint32(i) {
				return fmt.Errorf("chunk %d of span %d names span %d", n, i, c.Span)
			}
			var err error
			if end, err = c.checkNext(&s, end); err != nil {
				return fmt.Errorf("span %d: %w", i, err)
			}
		}
	}
	return nil
}

func (v *View) checkWindows() error {
	for i := range v.NumSpans() {
		w := v.spanRow(uint32(i)).Window
		if w.Len == 0 {
			continue
		}
		if uint64(w.Chunk) >= uint64(v.NumChunks()) {
			return fmt.Errorf("span %d has a window in chunk %d of %d", i, w.Chunk, v.NumChunks())
		}
		c := v.chunkRow(w.Chunk)
		s := v.spanRow(c.Span)
		if err := w.check(&c, &s); err != nil {
			return fmt.Errorf("span %d: %w", i, err)
		}
	}
	return nil
}

func (v *View) checkPrefetch() error {
	for n := range v.Prefetch() {
		if uint64(n) >= uint64(v.NumSpans()) {
			return fmt.Errorf("prefetch of span %d of %d", n, v.NumSpans())
		}
	}
	return nil
}

// cutXattr cuts the first attribute off an encoded set.
func cutXattr(set []byte) (name, value, rest []byte, ok bool) {
	if len(set) < 5 {
		return nil, nil, nil, false
	}
	n, m := int(set[0]), uint64(le.Uint32(set[1:]))
	if n == 0 || m > MaxXattrValue || uint64(n)+m > uint64(len(set)-5) {
		return nil, nil, nil, false
	}
	set = set[5:]
	end := n + int(m)
	return set[:n:n], set[n:end:end], set[end:], true
}

func (v *View) checkXattrs() error {
	var start uint32
	for i := range v.rows(secXattrEnds) {
		end := le.Uint32(v.secs[secXattrEnds][i*4:])
		if end <= start || uint64(end) > uint64(len(v.secs[secXattrs])) {
			return fmt.Errorf("xattr set %d ends at %d after %d of %d", i, end, start, len(v.secs[secXattrs]))
		}
		var before []byte
		for set := v.secs[secXattrs][start:end]; len(set) > 0; {
			name, _, rest, ok := cutXattr(set)
			if !ok || bytes.Compare(before, name) >= 0 {
				return fmt.Errorf("xattr set %d is malformed", i)
			}
			before, set = name, rest
		}
		start = end
	}
	if uint64(start) != uint64(len(v.secs[secXattrs])) {
		return errors.New("bytes after the last xattr set")
	}
	return nil
}

// checkInodes checks the inodes, and that the rows they refer to in the other
// sections are all there and belong to one inode each.
func (v *View) checkInodes() error {
	var dirents, extents, links uint64
	t := &v.totals
	t.Inodes = int64(v.rows(secInodes))
	if root, ok := v.typed(RootIno, syscall.S_IFDIR); !ok || root.size != RootIno {
		return errors.New("inode 1 is no root directory")
	}
	for i := range v.rows(secInodes) {
		r := decodeInode(v.secs[secInodes][i*inodeRow:])
		if r.nsec >= 1e9 || uint64(r.xattrs) > uint64(v.rows(secXattrEnds)) || r.mode&^(syscall.S_IFMT|0o7777) != 0 {
			return fmt.Errorf("inode %d is malformed", i+1)
		}
		var run *uint64
		switch r.mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			run = &extents
			if r.size < 0 || r.size > MaxFileSize {
				return fmt.Errorf("inode %d has %d bytes", i+1, r.size)
			}
			t.addFile(r.size)
		case syscall.S_IFDIR:
			run = &dirents
			t.Dirs++
			t.Blocks += blocks(r.mode, dirSize)
		case syscall.S_IFLNK:
			run = &links
			t.Symlinks++
			t.Blocks += blocks(r.mode, int64(r.b))
			if r.b == 0 || r.b > MaxSymlink {
				return fmt.Errorf("inode %d is a symlink with a target of %d bytes", i+1, r.b)
			}
		case syscall.S_IFCHR, syscall.S_IFBLK, syscall.S_IFIFO, syscall.S_IFSOCK:
			continue
		default:
			return fmt.Errorf("inode %d has unknown mode %#o", i+1, r.mode)
		}
		if uint64(r.a) != *run {
			return fmt.Errorf("inode %d refers to row %d, not %d", i+1, r.a, *run)
		}
		*run += uint64(r.b)
	}
	if extents != uint64(v.rows(secExtents)) || dirents != uint64(v.rows(secDirents)) || links != uint64(len(v.secs[secLinks])) {
		return fmt.Errorf("inodes refer to %d extents, %d dirents and %d bytes of links, but there are %d, %d and %d",
			extents, dirents, links, v.rows(secExtents), v.rows(secDirents), len(v.secs[secLinks]))
	}
	t.Names = int64(dirents)
	return nil
}

// addFile counts a regular file. Sizes of sparse files may add up to more than
// can be counted.
func (t *Totals) addFile(size int64) {
	t.Files++
	if size > math.MaxInt64-t.Bytes {
		size = math.MaxInt64 - t.Bytes
	}
	t.Bytes += size
	t.Blocks += blocks(syscall.S_IFREG, size)
}

// checkDirents goes over all inodes once more, for what they contain.
func (v *View) checkDirents() error {
	var start uint32 // of the next name
	seen := uint32(RootIno)
	for i := range v.rows(secInodes) {
		r := decodeInode(v.secs[secInodes][i*inodeRow:])
		var err error
		switch r.mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			err = v.checkExtents(&r)
		case syscall.S_IFDIR:
			start, seen, err = v.checkDir(uint32(i+1), &r, start, seen)
		case syscall.S_IFLNK:
			if bytes.IndexByte(v.secs[secLinks][r.a:][:r.b], 0) >= 0 {
				err = errors.New("target of a symlink has a NUL")
			}
		}
		if err != nil {
			return fmt.Errorf("inode %d: %w", i+1, err)
		}
	}
	if uint64(seen) != uint64(v.rows(secInodes)) || uint64(start) != uint64(len(v.secs[secNames])) {
		return fmt.Errorf("dirents for %d inodes and %d bytes of names, but there are %d and %d",
			seen, start, v.rows(secInodes), len(v.secs[secNames]))
	}
	return nil
}

// checkDir checks the entries of the directory number ino, whose first name
// begins at start. Inodes are numbered in the order in which their first name
// stands in the dirents, and seen is the highest so far: so all are reachable,
// and a directory, which can have but one name, has its number above seen and
// above its parent's.
func (v *View) checkDir(ino uint32, r *inodeRec, start, seen uint32) (uint32, uint32, error) {
	names, before := v.secs[secNames], ""
	nlink := uint32(2)
	for i := int(r.a); i < int(r.a)+int(r.b); i++ {
		end := le.Uint32(v.secs[secDirents][i*direntRow+4:])
		if end < start || uint64(end) > uint64(len(names)) {
			return 0, 0, fmt.Errorf("name of dirent %d runs from %d to %d of %d", i, start, end, len(names))
		}
		name := view(names[start:end])
		if err := checkName(name); err != nil {
			return 0, 0, err
		}
		if name <= before {
			return 0, 0, fmt.Errorf("name %q comes after %q", name, before)
		}
		child := v.direntIno(i)
		c, ok := v.inode(uint64(child))
		if !ok || child > seen+1 || child == RootIno {
			return 0, 0, fmt.Errorf("dirent %q refers to inode %d after %d", name, child, seen)
		}
		if c.mode&syscall.S_IFMT == syscall.S_IFDIR {
			if child != seen+1 || c.size != int64(ino) {
				return 0, 0, fmt.Errorf("directory %q is inode %d after %d, with parent %d", name, child, seen, c.size)
			}
			nlink++
		}
		seen = max(seen, child)
		start, before = end, name
	}
	if r.nlink != nlink {
		return 0, 0, fmt.Errorf("directory has %d links, not %d", r.nlink, nlink)
	}
	return start, seen, nil
}

// checkName returns an error if no entry of a directory can be called name.
func checkName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("name %q is reserved", name)
	case len(name) > MaxName:
		return fmt.Errorf("name %.40q… has %d bytes, more than %d", name, len(name), MaxName)
	case strings.IndexByte(name, '/') >= 0 || strings.IndexByte(name, 0) >= 0:
		return fmt.Errorf("name %q has a slash or a NUL", name)
	}
	return nil
}

// checkExtent returns an error if e can't follow an extent that ends at end, in a
// file of size bytes. The chunk's size, when it is opened, is chunkSize.
func checkExtent(e chunk.Extent, end, size int64, chunkSize int32) error {
	switch {
	case e.Off < end:
		return fmt.Errorf("extent at offset %d is before the end of the last one, %d", e.Off, end)
	case e.Len <= 0 || e.Off > size || e.Len > size-e.Off:
		return fmt.Errorf("extent of %d bytes at offset %d of a file of %d", e.Len, e.Off, size)
	case e.At < 0 || e.Len > int64(chunkSize)-int64(e.At):
		return fmt.Errorf("extent of %d bytes at offset %d of a chunk of %d", e.Len, e.At, chunkSize)
	}
	return nil
}

func (v *View) checkExtents(r *inodeRec) error {
	var end int64
	for i := int(r.a); i < int(r.a)+int(r.b); i++ {
		e := decodeExtent(v.secs[secExtents][i*extentRow:])
		if uint64(e.Chunk) >= uint64(v.NumChunks()) {
			return fmt.Errorf("extent in chunk %d of %d", e.Chunk, v.NumChunks())
		}
		c := v.secs[secChunks][int(e.Chunk)*chunkRow:]
		size := int32(le.Uint32(c[40:]))
		if opened := v.opened(le.Uint32(c[44:])); opened > 0 {
			size = opened
		}
		if err := checkExtent(e, end, r.size, size); err != nil {
			return err
		}
		end = e.Off + e.Len
	}
	return nil
}
