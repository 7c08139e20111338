package disk

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The calls that a disk does not simply pass on. The rest is that of the folder.

// Lookup implements fuse.RawFileSystem.
func (d *Disk) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	s := d.RawFileSystem.Lookup(cancel, h, name, out)
	if s.Ok() {
		d.see(out.NodeId, name)
	}
	return s
}

// Open implements fuse.RawFileSystem.
func (d *Disk) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY && d.is(ReadOnly) {
		return fuse.EROFS
	}
	s := d.RawFileSystem.Open(cancel, in, out)
	if s.Ok() && d.isWeak(in.NodeId) {
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	}
	return s
}

// Create implements fuse.RawFileSystem.
func (d *Disk) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	s := d.RawFileSystem.Create(cancel, in, name, out)
	if s.Ok() {
		if d.see(out.NodeId, name); d.isWeak(out.NodeId) {
			out.OpenFlags |= fuse.FOPEN_DIRECT_IO
		}
	}
	return s
}

// Read implements fuse.RawFileSystem.
func (d *Disk) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if d.is(ReadErrors) && d.isWeak(in.NodeId) && unreadable(in.Offset, in.Size) {
		return nil, fuse.EIO
	}
	return d.RawFileSystem.Read(cancel, in, buf)
}

// Write implements fuse.RawFileSystem.
func (d *Disk) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if s := d.refuse(); !s.Ok() {
		return 0, s
	}
	return d.RawFileSystem.Write(cancel, in, data)
}

// Writev implements fuse.RawFileSystem.
func (d *Disk) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	if s := d.refuse(); !s.Ok() {
		return 0, s
	}
	return d.RawFileSystem.Writev(cancel, in, data)
}

// CopyFileRange implements fuse.RawFileSystem.
func (d *Disk) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	if s := d.refuse(); !s.Ok() {
		return 0, s
	}
	return d.RawFileSystem.CopyFileRange(cancel, in)
}

// Fallocate implements fuse.RawFileSystem.
func (d *Disk) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	return d.RawFileSystem.Fallocate(cancel, in)
}

// SetAttr implements fuse.RawFileSystem.
func (d *Disk) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	return d.RawFileSystem.SetAttr(cancel, in, out)
}

// Mknod implements fuse.RawFileSystem.
func (d *Disk) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	return d.RawFileSystem.Mknod(cancel, in, name, out)
}

// Mkdir implements fuse.RawFileSystem.
func (d *Disk) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	return d.RawFileSystem.Mkdir(cancel, in, name, out)
}

// Unlink implements fuse.RawFileSystem.
func (d *Disk) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	return d.RawFileSystem.Unlink(cancel, h, name)
}

// Rmdir implements fuse.RawFileSystem.
func (d *Disk) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	return d.RawFileSystem.Rmdir(cancel, h, name)
}

// Rename implements fuse.RawFileSystem.
func (d *Disk) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	return d.RawFileSystem.Rename(cancel, in, from, to)
}

// Link implements fuse.RawFileSystem.
func (d *Disk) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	return d.RawFileSystem.Link(cancel, in, name, out)
}

// Symlink implements fuse.RawFileSystem.
func (d *Disk) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	if s := d.refuse(); !s.Ok() {
		return s
	}
	return d.RawFileSystem.Symlink(cancel, h, target, name, out)
}
