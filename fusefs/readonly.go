package fusefs

import "github.com/hanwen/go-fuse/v2/fuse"

// The kernel refuses to change anything on a read-only mount. These are for a
// mount that root has made writable with mount -o remount,rw.

func (*filesystem) SetAttr(<-chan struct{}, *fuse.SetAttrIn, *fuse.AttrOut) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Mknod(<-chan struct{}, *fuse.MknodIn, string, *fuse.EntryOut) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Mkdir(<-chan struct{}, *fuse.MkdirIn, string, *fuse.EntryOut) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Unlink(<-chan struct{}, *fuse.InHeader, string) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Rmdir(<-chan struct{}, *fuse.InHeader, string) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Rename(<-chan struct{}, *fuse.RenameIn, string, string) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Link(<-chan struct{}, *fuse.LinkIn, string, *fuse.EntryOut) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Symlink(<-chan struct{}, *fuse.InHeader, string, string, *fuse.EntryOut) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) SetXAttr(<-chan struct{}, *fuse.SetXAttrIn, string, []byte) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) RemoveXAttr(<-chan struct{}, *fuse.InHeader, string) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Create(<-chan struct{}, *fuse.CreateIn, string, *fuse.CreateOut) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Tmpfile(<-chan struct{}, *fuse.CreateIn, *fuse.CreateOut) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) Write(<-chan struct{}, *fuse.WriteIn, []byte) (uint32, fuse.Status) {
	return 0, fuse.EROFS
}

func (*filesystem) Writev(<-chan struct{}, *fuse.WriteIn, [][]byte) (uint32, fuse.Status) {
	return 0, fuse.EROFS
}

func (*filesystem) Fallocate(<-chan struct{}, *fuse.FallocateIn) fuse.Status {
	return fuse.EROFS
}

func (*filesystem) CopyFileRange(<-chan struct{}, *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	return 0, fuse.EROFS
}
