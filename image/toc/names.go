package toc

import (
	"hash/maphash"
	"path"
	"strings"
)

// cleanName returns the path of an entry relative to the root, in the one form
// by which names are compared: without slashes at its ends, and without empty,
// "." and ".." elements. The root is "".
func cleanName(name string) string {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if isClean(name) {
		return name
	}
	return path.Clean("/" + name)[1:]
}

// isClean reports whether no element of name is empty, "." or "..".
func isClean(name string) bool {
	for {
		elem, rest, more := strings.Cut(name, "/")
		if elem == "" || elem == "." || elem == ".." {
			return false
		}
		if !more {
			return true
		}
		name = rest
	}
}

// A nameTable finds rows by their cleaned name. It is a hash table with open
// addressing over row numbers, so that it costs 8 bytes a row at most.
type nameTable struct {
	b     *builder
	seed  maphash.Seed
	slots []uint32 // row number + 1; the length is a power of two
	used  int
}

func (t *nameTable) init(b *builder) {
	t.b = b
	t.seed = maphash.MakeSeed()
	t.slots = make([]uint32, 64)
}

// name returns the cleaned name of a row.
func (t *nameTable) name(row uint32) string {
	return cleanName(t.b.str(t.b.rows[row].name))
}

// slot returns where the row of the given cleaned name is, or belongs.
func (t *nameTable) slot(name string) *uint32 {
	mask := uint64(len(t.slots) - 1)
	for i := maphash.String(t.seed, name); ; i++ {
		s := &t.slots[i&mask]
		if *s == 0 || t.name(*s-1) == name {
			return s
		}
	}
}

// insert adds a row, and reports false if its name is taken.
func (t *nameTable) insert(row uint32) bool {
	if t.used*2 >= len(t.slots) {
		old := t.slots
		t.slots = make([]uint32, 2*len(old))
		for _, s := range old {
			if s != 0 {
				*t.slot(t.name(s - 1)) = s
			}
		}
	}
	s := t.slot(t.name(row))
	if *s != 0 {
		return false
	}
	*s = row + 1
	t.used++
	return true
}

// find returns the row of the given cleaned name.
func (t *nameTable) find(name string) (row uint32, ok bool) {
	s := *t.slot(name)
	return s - 1, s != 0
}
