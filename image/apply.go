package image

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strings"
	"syscall"
)

// Names by which layers say what is to be hidden (OCI image specification,
// "Whiteouts"). Other names that begin with aufs are that file system's own
// files; no view shows them, but hard links may lead to them.
const (
	whiteout = ".wh."                       // and the name in the layers below
	aufs     = whiteout + whiteout          // and anything
	opaque   = whiteout + whiteout + ".opq" // all names in this directory in the layers below
)

// An applier unpacks the entries of one layer into a directory of its own, as
// containerd does before overlayfs lays it over the layers below.
type applier struct {
	*tree
	upper uint32 // the layer's own root
	base  uint32 // the root of all layers below, 0 for the lowest layer
	table *Table // of the layer
	shift uint32 // what to add to the numbers of chunks

	// The path that mkdirs was last called with and where it leads to, because
	// neighbours in an archive mostly have the same parent. lastDir is 0 after a
	// name, which the path might lead through, was given another inode.
	lastPath string
	lastDir  uint32
}

// apply unpacks one entry.
func (a *applier) apply(e *Entry) error {
	if strings.IndexByte(e.Name, 0) >= 0 {
		return errors.New("name has a NUL")
	}
	// Leading ".." are left over, which lead from the root to the root.
	dir, base := path.Split(path.Clean(e.Name))
	if base == "" || base == "." || base == ".." {
		return a.root(e)
	}
	parent, err := a.mkdirs(dir)
	if err != nil {
		return err
	}
	switch name, isWhiteout := strings.CutPrefix(base, whiteout); {
	case base == opaque:
		a.inodes.at(parent).b = isOpaque
		return nil
	case isWhiteout && !strings.HasPrefix(base, aufs):
		return a.hide(parent, name)
	case e.Hardlink:
		return a.link(parent, base, e.Link)
	}
	return a.create(parent, base, e)
}

// root applies an entry that names the root. Containerd leaves it out: what
// overlayfs shows as root is a directory made by the snapshotter. Its time would
// be that of the unpacking, for which the image's is the better one.
func (a *applier) root(e *Entry) error {
	if e.Hardlink || e.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return nil
	}
	sec, nsec, err := boundTime(e.MTime)
	if err != nil {
		return err
	}
	n := a.inodes.at(a.upper)
	n.sec, n.nsec = sec, nsec
	return nil
}

// mkdirs returns the directory that a path in the layer leads to. It makes
// those that are missing, like those of the layers below if they have them.
func (a *applier) mkdirs(dir string) (uint32, error) {
	if a.lastDir != 0 && dir == a.lastPath {
		return a.lastDir, nil
	}
	c := newCursor(a.tree, a.upper)
	var below *cursor // stands in the layers below where the next directory is made
	err := c.walk(dir, func(name string) (uint32, error) {
		e, err := a.dirent(c.dir(), name)
		if err != nil {
			return 0, err
		}
		if below == nil {
			below = a.below(c.path)
		}
		n := node{mode: syscall.S_IFDIR | 0o755}
		if a.descend(below, e) {
			n = *a.inodes.at(below.dir())
			n.a, n.b = 0, 0
		}
		ino, err := a.inode(n)
		a.dirents.at(e).ino = ino
		return e, err
	})
	if err != nil {
		return 0, err
	}
	// The entry that dir is part of is valid only now.
	a.lastPath, a.lastDir = strings.Clone(dir), c.dir()
	return a.lastDir, nil
}

// below returns a cursor that stands where the dirents of path lead to in the
// layers below. Its root is 0 if they lead nowhere.
func (a *applier) below(path []uint32) *cursor {
	c := newCursor(a.tree, a.base)
	for _, e := range path {
		a.descend(c, e)
	}
	return c
}

// descend moves c, a cursor in the layers below, to the directory that the
// dirent e of the layer itself names. It reports whether there is one.
func (a *applier) descend(c *cursor, e uint32) bool {
	d := a.dirents.at(e)
	if c.root == 0 || d.hide || c.walk(view(a.name(d)), notFound) != nil {
		c.root = 0
	}
	return c.root != 0
}

// replace gives the name of a dirent another inode, or none.
func (a *applier) replace(d *dirent, ino uint32) {
	if d.ino != 0 {
		a.lastDir = 0
	}
	d.ino = ino
}

// hide conceals a name of the layers below.
func (a *applier) hide(parent uint32, name string) error {
	e, err := a.dirent(parent, name)
	if err != nil {
		return fmt.Errorf("whiteout: %w", err)
	}
	a.dirents.at(e).hide = true
	return nil
}

// link makes a hard link. Its target is the last path component as it is, even
// if that is a symbolic link. Containerd finds only targets in the layer itself;
// here they may be in the layers below too.
func (a *applier) link(parent uint32, name, target string) error {
	e, err := a.dirent(parent, name)
	if err != nil {
		return err
	}
	a.replace(a.dirents.at(e), 0) // containerd removes what is there first
	ino, err := a.linkTarget(e, target)
	if err != nil {
		return fmt.Errorf("hard link to %.200q: %w", target, err)
	}
	a.dirents.at(e).ino = ino
	return nil
}

// linkTarget finds the inode that is to become a hard link's, whose dirent is e.
func (a *applier) linkTarget(e uint32, target string) (uint32, error) {
	dir, base := path.Split(path.Clean("/" + target))
	for _, root := range []uint32{a.upper, a.base} {
		if root == 0 {
			break
		}
		c := newCursor(a.tree, root)
		if err := c.walk(dir, notFound); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return 0, err
		}
		found := a.find(c.dir(), base)
		if found == e {
			return 0, errors.New("links to itself")
		}
		switch ino := a.dirents.at(found).ino; {
		case base == "" || a.inodes.at(ino).is(syscall.S_IFDIR):
			return 0, errors.New("is a directory")
		case ino != 0:
			return ino, nil
		}
	}
	return 0, fs.ErrNotExist
}

// create makes any other entry.
func (a *applier) create(parent uint32, name string, e *Entry) error {
	n, err := a.node(e)
	if err != nil {
		return err
	}
	i, err := a.dirent(parent, name)
	if err != nil {
		return err
	}
	d := a.dirents.at(i)
	if n.is(syscall.S_IFCHR) && n.a == 0 && n.b == 0 {
		// What overlayfs itself takes for a whiteout.
		d.hide = true
		a.replace(d, 0)
		return nil
	}
	if n.is(syscall.S_IFDIR) && a.inodes.at(d.ino).is(syscall.S_IFDIR) {
		there := a.inodes.at(d.ino)
		n.a, n.b = there.a, there.b
		if n.xattrs, err = a.xattrs.add(there.xattrs, e.Xattrs, n.mode); err == nil {
			*there = n
		}
		return err
	}
	if n.xattrs, err = a.xattrs.add(0, e.Xattrs, n.mode); err != nil {
		return err
	}
	ino, err := a.inode(n)
	a.replace(d, ino)
	return err
}

// node returns what e describes, but for its extended attributes. It puts the
// extents and the target of a link into the tree.
func (a *applier) node(e *Entry) (n node, err error) {
	n = node{mode: e.Mode & (syscall.S_IFMT | 0o7777), uid: e.UID, gid: e.GID}
	if n.sec, n.nsec, err = boundTime(e.MTime); err != nil {
		return n, err
	}
	if len(e.Extents) > 0 && !n.is(syscall.S_IFREG) {
		return n, errors.New("has extents, but is no regular file")
	}
	switch n.mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		n.size = e.Size
		n.a, n.b, err = a.addExtents(e)
	case syscall.S_IFLNK:
		n.mode = syscall.S_IFLNK | 0o777 // Linux knows no other
		n.a, n.b, err = a.addLink(e.Link)
	case syscall.S_IFCHR, syscall.S_IFBLK:
		n.a, n.b = e.Major&0xfff, e.Minor&0xfffff // what mknod(2) takes
	case syscall.S_IFDIR, syscall.S_IFIFO, syscall.S_IFSOCK:
	default:
		err = fmt.Errorf("unknown type in mode %#o", e.Mode)
	}
	return n, err
}

// addExtents checks the extents of a file and adds them to the tree.
func (a *applier) addExtents(e *Entry) (first, count uint32, err error) {
	if e.Size < 0 || e.Size > MaxFileSize {
		return 0, 0, fmt.Errorf("has %d bytes", e.Size)
	}
	if len(e.Extents) > MaxExtents-a.extents.len() {
		return 0, 0, fmt.Errorf("more than %d extents", MaxExtents)
	}
	first = uint32(a.extents.len())
	var end int64
	for _, x := range e.Extents {
		if uint64(x.Chunk) >= uint64(len(a.table.Chunks)) {
			return 0, 0, fmt.Errorf("extent in chunk %d of %d", x.Chunk, len(a.table.Chunks))
		}
		c := &a.table.Chunks[x.Chunk]
		if err := checkExtent(x, end, e.Size, a.table.Spans[c.Span].readable(c)); err != nil {
			return 0, 0, err
		}
		end = x.Off + x.Len
		x.Chunk += a.shift
		a.extents.add(x)
	}
	return first, uint32(len(e.Extents)), nil
}

// addLink adds the target of a symbolic link to the tree.
func (a *applier) addLink(target string) (first, n uint32, err error) {
	if target == "" || len(target) > MaxSymlink || strings.IndexByte(target, 0) >= 0 {
		return 0, 0, fmt.Errorf("symbolic link has a NUL in its target, or %d bytes, not 1 to %d", len(target), MaxSymlink)
	}
	if len(target) > maxOffset-len(a.links) {
		return 0, 0, fmt.Errorf("symbolic links of more than %d bytes", maxOffset)
	}
	first = uint32(len(a.links))
	a.links = append(a.links, target...)
	return first, uint32(len(target)), nil
}

// boundTime returns the time that containerd would set for t: the start of the
// epoch for what a file system may not be able to keep.
func boundTime(t Time) (sec int64, nsec uint32, err error) {
	const maxSec, maxNsec = math.MaxInt64 / 1_000_000_000, math.MaxInt64 % 1_000_000_000
	switch {
	case t.Nsec >= 1e9:
		return 0, 0, fmt.Errorf("time has %d nanoseconds", t.Nsec)
	case t.Sec < 0 || t.Sec > maxSec || t.Sec == maxSec && t.Nsec > maxNsec:
		return 0, 0, nil
	}
	return t.Sec, t.Nsec, nil
}
