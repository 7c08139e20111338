package rafs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"graze/chunk"
	"graze/image"
)

// A walk goes through the tree of a bootstrap, which is not to be trusted: its
// directories may contain each other, and any of it may be named many times.
type walk struct {
	b      *Bootstrap
	visit  func(path string, in *inode, first string) error
	dirs   map[uint64]struct{} // that were seen
	again  bool                // they may be met again
	names  int
	chunks int

	// The first name of each file that may have others: by the number of its
	// inode, and by what old builders had in its place, copies of the inode.
	byNum map[uint64]string
	byIno map[uint64]firstName
}

type firstName struct {
	path string
	in   inode
}

func newWalk(b *Bootstrap, visit func(path string, in *inode, first string) error) *walk {
	return &walk{
		b: b, visit: visit,
		dirs:  make(map[uint64]struct{}),
		byNum: make(map[uint64]string),
		byIno: make(map[uint64]firstName),
	}
}

// walk calls visit, which must not keep the inode, for each name in the tree, directories before what they hold,
// by rising name in each directory. The root's path is ".". If the file was
// visited before, under another name, first is that name.
func (b *Bootstrap) walk(visit func(path string, in *inode, first string) error) error {
	w := newWalk(b, visit)
	root, err := b.tree.inode(b.tree.root())
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	if root.mode&syscall.S_IFMT != syscall.S_IFDIR {
		return fmt.Errorf("%w: root has mode %#o", chunk.ErrCorrupt, root.mode)
	}
	if err := visit(".", &root, ""); err != nil {
		return err
	}
	return w.dir("", &root, 0)
}

// dir visits what is in a directory. The prefix is its path with a slash.
func (w *walk) dir(prefix string, dir *inode, depth int) error {
	_, seen := w.dirs[dir.num]
	if seen && w.again {
		return nil
	}
	if seen || depth > image.MaxDepth {
		return fmt.Errorf("%w: directory %.200q is within itself, or has two names", chunk.ErrCorrupt, prefix)
	}
	w.dirs[dir.num] = struct{}{}
	before := ""
	var in inode // one for all names, as visit doesn't keep it
	return w.b.tree.children(dir, func(name string, num uint64) error {
		if err := checkName(name, before); err != nil {
			return fmt.Errorf("directory %.200q: %w", prefix, err)
		}
		before = name
		if w.names++; w.names > w.b.maxNames {
			return fmt.Errorf("%w: more names than the bootstrap has room for", chunk.ErrCorrupt)
		}
		path := prefix + name
		var err error
		if in, err = w.b.tree.inode(num); err == nil {
			err = w.count(&in)
		}
		if err != nil {
			return fmt.Errorf("%.200q: %w", path, err)
		}
		if err := w.visit(path, &in, w.first(path, &in)); err != nil {
			return err
		}
		if in.mode&syscall.S_IFMT == syscall.S_IFDIR {
			return w.dir(path+"/", &in, depth+1)
		}
		return nil
	})
}

// checkName fails on names that no directory can have, and on those that are not
// behind the one before: readers that search for a name by halves would not find
// all, or find another of two that are equal.
func checkName(name, before string) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("%w: name %.80q", chunk.ErrCorrupt, name)
	case name <= before:
		return fmt.Errorf("%w: name %.80q comes after %.80q", chunk.ErrCorrupt, name, before)
	}
	return nil
}

// count fails if files have more chunks than there is room for in the bootstrap.
func (w *walk) count(in *inode) error {
	if w.chunks += in.chunks; w.chunks > w.b.maxChunks {
		return fmt.Errorf("%w: more chunks than the bootstrap has room for", chunk.ErrCorrupt)
	}
	return nil
}

// first returns the name by which a file was visited before, "" if it was not.
func (w *walk) first(path string, in *inode) string {
	if in.nlink < 2 || in.mode&syscall.S_IFMT == syscall.S_IFDIR {
		return ""
	}
	if name, ok := w.byNum[in.num]; ok {
		return name
	}
	if f, ok := w.byIno[in.ino]; ok && sameFile(&f.in, in) {
		return f.path
	}
	w.byNum[in.num] = path
	w.byIno[in.ino] = firstName{path, *in}
	return ""
}

// sameFile reports whether two inodes of one number say the same. Numbers alone
// are not to be relied upon: some builders have them all 0.
func sameFile(a, b *inode) bool {
	return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.nlink == b.nlink && a.rdev == b.rdev &&
		a.size == b.size && a.mtime == b.mtime && a.link == b.link &&
		bytes.Equal(a.attrs, b.attrs) && bytes.Equal(a.refs, b.refs)
}

// from visits an inode and what is below it, without its path. What was seen before
// is passed over.
func (w *walk) from(num uint64) error {
	in, err := w.b.tree.inode(num)
	if err != nil {
		return err
	}
	w.again = true
	if in.mode&syscall.S_IFMT == syscall.S_IFDIR {
		return w.dir("", &in, 0)
	}
	if err := w.count(&in); err != nil {
		return err
	}
	return w.visit("", &in, "")
}

// entries returns the entries of the tree. Which chunk of the table a chunk of a
// file is, number says.
func (b *Bootstrap) entries(number func(*fileChunk) (uint32, error)) func(yield func(*image.Entry, error) bool) {
	return func(yield func(*image.Entry, error) bool) {
		var e image.Entry
		stopped := false
		err := b.walk(func(path string, in *inode, first string) error {
			if err := b.fill(&e, path, in, first, number); err != nil {
				return fmt.Errorf("%.200q: %w", path, err)
			}
			if stopped = !yield(&e, nil); stopped {
				return errStopped
			}
			return nil
		})
		if err != nil && !stopped {
			yield(nil, err)
		}
	}
}

var errStopped = errors.New("the walk was stopped")

// fill makes e the entry of an inode. It reuses the slices of e.
func (b *Bootstrap) fill(e *image.Entry, path string, in *inode, first string, number func(*fileChunk) (uint32, error)) (err error) {
	*e = image.Entry{Name: path, Xattrs: e.Xattrs[:0], Extents: e.Extents[:0]}
	if first != "" {
		e.Link, e.Hardlink = first, true
		return nil
	}
	e.Mode, e.UID, e.GID, e.MTime, e.Link = in.mode, in.uid, in.gid, in.mtime, in.link
	if e.Xattrs, err = b.tree.xattrs(in, e.Xattrs); err != nil {
		return err
	}
	switch in.mode & syscall.S_IFMT {
	case syscall.S_IFCHR, syscall.S_IFBLK:
		// As new_encode_dev of the kernel packs it.
		e.Major, e.Minor = in.rdev>>8&0xfff, in.rdev&0xff|in.rdev>>12&0xfff00
	case syscall.S_IFREG:
		e.Size = in.size
		e.Extents = slices.Grow(e.Extents, in.chunks)
		for i := range in.chunks {
			c, err := b.tree.chunk(in, i)
			if err != nil {
				return err
			}
			n, err := number(&c)
			if err != nil {
				return err
			}
			e.Extents = append(e.Extents, chunk.Extent{Off: c.off, Len: int64(c.size), Chunk: n})
		}
	}
	return nil
}
