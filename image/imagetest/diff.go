package imagetest

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// Fields is a set of what a Node has.
type Fields uint32

// The fields. Which kind of file it is, and the names in a tree, are always
// compared.
const (
	Perm    Fields = 1 << iota // permission bits, with suid, sgid and sticky
	Owner                      // user and group
	Size                       // in bytes
	Blocks                     // allocated
	NLink                      // number of names that the file system reports
	Rdev                       // of a device
	MTime                      // modification time
	Ino                        // inode number
	Target                     // of a symbolic link
	Xattrs                     // extended attributes
	Content                    // bytes of a regular file
	Holes                      // where a regular file has data
	Groups                     // which names are hard links to one file
)

// DiffOptions says what Diff leaves out. The zero value compares everything.
type DiffOptions struct {
	Ignore    Fields            // of all nodes
	IgnoreDir Fields            // of directories
	IgnoreAt  map[string]Fields // of single paths
	Skip      map[string]bool   // paths that are left out with all below them
}

// SameFiles are options for trees on different file systems: they leave out what
// is no business of an image. Sizes of directories, the allocation of blocks
// and inode numbers are the file system's own, and the root's attributes are
// those of the directory in which containerd happened to unpack.
func SameFiles() DiffOptions {
	return DiffOptions{
		Ignore:    Blocks | Ino | Holes,
		IgnoreDir: Size | NLink,
		IgnoreAt:  map[string]Fields{".": Perm | Owner | MTime | Xattrs},
	}
}

// Diff returns the differences between two trees, one a line, by path. In each,
// what a has stands before what b has.
func Diff(a, b Tree, opts DiffOptions) []string {
	all := maps.Clone(a)
	if all == nil {
		all = make(Tree)
	}
	maps.Copy(all, b)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if opts.skips(name) {
			continue
		}
		x, y := a[name], b[name]
		switch {
		case x == nil:
			out = append(out, fmt.Sprintf("%q: missing in the first, %s in the second", name, kind(y.Mode)))
		case y == nil:
			out = append(out, fmt.Sprintf("%q: %s in the first, missing in the second", name, kind(x.Mode)))
		default:
			for _, d := range diffNodes(x, y, opts.ignored(name, x)) {
				out = append(out, fmt.Sprintf("%q: %s", name, d))
			}
		}
	}
	return out
}

func (o *DiffOptions) skips(name string) bool {
	for len(o.Skip) > 0 {
		if o.Skip[name] {
			return true
		}
		if name == "." {
			break
		}
		name = path.Dir(name)
	}
	return false
}

func (o *DiffOptions) ignored(name string, n *Node) Fields {
	f := o.Ignore | o.IgnoreAt[name]
	if n.Mode&unix.S_IFMT == unix.S_IFDIR {
		f |= o.IgnoreDir
	}
	return f
}

// diffNodes returns the differences between two nodes but in the ignored fields.
func diffNodes(x, y *Node, ignored Fields) []string {
	if kind(x.Mode) != kind(y.Mode) {
		return []string{fmt.Sprintf("kind %s, %s", kind(x.Mode), kind(y.Mode))}
	}
	var out []string
	check := func(f Fields, what, format string, x, y any) {
		if ignored&f == 0 && x != y {
			out = append(out, fmt.Sprintf("%s "+format+", "+format, what, x, y))
		}
	}
	check(Perm, "mode", "%04o", x.Mode&0o7777, y.Mode&0o7777)
	check(Owner, "uid", "%d", x.UID, y.UID)
	check(Owner, "gid", "%d", x.GID, y.GID)
	check(Size, "size", "%d", x.Size, y.Size)
	check(Blocks, "blocks", "%d", x.Blocks, y.Blocks)
	check(NLink, "nlink", "%d", x.NLink, y.NLink)
	check(Rdev, "rdev", "%s", rdev(x), rdev(y))
	check(MTime, "mtime", "%s", stamp(x), stamp(y))
	check(Ino, "ino", "%d", x.Ino, y.Ino)
	check(Target, "target", "%.200q", x.Link, y.Link)
	check(Content, "content sha256", "%.8x…", x.Sum, y.Sum)
	check(Groups, "hard link to", "%q", x.Group, y.Group)
	if ignored&Holes == 0 && !slices.Equal(x.Data, y.Data) {
		out = append(out, fmt.Sprintf("data %s, %s", ranges(x.Data), ranges(y.Data)))
	}
	if ignored&Xattrs == 0 {
		out = append(out, diffXattrs(x.Xattrs, y.Xattrs)...)
	}
	return out
}

func diffXattrs(x, y map[string]string) []string {
	all := maps.Clone(x)
	if all == nil {
		all = make(map[string]string)
	}
	maps.Copy(all, y)
	var out []string
	show := func(m map[string]string, name string) string {
		if v, ok := m[name]; ok {
			return fmt.Sprintf("%.60q", v)
		}
		return "none"
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		vx, okx := x[name]
		vy, oky := y[name]
		if okx != oky || vx != vy {
			out = append(out, fmt.Sprintf("xattr %s %s, %s", name, show(x, name), show(y, name)))
		}
	}
	return out
}

// kind names the type of file in mode.
func kind(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFCHR:
		return "character device"
	case unix.S_IFBLK:
		return "block device"
	case unix.S_IFSOCK:
		return "socket"
	}
	return fmt.Sprintf("type %o", mode&unix.S_IFMT)
}

func rdev(n *Node) string {
	return fmt.Sprintf("%d:%d", unix.Major(n.Rdev), unix.Minor(n.Rdev))
}

func stamp(n *Node) string { return n.MTime.Format("2006-01-02T15:04:05.999999999Z") }

// ranges prints the first few of a list.
func ranges(list []Range) string {
	s := fmt.Sprintf("in %d ranges", len(list))
	for i, r := range list {
		if i == 4 {
			return s + " …"
		}
		s += fmt.Sprintf(" %d+%d", r.Off, r.Len)
	}
	return s
}
