package fusefs

import "github.com/hanwen/go-fuse/v2/fuse"

// GetXAttr copies the value of an attribute to dest. If dest is too small, it
// returns the size that is needed and ERANGE, which go-fuse makes into success
// for a caller who only asks for the size.
func (f *filesystem) GetXAttr(_ <-chan struct{}, in *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	f.ops.xattrs.Add(1)
	value, ok := f.tree.Xattr(in.NodeId, name)
	if !ok {
		return 0, fuse.ENOATTR
	}
	if len(value) > len(dest) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

// ListXAttr copies the names of a node's attributes to dest, each with a NUL
// after it, in the way of GetXAttr.
func (f *filesystem) ListXAttr(_ <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	f.ops.xattrs.Add(1)
	size := 0
	for name := range f.tree.Xattrs(in.NodeId) {
		end := size + len(name) + 1
		if end <= len(dest) {
			copy(dest[size:], name)
			dest[end-1] = 0
		}
		size = end
	}
	if size > len(dest) {
		return uint32(size), fuse.ERANGE
	}
	return uint32(size), fuse.OK
}
