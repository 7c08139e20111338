package image

import (
	"bytes"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"syscall"

	"graze/chunk"
)

// maxOffset is the greatest offset that rows have room for.
const maxOffset = math.MaxUint32

// isOpaque, as field b of a directory in a layer's own tree, says that it hides
// what the layers below have in it.
const isOpaque = 1

// merge returns a tree of all layers, the inode of its root, and for each layer
// how many chunks those before it have.
func merge(layers []*Layer) (t *tree, root uint32, shifts []uint32, err error) {
	t = newTree()
	if root, err = t.inode(node{mode: syscall.S_IFDIR | 0o755}); err != nil {
		return nil, 0, nil, err
	}
	chunks := 0
	for i, l := range layers {
		shifts = append(shifts, uint32(chunks))
		if err := l.check(MaxChunks - chunks); err != nil {
			return nil, 0, nil, fmt.Errorf("layer %d (%.80q): %w", i, l.Digest, err)
		}
		if root, err = t.addLayer(l, root, i > 0, uint32(chunks)); err != nil {
			return nil, 0, nil, fmt.Errorf("layer %d (%.80q): %w", i, l.Digest, err)
		}
		chunks += len(l.Table.Chunks)
	}
	return t, root, shifts, nil
}

// check returns an error if there is something wrong with the layer besides its
// entries.
func (l *Layer) check(maxChunks int) error {
	if len(l.Table.Chunks) > maxChunks {
		return fmt.Errorf("more than %d chunks", MaxChunks)
	}
	if err := l.Table.check(); err != nil {
		return err
	}
	if l.Prefetch < 0 || l.Prefetch > len(l.Table.Spans) {
		return fmt.Errorf("prefetch of %d spans of %d", l.Prefetch, len(l.Table.Spans))
	}
	return nil
}

// addLayer lays a layer over the directory base and returns what has become the
// root. If there is nothing below the layer, base is used for itself.
func (t *tree) addLayer(l *Layer, base uint32, below bool, shift uint32) (root uint32, err error) {
	a := &applier{tree: t, upper: base, table: &l.Table, shift: shift}
	if below {
		n := *t.inodes.at(base)
		n.a, n.b = 0, 0
		if a.upper, err = t.inode(n); err != nil {
			return 0, err
		}
		a.base = base
	}
	for e, err := range l.Entries {
		if err != nil {
			return 0, err
		}
		if err := a.apply(e); err != nil {
			return 0, fmt.Errorf("entry %.200q: %w", e.Name, err)
		}
	}
	if !below || t.inodes.at(a.upper).b == isOpaque {
		return a.upper, nil
	}
	return base, t.overlay(base, a.upper)
}

// A numbering says which numbers the visible inodes of a tree have in a view.
type numbering struct {
	numbers []uint32 // by inode of the tree; 0: not visible
	inodes  []uint32 // of the tree, by number; inodes[0] stands for none
	nlinks  []uint32 // by number
	dirents []uint32 // of the tree, directory by directory

	xattrSets []uint32 // of the tree, in the order of the first inode that has it
	xattrNums []uint32 // number of each set of the tree in the view; 0: not in use
}

// number numbers what is visible below root, breadth first by name. After that
// t can only be read: in its visible directories, size is the number of the
// parent, and a and b are the first dirent in the numbering and their count.
func (t *tree) number(root uint32) *numbering {
	v := &numbering{
		numbers: make([]uint32, t.inodes.len()),
		inodes:  []uint32{0, root},
		nlinks:  []uint32{0, 2},

		xattrNums: make([]uint32, len(t.xattrs.ends)),
	}
	v.numbers[root] = RootIno
	t.inodes.at(root).size = RootIno
	for i := uint32(RootIno); i < uint32(len(v.inodes)); i++ {
		n := t.inodes.at(v.inodes[i])
		if n.xattrs != 0 && v.xattrNums[n.xattrs] == 0 {
			v.xattrSets = append(v.xattrSets, n.xattrs)
			v.xattrNums[n.xattrs] = uint32(len(v.xattrSets))
		}
		if !n.is(syscall.S_IFDIR) {
			continue
		}
		first := len(v.dirents)
		v.dirents = t.appendVisible(v.dirents, n.a)
		n.a, n.b = uint32(first), uint32(len(v.dirents)-first)
		for _, e := range v.dirents[first:] {
			ino := t.dirents.at(e).ino
			if v.numbers[ino] == 0 {
				v.numbers[ino] = uint32(len(v.inodes))
				v.inodes = append(v.inodes, ino)
				v.nlinks = append(v.nlinks, 0)
			}
			if child := t.inodes.at(ino); child.is(syscall.S_IFDIR) {
				child.size = int64(i)
				v.nlinks[i]++
				v.nlinks[v.numbers[ino]]++ // its own "."
			}
			v.nlinks[v.numbers[ino]]++
		}
	}
	return v
}

// appendVisible appends those dirents of the list from e on that a view shows,
// sorted by name.
func (t *tree) appendVisible(list []uint32, e uint32) []uint32 {
	first := len(list)
	for ; e != 0; e = t.dirents.at(e).next {
		d := t.dirents.at(e)
		if d.ino != 0 && !strings.HasPrefix(view(t.name(d)), aufs) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list[first:], func(a, b uint32) int {
		return bytes.Compare(t.name(t.dirents.at(a)), t.name(t.dirents.at(b)))
	})
	return list
}

// usedChunks returns which of the chunks of all layers the files of a numbered
// tree refer to.
func (t *tree) usedChunks(v *numbering, layers []*Layer) []bool {
	n := 0
	for _, l := range layers {
		n += len(l.Table.Chunks)
	}
	used := make([]bool, n)
	for _, ino := range v.inodes[RootIno:] {
		for _, x := range t.extentsOf(ino) {
			used[x.Chunk] = true
		}
	}
	return used
}

// extentsOf yields the extents of an inode, if it is a file, with their numbers.
func (t *tree) extentsOf(ino uint32) iter.Seq2[uint32, *chunk.Extent] {
	return func(yield func(uint32, *chunk.Extent) bool) {
		n := t.inodes.at(ino)
		if !n.is(syscall.S_IFREG) {
			return
		}
		for i := n.a; i < n.a+n.b; i++ {
			if !yield(i, t.extents.at(i)) {
				return
			}
		}
	}
}
