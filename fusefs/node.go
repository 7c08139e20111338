package fusefs

import (
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"graze/image"
)

const (
	// forever is how long the kernel may keep what it was told. The tree does
	// not change, so the kernel's own limits on memory are the only ones.
	forever = 365 * 24 * time.Hour

	// generation is that of every inode: numbers are never used again.
	generation = 1

	blockSize = 4096
	maxName   = 255
)

// A filesystem answers the kernel's requests. It embeds the answer ENOSYS for
// all that it does not define.
type filesystem struct {
	fuse.RawFileSystem
	tree   Tree
	files  Files
	ops    counters
	report reporter

	closing chan struct{} // closed when reads must end
	gate    sync.RWMutex  // held for reading by reads
	dead    func() bool   // reports whether the kernel has ended the connection
}

func newFilesystem(tree Tree, files Files, trace Trace) *filesystem {
	return &filesystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		tree:          tree,
		files:         files,
		report:        reporter{hook: trace.Failed},
		closing:       make(chan struct{}),
		dead:          func() bool { return false },
	}
}

// String implements fuse.RawFileSystem.
func (*filesystem) String() string { return fsName }

// Open and OpenDir make the kernel open files and directories by itself.
func (*filesystem) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status {
	return fuse.ENOSYS
}

func (*filesystem) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status {
	return fuse.ENOSYS
}

// Lookup finds a name in a directory. For a file handle whose inode the kernel
// has forgotten, it asks for "." in that inode, and for ".." in a directory.
func (f *filesystem) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	f.ops.lookups.Add(1)
	ino, ok := in.NodeId, true
	switch name {
	case ".":
	case "..":
		ino = f.tree.Parent(in.NodeId)
	default:
		if len(name) > maxName {
			return fuse.Status(unix.ENAMETOOLONG)
		}
		ino, ok = f.tree.Lookup(in.NodeId, name)
	}
	if !ok {
		// Node 0 is an entry that the kernel remembers as missing.
		out.SetEntryTimeout(forever)
		return fuse.OK
	}
	attr, ok := f.tree.Attr(ino)
	if !ok {
		return fuse.ENOENT
	}
	fillEntry(out, &attr)
	return fuse.OK
}

// GetAttr implements fuse.RawFileSystem.
func (f *filesystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	f.ops.getattrs.Add(1)
	attr, ok := f.tree.Attr(in.NodeId)
	if !ok {
		return fuse.Status(unix.ESTALE)
	}
	out.SetTimeout(forever)
	fillAttr(&out.Attr, &attr)
	return fuse.OK
}

// Readlink implements fuse.RawFileSystem.
func (f *filesystem) Readlink(_ <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	f.ops.readlinks.Add(1)
	target, ok := f.tree.Readlink(in.NodeId)
	if !ok {
		return nil, fuse.EINVAL
	}
	return []byte(target), fuse.OK
}

// StatFs reports a file system that is full with the image.
func (f *filesystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	f.ops.statfs.Add(1)
	t := f.tree.Totals()
	*out = fuse.StatfsOut{
		Blocks:  (uint64(t.Blocks)*512 + blockSize - 1) / blockSize,
		Files:   uint64(t.Inodes),
		Bsize:   blockSize,
		Frsize:  blockSize,
		NameLen: maxName,
	}
	return fuse.OK
}

// Ioctl answers as a file system without attributes of its own does. The
// kernel asks for them when a file is copied up to an overlay.
func (*filesystem) Ioctl(<-chan struct{}, *fuse.IoctlIn, []byte, *fuse.IoctlOut, []byte) fuse.Status {
	return fuse.Status(unix.ENOTTY)
}

func fillEntry(out *fuse.EntryOut, attr *image.Attr) {
	out.NodeId = attr.Ino
	out.Generation = generation
	out.SetEntryTimeout(forever)
	out.SetAttrTimeout(forever)
	fillAttr(&out.Attr, attr)
}

// fillAttr sets the attributes that stat(2) shows. An image has no other time
// than that of the last modification.
func fillAttr(out *fuse.Attr, attr *image.Attr) {
	*out = fuse.Attr{
		Ino:       attr.Ino,
		Size:      uint64(attr.Size),
		Blocks:    uint64(attr.Blocks),
		Atime:     uint64(attr.MTime.Sec),
		Mtime:     uint64(attr.MTime.Sec),
		Ctime:     uint64(attr.MTime.Sec),
		Atimensec: attr.MTime.Nsec,
		Mtimensec: attr.MTime.Nsec,
		Ctimensec: attr.MTime.Nsec,
		Mode:      attr.Mode,
		Nlink:     attr.NLink,
		Owner:     fuse.Owner{Uid: attr.UID, Gid: attr.GID},
		// FUSE has the 32 bits that the kernel takes from mknod(2), which cuts
		// the device number in the same way.
		Rdev:    uint32(unix.Mkdev(attr.Major, attr.Minor)),
		Blksize: blockSize,
	}
}
