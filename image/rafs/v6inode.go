package rafs

import (
	"fmt"
	"strings"
	"syscall"

	"graze/chunk"
	"graze/image"
)

// How the data of an inode of version 6 is laid out.
const (
	layoutPlain  = 0 // in whole blocks
	layoutInline = 2 // in whole blocks, and the rest behind the inode
	layoutChunks = 4

	slot6         = 32
	compact6Size  = 32
	extended6Size = 64
	maxLink6      = 4096
	chunkIndexes  = 0x20 // in the format of a file of chunks: it has 8 bytes for each
)

func (t *tree6) root() uint64 { return t.rootNum }

func (t *tree6) inode(num uint64) (in inode, err error) {
	if num > uint64(len(t.p))/slot6 {
		return in, fmt.Errorf("%w: inode %d in a bootstrap of %d bytes", chunk.ErrCorrupt, num, len(t.p))
	}
	off := t.meta + num*slot6
	head, err := cut(t.p, off, compact6Size)
	if err != nil {
		return in, fmt.Errorf("inode %d: %w", num, err)
	}
	format := le.Uint16(head)
	size := uint64(compact6Size)
	if format&1 != 0 {
		if head, err = cut(t.p, off, extended6Size); err != nil {
			return in, fmt.Errorf("inode %d: %w", num, err)
		}
		size = extended6Size
		in = extended6(head)
	} else {
		in = compact6(head)
	}
	in.num = num
	if icount := le.Uint16(head[2:]); icount > 0 {
		n := 12 + 4*uint64(icount-1)
		if in.attrs, err = cut(t.p, off+size, n); err != nil {
			return in, fmt.Errorf("inode %d: %w", num, err)
		}
		size += n
	}
	if err := t.data(&in, format>>1, le.Uint32(head[16:]), off, size); err != nil {
		return in, fmt.Errorf("inode %d: %w", num, err)
	}
	return in, nil
}

// compact6 decodes a short inode, which has no time.
func compact6(p []byte) inode {
	return inode{
		mode:  uint32(le.Uint16(p[4:])),
		nlink: uint32(le.Uint16(p[6:])),
		size:  int64(le.Uint32(p[8:])),
		ino:   uint64(le.Uint32(p[20:])),
		uid:   uint32(le.Uint16(p[24:])),
		gid:   uint32(le.Uint16(p[26:])),
	}
}

// extended6 decodes a long inode.
func extended6(p []byte) inode {
	return inode{
		mode:  uint32(le.Uint16(p[4:])),
		size:  int64(le.Uint64(p[8:])),
		ino:   uint64(le.Uint32(p[20:])),
		uid:   le.Uint32(p[24:]),
		gid:   le.Uint32(p[28:]),
		mtime: image.Time{Sec: int64(le.Uint64(p[32:])), Nsec: le.Uint32(p[40:])},
		nlink: le.Uint32(p[44:]),
	}
}

// data finds what an inode at off, of n bytes with its attributes, has for data.
// u is the field whose meaning depends on the kind of inode.
func (t *tree6) data(in *inode, layout uint16, u uint32, off, n uint64) (err error) {
	if in.size < 0 || in.size > image.MaxFileSize {
		return fmt.Errorf("%w: size %d", chunk.ErrCorrupt, in.size)
	}
	switch in.mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		in.names, in.tail, err = t.flat(in, layout, u, off+n)
	case syscall.S_IFLNK:
		if in.size == 0 || in.size > maxLink6 {
			return fmt.Errorf("%w: symbolic link of %d bytes", chunk.ErrCorrupt, in.size)
		}
		var head, tail []byte
		head, tail, err = t.flat(in, layout, u, off+n)
		in.link = string(head) + string(tail)
	case syscall.S_IFREG:
		return t.chunkRefs(in, layout, u, off+align8(n))
	default:
		in.rdev = u
	}
	return err
}

// flat returns the data that is in the bootstrap itself: whole blocks, and what
// follows the inode, at end.
func (t *tree6) flat(in *inode, layout uint16, u uint32, end uint64) (head, tail []byte, err error) {
	n := uint64(in.size)
	rest := uint64(0)
	switch layout {
	case layoutPlain:
	case layoutInline:
		rest = n & (1<<t.bits - 1)
	default:
		return nil, nil, fmt.Errorf("%w: mode %#o with data of layout %d", chunk.ErrCorrupt, in.mode, layout)
	}
	if n > rest {
		if head, err = cut(t.p, uint64(u)<<t.bits, n-rest); err != nil {
			return nil, nil, err
		}
	}
	tail, err = cut(t.p, end, rest)
	return head, tail, err
}

// chunkRefs finds the list of a file's chunks at off. There are as many as the
// size of chunks in the superblock makes; the one in u may say otherwise.
func (t *tree6) chunkRefs(in *inode, layout uint16, u uint32, off uint64) (err error) {
	if in.size == 0 {
		return nil
	}
	if layout != layoutChunks || u&chunkIndexes == 0 {
		return fmt.Errorf("%w: file of %d bytes with data of layout %d, format %#x", chunk.ErrCorrupt, in.size, layout, u)
	}
	n := (uint64(in.size) + uint64(t.chunkSize) - 1) / uint64(t.chunkSize)
	if n > uint64(len(t.p))/chunkRef6Size {
		return fmt.Errorf("%w: file of %d chunks in a bootstrap of %d bytes", chunk.ErrCorrupt, n, len(t.p))
	}
	in.chunks = int(n)
	in.refs, err = cut(t.p, off, n*chunkRef6Size)
	return err
}

func (t *tree6) chunk(in *inode, i int) (fileChunk, error) {
	row := in.refs[i*chunkRef6Size:][:chunkRef6Size]
	lo, hi, block := le.Uint16(row), le.Uint16(row[2:]), le.Uint32(row[4:])
	device := uint32(hi & 0xff)
	if device == 0 || device > t.blobs {
		return fileChunk{}, fmt.Errorf("%w: chunk on device %d of %d", chunk.ErrCorrupt, device, t.blobs)
	}
	off := int64(i) * int64(t.chunkSize)
	return fileChunk{
		off:   off,
		size:  uint32(min(int64(t.chunkSize), in.size-off)),
		blob:  device - 1,
		index: uint32(hi>>8)<<16 | uint32(lo),
		start: uint64(block) << t.bits,
	}, nil
}

// children reads the blocks of a directory.
func (t *tree6) children(dir *inode, yield func(string, uint64) error) error {
	block := 1 << t.bits
	for p := dir.names; len(p) > 0; p = p[min(block, len(p)):] {
		if err := dirBlock(p[:min(block, len(p))], yield); err != nil {
			return err
		}
	}
	return dirBlock(dir.tail, yield)
}

// dirBlock reads one block of a directory: rows, and then their names.
func dirBlock(p []byte, yield func(string, uint64) error) error {
	if len(p) == 0 {
		return nil
	}
	errBlock := fmt.Errorf("%w: block of a directory with %d bytes", chunk.ErrCorrupt, len(p))
	if len(p) < dirent6Size {
		return errBlock
	}
	start := int(le.Uint16(p[8:]))
	if start < dirent6Size || start%dirent6Size != 0 || start > len(p) {
		return errBlock
	}
	for row := 0; row < start; row += dirent6Size {
		from, to := int(le.Uint16(p[row+8:])), len(p)
		last := row+dirent6Size == start
		if !last {
			to = int(le.Uint16(p[row+dirent6Size+8:]))
		}
		if from < start || to > len(p) || from > to {
			return errBlock
		}
		name := string(p[from:to])
		if last {
			name, _, _ = strings.Cut(name, "\x00") // padded to the block's end
		}
		if name == "." || name == ".." {
			continue
		}
		if err := yield(name, le.Uint64(p[row:])); err != nil {
			return err
		}
	}
	return nil
}

// prefixes6 are the beginnings of the names of extended attributes, by number.
var prefixes6 = [...]string{1: "user.", 2: "system.posix_acl_access", 3: "system.posix_acl_default", 4: "trusted.", 6: "security."}

func (t *tree6) xattrs(in *inode, list []image.Xattr) ([]image.Xattr, error) {
	if len(in.attrs) == 0 {
		return list, nil
	}
	if shared := in.attrs[4]; shared != 0 {
		return nil, fmt.Errorf("%w: %d shared extended attributes", ErrUnsupported, shared)
	}
	for p := in.attrs[12:]; len(p) >= 4; {
		n, index, size := int(p[0]), int(p[1]), int(le.Uint16(p[2:]))
		if n == 0 && index == 0 && size == 0 {
			break // padding
		}
		if index >= len(prefixes6) || prefixes6[index] == "" || n+size > len(p)-4 {
			return nil, fmt.Errorf("%w: extended attribute of kind %d with %d and %d bytes", chunk.ErrCorrupt, index, n, size)
		}
		value := p[4+n:][:size:size]
		list = append(list, image.Xattr{Name: prefixes6[index] + string(p[4:4+n]), Value: value})
		p = p[min(4+(n+size+3)&^3, len(p)):]
	}
	return list, nil
}
