package toc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"graze/chunk"
	"graze/image"
)

// Files at the root of the archive that tell a reader what to prefetch.
const (
	prefetchLandmark   = ".prefetch.landmark"    // what stands before it
	noPrefetchLandmark = ".no.prefetch.landmark" // nothing
)

// zeros is the type of a chunk that is a hole.
const zeros = "zeros"

// A row is an entry of the layer. Strings are in builder.text, so that a
// million rows are one object without pointers.
type row struct {
	name, link  text
	xattrs      uint32 // where the attributes stand in builder.text, 0 if there are none
	mode        uint32 // 0 for a hard link
	uid, gid    uint32
	sec         int64
	nsec        uint32
	first, more uint32 // of a file: its first chunk in file order, their count; of a device: its numbers
	size        int64
}

// A text is a string in builder.text.
type text struct{ off, n uint32 }

// A builder collects the entries of a TOC, checks each by itself and, in
// finish, all together.
type builder struct {
	cfg   Config
	text  strings.Builder
	rows  []row
	names nameTable

	// The chunks in file order, and the offset of the member of each.
	chunks []image.ChunkRow
	offs   []int64

	holes []hole // in file order

	// hidden are the offsets of members that are never read: of files that are no
	// entries, and of zeros.
	hidden []int64

	landmark   piece // of the prefetch landmark
	prefetch   bool  // there is a landmark
	noPrefetch bool

	// file is the regular file whose chunks are being added.
	file struct {
		name   string
		hidden bool
		size   int64
		next   int64 // where its next chunk must start
		zeros  int64 // bytes before that which no chunk holds
	}
}

// A hole is what a file has of zeros before a chunk.
type hole struct {
	chunk uint32 // in file order
	size  int64
}

// A piece is where a chunk stands in the layer.
type piece struct{ off, inner int64 }

func newBuilder(cfg Config) *builder {
	b := &builder{cfg: cfg}
	b.text.WriteByte(0) // so that no text starts at 0
	b.names.init(b)
	return b
}

// add adds the next entry of the TOC.
func (b *builder) add(e *entry) error {
	if e.Type == "chunk" {
		if e.Name != b.file.name || b.file.next == b.file.size {
			return errors.New("chunk doesn't follow the rest of its file")
		}
		return b.addChunk(e)
	}
	if err := b.endFile(); err != nil {
		return err
	}
	if e.Name == "" || strings.IndexByte(e.Name, 0) >= 0 {
		return errors.New("name is empty or has a NUL")
	}
	if e.Size < 0 {
		return fmt.Errorf("size %d", e.Size)
	}
	hidden := e.Type == "reg" && !b.cfg.Archive && b.meta(e)
	if !hidden {
		if err := b.addRow(e); err != nil {
			return err
		}
	}
	if e.Type != "reg" || e.Size == 0 {
		return nil
	}
	b.file.name, b.file.hidden, b.file.size, b.file.next, b.file.zeros = e.Name, hidden, e.Size, 0, 0
	return b.addChunk(e)
}

// meta reports whether the regular file e belongs to the format and not to the
// image, and takes note of it if so.
func (b *builder) meta(e *entry) bool {
	switch cleanName(e.Name) {
	case prefetchLandmark:
		b.prefetch = true
		b.landmark = piece{e.Offset, e.InnerOffset}
	case noPrefetchLandmark:
		b.noPrefetch = true
	case Name:
	default:
		return false
	}
	return true
}

// endFile checks that the last regular file is complete.
func (b *builder) endFile() error {
	if f := &b.file; f.next != f.size {
		return fmt.Errorf("chunks of %.200q end at %d of %d bytes", f.name, f.next, f.size)
	}
	return nil
}

// addRow adds all of e but its chunks.
func (b *builder) addRow(e *entry) error {
	r := row{uid: uint32(e.UID), gid: uint32(e.GID)}
	switch {
	case e.UID < 0 || e.UID > math.MaxUint32:
		return fmt.Errorf("uid %d", e.UID)
	case e.GID < 0 || e.GID > math.MaxUint32:
		return fmt.Errorf("gid %d", e.GID)
	}
	var err error
	if err = b.setType(&r, e); err != nil {
		return err
	}
	if r.sec, r.nsec, err = parseTime(e.ModTime); err != nil {
		return err
	}
	if r.name, err = b.addText(e.Name); err != nil {
		return err
	}
	if len(e.Xattrs) > 0 {
		if r.xattrs, err = b.addXattrs(e.Xattrs); err != nil {
			return err
		}
	}
	b.rows = append(b.rows, r)
	if !b.cfg.Archive && !b.names.insert(uint32(len(b.rows)-1)) {
		return errors.New("a second entry of this name")
	}
	return nil
}

// setType sets the mode of r, and what only some types have.
func (b *builder) setType(r *row, e *entry) (err error) {
	var kind uint32
	switch e.Type {
	case "dir":
		kind = syscall.S_IFDIR
	case "reg":
		kind = syscall.S_IFREG
		r.size = e.Size
		r.first = uint32(len(b.chunks))
	case "symlink", "hardlink":
		if e.LinkName == "" || strings.IndexByte(e.LinkName, 0) >= 0 {
			return errors.New("link target is empty or has a NUL")
		}
		if r.link, err = b.addText(e.LinkName); err != nil || e.Type == "hardlink" {
			return err
		}
		kind = syscall.S_IFLNK
	case "fifo":
		kind = syscall.S_IFIFO
	case "char", "block":
		kind = syscall.S_IFCHR
		if e.Type == "block" {
			kind = syscall.S_IFBLK
		}
		if e.DevMajor < 0 || e.DevMajor > math.MaxUint32 || e.DevMinor < 0 || e.DevMinor > math.MaxUint32 {
			return fmt.Errorf("device %d:%d", e.DevMajor, e.DevMinor)
		}
		r.first, r.more = uint32(e.DevMajor), uint32(e.DevMinor)
	default:
		return fmt.Errorf("type %.40q", e.Type)
	}
	// The bits of a tar header are those of stat(2); some archives set the
	// type's bits too.
	r.mode = kind | uint32(e.Mode&0o7777)
	return nil
}

// addChunk adds the chunk that e, an entry of the current file, describes.
func (b *builder) addChunk(e *entry) error {
	f := &b.file
	size := e.ChunkSize
	if size == 0 {
		size = f.size - e.ChunkOffset
	}
	switch {
	case e.ChunkOffset != f.next:
		return fmt.Errorf("chunk at %d of the file, where %d is next", e.ChunkOffset, f.next)
	case size <= 0 || size > f.size-f.next:
		return fmt.Errorf("chunk of %d bytes at %d in a file of %d bytes", size, f.next, f.size)
	case e.Offset < 0 || e.Offset >= b.cfg.End:
		return fmt.Errorf("chunk at %d of the layer, whose payload ends at %d", e.Offset, b.cfg.End)
	case e.InnerOffset < 0 || e.InnerOffset > math.MaxInt64-size:
		return fmt.Errorf("chunk at %d of its member", e.InnerOffset)
	case e.ChunkType != "" && e.ChunkType != zeros:
		return fmt.Errorf("%w: chunk of the type %.40q", ErrUnsupported, e.ChunkType)
	}
	f.next += size
	if f.hidden || e.ChunkType == zeros {
		b.hidden = append(b.hidden, e.Offset)
		f.zeros += size
		return nil
	}
	if f.zeros > 0 {
		b.holes = append(b.holes, hole{uint32(len(b.chunks)), f.zeros})
		f.zeros = 0
	}
	if size > chunk.MaxSize {
		return fmt.Errorf("%w: chunk of %d bytes, more than %d", ErrUnsupported, size, chunk.MaxSize)
	}
	digest := e.ChunkDigest
	if digest == "" && size == f.size {
		digest = e.Digest
	}
	if digest == "" {
		return fmt.Errorf("%w: chunk at %d of the file has no digest", ErrUnsupported, e.ChunkOffset)
	}
	id, err := chunk.ParseID(digest)
	if err != nil {
		return err
	}
	b.chunks = append(b.chunks, image.ChunkRow{Ref: chunk.Ref{ID: id, Size: int32(size)}, At: e.InnerOffset})
	b.offs = append(b.offs, e.Offset)
	b.rows[len(b.rows)-1].more++
	return nil
}

// addText keeps s.
func (b *builder) addText(s string) (text, error) {
	off := b.text.Len()
	if off+len(s) > math.MaxUint32 {
		return text{}, fmt.Errorf("%w: names of more than 4 GiB", ErrUnsupported)
	}
	b.text.WriteString(s)
	return text{uint32(off), uint32(len(s))}, nil
}

// addXattrs keeps the attributes by rising name: their count, and for each the
// name and the value, each after its length.
func (b *builder) addXattrs(attrs map[string][]byte) (uint32, error) {
	buf := binary.LittleEndian.AppendUint32(nil, uint32(len(attrs)))
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		if name == "" || strings.IndexByte(name, 0) >= 0 {
			return 0, errors.New("extended attribute whose name is empty or has a NUL")
		}
		buf = binary.LittleEndian.AppendUint32(buf, uint32(len(name)))
		buf = append(buf, name...)
		buf = binary.LittleEndian.AppendUint32(buf, uint32(len(attrs[name])))
		buf = append(buf, attrs[name]...)
	}
	t, err := b.addText(string(buf))
	return t.off, err
}

// parseTime parses a modification time. None is the epoch.
func parseTime(s string) (sec int64, nsec uint32, err error) {
	if s == "" {
		return 0, 0, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return 0, 0, fmt.Errorf("modification time: %w", err)
	}
	return t.Unix(), uint32(t.Nanosecond()), nil
}
