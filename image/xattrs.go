package image

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
)

// xattrSets keeps each distinct set of extended attributes once, in the form
// that it has in a view file: by rising name, each attribute as the length of
// its name in one byte, the length of its value in four, name and value.
type xattrSets struct {
	bytes   []byte
	ends    []uint32          // where set n, from 1 on, ends in bytes; ends[0] is 0
	numbers map[string]uint32 // of the sets, by their encoded form
}

func newXattrSets() xattrSets {
	return xattrSets{ends: []uint32{0}, numbers: make(map[string]uint32)}
}

// set returns the encoded form of set n.
func (s *xattrSets) set(n uint32) []byte {
	if n == 0 {
		return nil
	}
	return s.bytes[s.ends[n-1]:s.ends[n]]
}

// add returns the number of the set of attributes that an inode of the mode
// given has after list was set on top of set number base. If a name occurs
// twice, the later value counts.
func (s *xattrSets) add(base uint32, list []Xattr, mode uint32) (uint32, error) {
	list, err := settable(list, mode)
	if err != nil || len(list) == 0 {
		return base, err
	}
	var all []Xattr
	for set := s.set(base); len(set) > 0; {
		name, value, rest, _ := cutXattr(set)
		all = append(all, Xattr{string(name), value})
		set = rest
	}
	all = append(all, list...)
	slices.SortStableFunc(all, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	var p []byte
	for i, x := range all {
		if i+1 < len(all) && all[i+1].Name == x.Name {
			continue
		}
		p = append(p, byte(len(x.Name)))
		p = le.AppendUint32(p, uint32(len(x.Value)))
		p = append(p, x.Name...)
		p = append(p, x.Value...)
	}
	if n, ok := s.numbers[string(p)]; ok {
		return n, nil
	}
	if len(p) > math.MaxUint32-len(s.bytes) {
		return 0, fmt.Errorf("extended attributes of more than %d bytes", uint32(math.MaxUint32))
	}
	s.bytes = append(s.bytes, p...)
	n := uint32(len(s.ends))
	s.ends = append(s.ends, uint32(len(s.bytes)))
	s.numbers[string(p)] = n
	return n, nil
}

// settable returns those attributes of list that setxattr(2) would set for
// containerd on an inode of the mode given. Containerd ignores that the others
// fail: those of the namespace trusted, which it never sets; those of
// namespaces that don't exist; those of the namespace user for what is neither
// file nor directory; and access control lists of symbolic links.
func settable(list []Xattr, mode uint32) ([]Xattr, error) {
	typ := mode & syscall.S_IFMT
	var out []Xattr
	for _, x := range list {
		space, rest, _ := strings.Cut(x.Name, ".")
		var ok bool
		switch space {
		case "user":
			ok = typ == syscall.S_IFREG || typ == syscall.S_IFDIR
		case "security":
			ok = true
		case "system":
			ok = typ != syscall.S_IFLNK && (rest == "posix_acl_access" ||
				rest == "posix_acl_default" && typ == syscall.S_IFDIR)
		}
		if !ok || rest == "" {
			continue
		}
		if len(x.Name) > MaxXattrName || strings.IndexByte(x.Name, 0) >= 0 {
			return nil, fmt.Errorf("xattr %.80q has a NUL or more than %d bytes in its name", x.Name, MaxXattrName)
		}
		if len(x.Value) > MaxXattrValue {
			return nil, fmt.Errorf("xattr %q has %d bytes, more than %d", x.Name, len(x.Value), MaxXattrValue)
		}
		out = append(out, x)
	}
	return out, nil
}
