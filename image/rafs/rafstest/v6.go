package rafstest

import (
	"bytes"
	"cmp"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	slot = 32 // of inodes
	// Where the parts of a superblock are.
	sb6  = 1024
	ext6 = 1152
	dev6 = 1408
)

// An inode6 is an inode that has its place.
type inode6 struct {
	node     *Node
	parent   *inode6
	nid      int
	size     int // of the data
	compact  bool
	attrs    []byte
	children []*inode6 // by the node's entries
	blocks   int       // number of the first data block, from the beginning of the file
}

// A layout6 places inodes and what they have in the file.
type layout6 struct {
	*builder
	blk   int // bytes of a block
	bits  int
	first map[*Node]*inode6
	all   []*inode6
	next  int // byte behind the last inode, from the beginning of the inodes
	root  *inode6
}

func (b *builder) newLayout6() *layout6 {
	l := &layout6{builder: b, blk: 4096, bits: 12, first: make(map[*Node]*inode6)}
	if b.tarfs() {
		l.blk, l.bits = 512, 9
	}
	return l
}

func (b *builder) tarfs() bool { return len(b.Layers) > 0 && b.Layers[0].Kind == Tarfs }

// place gives an inode, and all below it, their places.
func (l *layout6) place(n *Node, parent *inode6) *inode6 {
	if in := l.first[n]; in != nil && !l.CopyInodes {
		return in
	}
	in := &inode6{node: n, parent: parent, attrs: attrs6(n.Xattrs), size: len(n.Data) + len(n.Target)}
	in.compact = l.Compact && n.UID < 1<<16 && n.GID < 1<<16 && n.nlink < 1<<16
	if parent == nil {
		in.parent = in
	}
	l.first[n] = in
	l.all = append(l.all, in)
	if n.is(unix.S_IFDIR) {
		in.size = l.dirSize(n)
	}
	size := in.headSize() + l.tailSize(in)
	if n.is(unix.S_IFREG) {
		size = align(in.headSize(), 8) + 8*len(n.chunks)
	}
	// What is behind an inode must not cross the end of a block.
	if !n.is(unix.S_IFREG) && l.next/l.blk != (l.next+size-1)/l.blk {
		l.next = align(l.next, l.blk)
	}
	in.nid = l.next / slot
	l.next = align(l.next+size, slot)
	for _, e := range n.Entries {
		in.children = append(in.children, l.place(e.Node, in))
	}
	return in
}

func align(n, to int) int { return (n + to - 1) / to * to }

// headSize returns the size of an inode with its attributes.
func (in *inode6) headSize() int {
	if in.compact {
		return 32 + len(in.attrs)
	}
	return 64 + len(in.attrs)
}

// inline reports whether the end of the data is behind the inode.
func (l *layout6) inline(in *inode6) bool {
	rest := in.size % l.blk
	return rest > 0 && in.headSize()+rest <= l.blk && !in.node.is(unix.S_IFREG)
}

func (l *layout6) tailSize(in *inode6) int {
	if !l.inline(in) {
		return 0
	}
	return in.size % l.blk
}

// attrs6 encodes extended attributes.
func attrs6(list []Xattr) []byte {
	if len(list) == 0 {
		return nil
	}
	p := make([]byte, 12)
	prefixes := []string{1: "user.", 2: "system.posix_acl_access", 3: "system.posix_acl_default", 4: "trusted.", 6: "security."}
	for _, x := range list {
		for i, prefix := range prefixes {
			if rest, ok := bytes.CutPrefix([]byte(x.Name), []byte(prefix)); ok && prefix != "" {
				p = append(p, byte(len(rest)), byte(i))
				p = le.AppendUint16(p, uint16(len(x.Value)))
				p = pad(append(append(p, rest...), x.Value...), 4)
			}
		}
	}
	return p
}

// A name6 is an entry of a directory as it is stored.
type name6 struct {
	name string
	in   *inode6
	typ  byte
}

// names6 returns the names in a directory, those of itself and of its parent among
// them.
func names6(n *Node, in *inode6) []name6 {
	list := []name6{{".", in, 2}, {"..", nil, 2}}
	if in != nil {
		list[1].in = in.parent
	}
	types := map[uint32]byte{unix.S_IFREG: 1, unix.S_IFDIR: 2, unix.S_IFCHR: 3, unix.S_IFBLK: 4, unix.S_IFIFO: 5, unix.S_IFSOCK: 6, unix.S_IFLNK: 7}
	for i, e := range n.Entries {
		one := name6{name: e.Name, typ: types[e.Node.Mode&unix.S_IFMT]}
		if in != nil {
			one.in = in.children[i]
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b name6) int { return cmp.Compare(a.name, b.name) })
	return list
}

// dirBlocks cuts the names of a directory into those of its blocks.
func (l *layout6) dirBlocks(list []name6) (blocks [][]name6, last int) {
	used := l.blk + 1
	for _, e := range list {
		n := 12 + len(e.name)
		if used+n > l.blk {
			blocks, used = append(blocks, nil), 0
		}
		used += n
		blocks[len(blocks)-1] = append(blocks[len(blocks)-1], e)
	}
	return blocks, used
}

func (l *layout6) dirSize(n *Node) int {
	blocks, last := l.dirBlocks(names6(n, nil))
	return (len(blocks)-1)*l.blk + last
}

// dirData encodes a directory.
func (l *layout6) dirData(in *inode6) []byte {
	blocks, _ := l.dirBlocks(names6(in.node, in))
	var p []byte
	for _, list := range blocks {
		p = pad(p, l.blk)
		off := 12 * len(list)
		for _, e := range list {
			p = le.AppendUint64(p, uint64(e.in.nid))
			p = le.AppendUint16(p, uint16(off))
			p = append(p, e.typ, 0)
			off += len(e.name)
		}
		for _, e := range list {
			p = append(p, e.name...)
		}
	}
	return p
}

// data returns what an inode has in the bootstrap itself.
func (l *layout6) data(in *inode6) []byte {
	switch {
	case in.node.is(unix.S_IFDIR):
		return l.dirData(in)
	case in.node.is(unix.S_IFLNK):
		return []byte(in.node.Target)
	}
	return nil
}

// write puts an inode to its place in p, which begins with the inodes.
func (l *layout6) write(p []byte, in *inode6) {
	n := in.node
	off := in.nid * slot
	format, u := uint16(0), uint32(in.blocks)
	if !in.compact {
		format = 1
	}
	switch {
	case n.is(unix.S_IFREG) && len(n.Data) > 0:
		format |= 4 << 1
		u = 0x20 | uint32(max(bits.Len(uint(align(len(n.Data), l.blk)-1))-l.bits, 0))
	case l.inline(in):
		format |= 2 << 1
	case n.is(unix.S_IFCHR), n.is(unix.S_IFBLK):
		u = n.Rdev
	}
	h := p[off:]
	le.PutUint16(h, format)
	if len(in.attrs) > 0 {
		le.PutUint16(h[2:], uint16((len(in.attrs)-12)/4+1))
	}
	le.PutUint16(h[4:], uint16(n.Mode))
	le.PutUint32(h[16:], u)
	le.PutUint32(h[20:], uint32(n.ino))
	if in.compact {
		le.PutUint16(h[6:], uint16(n.nlink))
		le.PutUint32(h[8:], uint32(in.size))
		le.PutUint16(h[24:], uint16(n.UID))
		le.PutUint16(h[26:], uint16(n.GID))
	} else {
		le.PutUint64(h[8:], uint64(in.size))
		le.PutUint32(h[24:], n.UID)
		le.PutUint32(h[28:], n.GID)
		le.PutUint64(h[32:], uint64(n.Sec))
		le.PutUint32(h[40:], n.Nsec)
		le.PutUint32(h[44:], uint32(n.nlink))
	}
	copy(h[in.headSize()-len(in.attrs):], in.attrs)
	if n.is(unix.S_IFREG) {
		refs := h[align(in.headSize(), 8):]
		for i, c := range n.chunks {
			le.PutUint16(refs[8*i:], uint16(c.index))
			le.PutUint16(refs[8*i+2:], uint16(c.blob+1)|uint16(c.index>>16)<<8)
			le.PutUint32(refs[8*i+4:], uint32(c.uoff>>l.bits))
		}
		return
	}
	data := l.data(in)
	copy(h[in.headSize():], data[len(data)-l.tailSize(in):])
}
