package fusefs

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"graze/image"
)

// A memTree is a Tree and its Files in memory.
type memTree struct {
	nodes  []*memNode // by inode number; 0 is unused
	readAt func(ctx context.Context, ino uint64, p []byte, off int64) (int, error)
}

type memNode struct {
	image.Attr
	parent  uint64
	entries []image.Dirent
	link    string
	xattrs  map[string]string
	data    []byte
}

// mtime is that of all nodes.
var mtime = image.Time{Sec: 1_234_567_890, Nsec: 123_456_789}

func newTree() *memTree {
	m := &memTree{nodes: []*memNode{nil}}
	m.readAt = m.read
	m.node(unix.S_IFDIR | 0o755).parent = image.RootIno
	m.nodes[image.RootIno].NLink = 2
	return m
}

func (m *memTree) node(mode uint32) *memNode {
	n := &memNode{Attr: image.Attr{Ino: uint64(len(m.nodes)), Mode: mode, NLink: 1, MTime: mtime}}
	if mode&unix.S_IFMT == unix.S_IFDIR {
		n.Size, n.Blocks, n.NLink = 4096, 8, 2
	}
	m.nodes = append(m.nodes, n)
	return n
}

// add adds a node to the tree; its directory must be there.
func (m *memTree) add(name string, mode uint32) *memNode {
	n := m.node(mode)
	m.link(name, n)
	if mode&unix.S_IFMT == unix.S_IFDIR {
		n.parent = m.find(path.Dir(name)).Ino
		m.nodes[n.parent].NLink++
	}
	return n
}

func (m *memTree) link(name string, n *memNode) {
	dir := m.find(path.Dir(name))
	i, _ := slices.BinarySearchFunc(dir.entries, path.Base(name), byName)
	dir.entries = slices.Insert(dir.entries, i, image.Dirent{Name: path.Base(name), Ino: n.Ino, Mode: n.Mode})
}

func (m *memTree) hardlink(name string, n *memNode) {
	n.NLink++
	m.link(name, n)
}

func (m *memTree) file(name string, perm uint32, data []byte) *memNode {
	n := m.add(name, unix.S_IFREG|perm)
	n.data, n.Size = data, int64(len(data))
	n.Blocks = (n.Size + 4095) / 4096 * 8
	return n
}

func (m *memTree) dir(name string) *memNode { return m.add(name, unix.S_IFDIR|0o755) }

func (m *memTree) symlink(name, target string) *memNode {
	n := m.add(name, unix.S_IFLNK|0o777)
	n.link, n.Size = target, int64(len(target))
	return n
}

// find returns the node that an absolute path without symbolic links leads to.
func (m *memTree) find(name string) *memNode {
	ino := uint64(image.RootIno)
	for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		if part == "" {
			continue
		}
		var ok bool
		if ino, ok = m.Lookup(ino, part); !ok {
			panic("no " + part + " of " + name)
		}
	}
	return m.nodes[ino]
}

func byName(e image.Dirent, name string) int { return cmp.Compare(e.Name, name) }

func (m *memTree) get(ino uint64) *memNode {
	if ino == 0 || ino >= uint64(len(m.nodes)) {
		return &memNode{}
	}
	return m.nodes[ino]
}

func (m *memTree) Attr(ino uint64) (image.Attr, bool) {
	n := m.get(ino)
	return n.Attr, n.Ino != 0
}

func (m *memTree) Lookup(dir uint64, name string) (uint64, bool) {
	entries := m.get(dir).entries
	i, ok := slices.BinarySearchFunc(entries, name, byName)
	if !ok {
		return 0, false
	}
	return entries[i].Ino, true
}

func (m *memTree) ReadDir(dir uint64, from int) iter.Seq2[int, image.Dirent] {
	return func(yield func(int, image.Dirent) bool) {
		entries := m.get(dir).entries
		for i := from; i < len(entries); i++ {
			if !yield(i, entries[i]) {
				return
			}
		}
	}
}

func (m *memTree) Parent(dir uint64) uint64 { return m.get(dir).parent }

func (m *memTree) Readlink(ino uint64) (string, bool) {
	n := m.get(ino)
	return n.link, n.Mode&unix.S_IFMT == unix.S_IFLNK
}

func (m *memTree) Xattr(ino uint64, name string) ([]byte, bool) {
	v, ok := m.get(ino).xattrs[name]
	return []byte(v), ok
}

func (m *memTree) Xattrs(ino uint64) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		xattrs := m.get(ino).xattrs
		for _, name := range slices.Sorted(maps.Keys(xattrs)) {
			if !yield(name, []byte(xattrs[name])) {
				return
			}
		}
	}
}

func (m *memTree) Totals() image.Totals {
	t := image.Totals{Inodes: int64(len(m.nodes) - 1)}
	for _, n := range m.nodes[1:] {
		t.Blocks += n.Blocks
		t.Bytes += int64(len(n.data))
	}
	return t
}

func (m *memTree) ReadAt(ctx context.Context, ino uint64, p []byte, off int64) (int, error) {
	return m.readAt(ctx, ino, p, off)
}

func (m *memTree) read(_ context.Context, ino uint64, p []byte, off int64) (int, error) {
	return copy(p, m.get(ino).data[off:]), nil
}

// pattern returns n bytes in which every offset looks different.
func pattern(n int) []byte {
	p := make([]byte, n)
	x := uint32(1)
	for i := range p {
		x = x*1664525 + 1013904223
		p[i] = byte(x >> 24)
	}
	return p
}

var (
	_ Tree  = (*memTree)(nil)
	_ Files = (*memTree)(nil)
)
