package image

import (
	"fmt"
	"hash/maphash"
	"syscall"

	"graze/chunk"
)

// A tree is a file system in memory, or several of them: each layer's and what
// the layers below make together. It has no pointers but to its few arrays, and
// numbers in place of them.
//
// Nothing is ever taken out. An inode that no dirent names any more is garbage,
// and so is what is below it if it is a directory, which is therefore replaced
// in one step however much it holds.
type tree struct {
	inodes  pages[node]
	dirents pages[dirent]
	extents pages[chunk.Extent] // with numbers of chunks that count through all layers
	names   []byte
	links   []byte
	xattrs  xattrSets

	// table finds a dirent by its directory and name: open addressing with
	// linear probing, without deletion. Its length is a power of 2.
	table []slot
	seed  maphash.Seed
}

// A slot of a table holds the hash of a dirent's directory and name, so that
// most of the wrong ones on the way are passed over without a look at them.
type slot struct {
	hash  uint32
	entry uint32 // 0: the slot is free
}

// A node is an inode of a tree. What a and b are depends on the type:
//
//	file     first extent, number of extents
//	dir      first dirent of a list, unused
//	symlink  first byte of the target in links, its length
//	device   major, minor
type node struct {
	size   int64
	sec    int64
	nsec   uint32
	mode   uint32
	uid    uint32
	gid    uint32
	xattrs uint32
	a, b   uint32
}

func (n *node) is(typ uint32) bool { return n.mode&syscall.S_IFMT == typ }

// A dirent is a name in a directory of a tree. It stays when the name is
// removed, with ino 0.
type dirent struct {
	dir  uint32 // inode of the directory
	ino  uint32
	next uint32 // in the list of the directory's dirents
	name uint32 // first byte in names
	len  uint8
	hide bool // conceals what the layers below have under this name
}

// newTree returns a tree without any directory. Inode 0 and dirent 0 stand for
// none.
func newTree() *tree {
	t := &tree{
		table:  make([]slot, 1<<10),
		seed:   maphash.MakeSeed(),
		xattrs: newXattrSets(),
	}
	t.inodes.add(node{})
	t.dirents.add(dirent{})
	return t
}

// inode adds an inode that has no name yet.
func (t *tree) inode(n node) (uint32, error) {
	if t.inodes.len() > MaxEntries {
		return 0, fmt.Errorf("more than %d inodes", MaxEntries)
	}
	return t.inodes.add(n), nil
}

// name returns the name of a dirent.
func (t *tree) name(d *dirent) []byte {
	return t.names[d.name : d.name+uint32(d.len)]
}

// slot returns where in the table the dirent is, or is to be put.
func (t *tree) slot(dir uint32, name string) *slot {
	// The directory's number is mixed in by a multiplicative hash (Knuth).
	hash := uint32(maphash.String(t.seed, name)) ^ dir*2654435769
	mask := uint32(len(t.table) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		s := &t.table[i]
		if s.entry == 0 {
			s.hash = hash // for the caller who takes the slot
			return s
		}
		if s.hash != hash {
			continue
		}
		if d := t.dirents.at(s.entry); d.dir == dir && string(t.name(d)) == name {
			return s
		}
	}
}

// find returns the dirent of a name, 0 if there never was one. Its ino can be 0.
func (t *tree) find(dir uint32, name string) uint32 { return t.slot(dir, name).entry }

// lookup returns the inode that a directory has under a name, or 0.
func (t *tree) lookup(dir uint32, name string) uint32 {
	return t.dirents.at(t.find(dir, name)).ino
}

// dirent returns the dirent of a name; it makes one, with ino 0, if there is
// none.
func (t *tree) dirent(dir uint32, name string) (uint32, error) {
	s := t.slot(dir, name)
	if s.entry != 0 {
		return s.entry, nil
	}
	if err := checkName(name); err != nil {
		return 0, err
	}
	if t.dirents.len() > MaxEntries {
		return 0, fmt.Errorf("more than %d names", MaxEntries)
	}
	in := t.inodes.at(dir)
	e := t.dirents.add(dirent{dir: dir, next: in.a, name: uint32(len(t.names)), len: uint8(len(name))})
	t.names = append(t.names, name...)
	in.a = e
	s.entry = e
	if t.dirents.len() > len(t.table)/4*3 {
		t.grow()
	}
	return e, nil
}

// grow doubles the table.
func (t *tree) grow() {
	old := t.table
	t.table = make([]slot, 2*len(old))
	mask := uint32(len(t.table) - 1)
	for _, s := range old {
		if s.entry == 0 {
			continue
		}
		i := s.hash & mask
		for t.table[i].entry != 0 {
			i = (i + 1) & mask
		}
		t.table[i] = s
	}
}

// overlay lays the directory upper over the directory base as overlayfs does.
// After that only base is in use.
func (t *tree) overlay(base, upper uint32) error {
	type pair struct{ base, upper uint32 }
	for todo := []pair{{base, upper}}; len(todo) > 0; {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		upper, base := *t.inodes.at(p.upper), t.inodes.at(p.base)
		first := upper.a
		upper.a = base.a
		*base = upper
		for i := first; i != 0; i = t.dirents.at(i).next {
			u := t.dirents.at(i)
			if u.ino == 0 && !u.hide {
				continue
			}
			name := view(t.name(u))
			if u.ino == 0 && t.lookup(p.base, name) == 0 {
				continue
			}
			e, err := t.dirent(p.base, name)
			if err != nil {
				return err
			}
			b := t.dirents.at(e)
			if over := t.inodes.at(u.ino); over.is(syscall.S_IFDIR) && !u.hide && over.b != isOpaque &&
				t.inodes.at(b.ino).is(syscall.S_IFDIR) {
				todo = append(todo, pair{b.ino, u.ino})
				continue
			}
			b.ino = u.ino
		}
	}
	return nil
}
