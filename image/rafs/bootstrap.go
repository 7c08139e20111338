package rafs

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"graze/chunk"
	"graze/image"
)

// Why an image can't be opened. Test for them with errors.Is.
var (
	// ErrNotRAFS: the bytes are no bootstrap of version 5 or 6.
	ErrNotRAFS = errors.New("not a RAFS bootstrap")
	// ErrEncrypted: the image's chunks are encrypted.
	ErrEncrypted = errors.New("encrypted RAFS images are not supported")
	// ErrUnsupported: the image is well formed, but uses what is not supported.
	ErrUnsupported = errors.New("unsupported RAFS image")
	// ErrNoDigest: no digest covers a chunk, so that its bytes could not be
	// verified.
	ErrNoDigest = errors.New("RAFS image has chunks without digests")
)

var le = binary.LittleEndian

// A Bootstrap is the parsed metadata of an image: the tree, and which chunks of
// which blobs hold the bytes of its files. It is immutable and safe for
// concurrent use, and refers to the bytes that it was parsed from.
type Bootstrap struct {
	version   int
	flags     uint64
	compress  compressor // of chunks
	digest    chunk.Algorithm
	chunkSize uint32
	blobs     []blob
	tree      tree
	prefetch  []uint64 // numbers of inodes

	// The most names and chunks that the bytes have room for. What refers to the
	// same bytes again and again would have more.
	maxNames, maxChunks int
}

// A tree is the file system in a bootstrap, as the two versions have it. Inodes
// are told by numbers that only the tree itself can interpret.
type tree interface {
	root() uint64
	// inode returns an inode. Its number may be any.
	inode(num uint64) (inode, error)
	// children calls yield for the names in a directory, by rising name, without
	// "." and "..". An error of yield ends it.
	children(dir *inode, yield func(name string, num uint64) error) error
	// xattrs appends the extended attributes of an inode to list. Their values
	// point into the bootstrap.
	xattrs(in *inode, list []image.Xattr) ([]image.Xattr, error)
	// chunk returns chunk number i, below in.chunks, of a regular file.
	chunk(in *inode, i int) (fileChunk, error)
	// record returns the record of a chunk: where it is, and by which digest it is
	// known. It is nil if the bootstrap has none.
	record(c *fileChunk) []byte
}

// An inode is one of a bootstrap.
type inode struct {
	num      uint64
	ino      uint64 // names of one file have the same
	mode     uint32
	uid, gid uint32
	nlink    uint32
	rdev     uint32
	size     int64
	mtime    image.Time
	link     string // target of a symbolic link
	chunks   int    // of a regular file

	attrs []byte // the extended attributes as they are encoded
	refs  []byte // the chunks as they are encoded

	// Where the names of a directory are: of version 5 in the table, of version 6
	// in two stretches of the file.
	first, count uint32
	names, tail  []byte
}

// A fileChunk is a stretch of a file.
type fileChunk struct {
	off   int64 // in the file
	size  uint32
	blob  uint32 // number of the blob
	index uint32 // of the chunk in the blob
	start uint64 // of the chunk in the unpacked blob; for images that have nothing but this
	row   []byte // of version 5: its record
}

// A chunkRecord is a row of 80 bytes that says all about a chunk.
type chunkRecord struct {
	digest       [chunk.SumSize]byte
	blob, index  uint32
	flags        uint32
	csize, usize uint32
	coff, uoff   uint64
	fileOff      uint64 // of version 5
}

const chunkRecordSize = 80

func decodeRecord(p []byte) chunkRecord {
	p = p[:chunkRecordSize]
	return chunkRecord{
		digest:  [chunk.SumSize]byte(p),
		blob:    le.Uint32(p[32:]),
		flags:   le.Uint32(p[36:]),
		csize:   le.Uint32(p[40:]),
		usize:   le.Uint32(p[44:]),
		coff:    le.Uint64(p[48:]),
		uoff:    le.Uint64(p[56:]),
		fileOff: le.Uint64(p[64:]),
		index:   le.Uint32(p[72:]),
	}
}

// A blob is a row of the table of blobs.
type blob struct {
	id         string // hexadecimal digits of a SHA-256, as a rule
	features   uint32
	compress   compressor // of chunks
	digest     chunk.Algorithm
	chunkCount uint32
	info       infoPlace // of its chunk information; version 6 only

	tocDigest  [chunk.SumSize]byte // zero if the bootstrap has none
	tocSize    uint32
	metaDigest [chunk.SumSize]byte // names the blob that has the meta, if that is another
}

// An infoPlace is where the chunk information of a blob is.
type infoPlace struct {
	compress     compressor
	off          uint64
	csize, usize uint64
}

// Parse reads a bootstrap. All that is reached from its root is checked when it
// is used; Parse checks the headers and tables. The bytes must not be changed as
// long as the result is in use.
func Parse(p []byte) (*Bootstrap, error) {
	switch {
	case len(p) >= sb5Size && le.Uint32(p) == magic5:
		return parse5(p)
	case len(p) >= ext6Off+ext6Size && le.Uint32(p[sb6Off:]) == magic6:
		return parse6(p)
	}
	return nil, ErrNotRAFS
}

// Format returns the format by its version.
func (b *Bootstrap) Format() image.Format {
	if b.version == 5 {
		return image.RAFSv5
	}
	return image.RAFSv6
}

// setFlags takes over what the flags of the superblock say.
func (b *Bootstrap) setFlags(flags uint64) (err error) {
	if err := checkFlags(flags); err != nil {
		return err
	}
	b.flags = flags
	if b.compress, err = compressorOf(flags); err != nil {
		return err
	}
	b.digest, err = algorithmOf(flags)
	return err
}

// minChunk is the least size of chunks in bytes.
const minChunk = 4 << 10

// setChunkSize takes over the size of chunks.
func (b *Bootstrap) setChunkSize(n uint32) error {
	if n < minChunk || n > chunk.MaxSize || n&(n-1) != 0 {
		return fmt.Errorf("%w: chunks of %d bytes", chunk.ErrCorrupt, n)
	}
	b.chunkSize = n
	return nil
}

// ref returns the name of blob n, which there must be.
func (b *Bootstrap) ref(n uint32) (chunk.Blob, error) {
	id := b.blobs[n].id
	if len(id) != 64 || strings.Trim(id, "0123456789abcdef") != "" {
		return "", fmt.Errorf("%w: blob %.80q is not named by a SHA-256", ErrUnsupported, id)
	}
	return chunk.Blob("sha256:" + id), nil
}

// metaRef returns the name of the blob that has the meta of blob n: another one,
// if the blob is a layer as the registry has it anyway.
func (b *Bootstrap) metaRef(n uint32) (chunk.Blob, error) {
	if b.blobs[n].features&featureSeparate == 0 {
		return b.ref(n)
	}
	if b.blobs[n].metaDigest == [chunk.SumSize]byte{} {
		return "", fmt.Errorf("%w: blob %d has its meta elsewhere, but nothing says where", chunk.ErrCorrupt, n)
	}
	return chunk.Blob("sha256:" + hex.EncodeToString(b.blobs[n].metaDigest[:])), nil
}

// cut returns n bytes of p from off on.
func cut(p []byte, off, n uint64) ([]byte, error) {
	if off > uint64(len(p)) || n > uint64(len(p))-off {
		return nil, fmt.Errorf("%w: bytes %d+%d of a bootstrap of %d", chunk.ErrCorrupt, off, n, len(p))
	}
	return p[off : off+n : off+n], nil
}

// align8 rounds up to whole words.
func align8(n uint64) uint64 { return (n + 7) &^ 7 }
