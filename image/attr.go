package image

import (
	"encoding/json"
	"syscall"

	"graze/chunk"
)

// RootIno is the inode number of a view's root directory.
const RootIno = 1

// An Attr is what stat(2) reports of an inode.
type Attr struct {
	Ino    uint64
	Mode   uint32 // type and permission bits
	NLink  uint32
	UID    uint32
	GID    uint32
	Size   int64
	Blocks int64 // of 512 bytes
	MTime  Time
	Major  uint32 // of a device
	Minor  uint32
}

// A Dirent is one name in a directory.
type Dirent struct {
	Name string // points into the view: copy it to keep it longer than the view
	Ino  uint64
	Mode uint32 // of the inode: type and permission bits
}

// Totals sums up a view.
type Totals struct {
	Inodes   int64 // all of them, the root included
	Files    int64 // regular files
	Dirs     int64
	Symlinks int64
	Names    int64 // directory entries: hard links count each
	Bytes    int64 // sum of the sizes of the regular files
	Blocks   int64 // sum of the blocks of all inodes, of 512 bytes
	Chunks   int64
	Spans    int64
}

// An Info is what a view keeps about its making.
type Info struct {
	Layers []LayerInfo     `json:"layers,omitempty"`
	Extra  json.RawMessage `json:"extra,omitempty"` // of the caller; must be valid JSON
}

// A LayerInfo says which layer a view was made of, lowest first, and by which
// index.
type LayerInfo struct {
	Digest chunk.Blob `json:"digest"`
	Size   int64      `json:"size"`
	Format Format     `json:"format"`
	Index  string     `json:"index,omitempty"` // where the index came from
}

// The sizes that a directory and a symbolic link have on ext4, the file system
// that views imitate.
const (
	dirSize     = 4096
	blockSize   = 4096
	fastSymlink = 60 // targets shorter than this are kept in the inode
)

// blocks returns how many blocks of 512 bytes an inode takes on ext4.
func blocks(mode uint32, size int64) int64 {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		n := size / blockSize
		if size%blockSize != 0 {
			n++
		}
		return n * (blockSize / 512)
	case syscall.S_IFDIR:
		return dirSize / 512
	case syscall.S_IFLNK:
		if size >= fastSymlink {
			return blockSize / 512
		}
	}
	return 0
}
