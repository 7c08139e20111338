package fusefs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"graze/image"
)

// The offset of a directory entry is the position after it: . is at 0, .. at 1,
// and the tree's position n at n+2. So a reader can go on or go back to any
// offset that it has seen, without the server remembering it.
const firstEntry = 2

// ReadDir implements fuse.RawFileSystem.
func (f *filesystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	f.ops.readdirs.Add(1)
	return f.eachEntry(in, func(e fuse.DirEntry) bool {
		return out.AddDirEntry(e)
	})
}

// ReadDirPlus is ReadDir with a LOOKUP of each entry.
func (f *filesystem) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	f.ops.readdirs.Add(1)
	return f.eachEntry(in, func(e fuse.DirEntry) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		// An entry without a node is one that was not looked up, as those
		// for . and .. must be.
		if e.Off > firstEntry {
			if attr, ok := f.tree.Attr(e.Ino); ok {
				fillEntry(entry, &attr)
			}
		}
		return true
	})
}

// eachEntry calls add with the entries of a directory from the offset in the
// request on, until it returns false.
func (f *filesystem) eachEntry(in *fuse.ReadIn, add func(fuse.DirEntry) bool) fuse.Status {
	dir, ok := f.tree.Attr(in.NodeId)
	switch {
	case !ok:
		return fuse.Status(unix.ESTALE)
	case dir.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fuse.ENOTDIR
	case in.Offset > 1<<31:
		return fuse.OK // beyond the end of any directory
	}
	dots := [firstEntry]image.Dirent{
		{Name: ".", Ino: in.NodeId, Mode: unix.S_IFDIR},
		{Name: "..", Ino: f.tree.Parent(in.NodeId), Mode: unix.S_IFDIR},
	}
	from := int(in.Offset)
	for ; from < firstEntry; from++ {
		if !add(dirEntry(from, &dots[from])) {
			return fuse.OK
		}
	}
	for n, e := range f.tree.ReadDir(in.NodeId, from-firstEntry) {
		if !add(dirEntry(n+firstEntry, &e)) {
			break
		}
	}
	return fuse.OK
}

// dirEntry is the entry that stands at position n.
func dirEntry(n int, e *image.Dirent) fuse.DirEntry {
	return fuse.DirEntry{Name: e.Name, Ino: e.Ino, Mode: e.Mode, Off: uint64(n) + 1}
}
