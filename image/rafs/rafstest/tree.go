package rafstest

import (
	"archive/tar"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
)

// A Node is a file of any kind. One that is in several directories, or several
// times in one, is a file with hard links.
type Node struct {
	Mode     uint32 // with the bits of the type
	UID, GID uint32
	Sec      int64 // of the modification time
	Nsec     uint32
	Rdev     uint32 // of a device, as the formats have it
	Target   string // of a symbolic link
	Xattrs   []Xattr
	Data     []byte  // of a regular file
	Entries  []Entry // of a directory, in any order

	nlink  int
	ino    int
	chunks []*piece
}

// An Entry is a name in a directory.
type Entry struct {
	Name string
	Node *Node
}

// An Xattr is an extended attribute. Its name has one of the prefixes that the
// formats know.
type Xattr struct {
	Name, Value string
}

func (n *Node) is(typ uint32) bool { return n.Mode&unix.S_IFMT == typ }

// FromDir returns the tree at dir. It reads all files.
func FromDir(dir string) (*Node, error) {
	files := make(map[[2]uint64]*Node)
	nodes := make(map[string]*Node)
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: name, Err: err}
		}
		key := [2]uint64{st.Dev, st.Ino}
		n := files[key]
		if n == nil {
			n = &Node{
				Mode: st.Mode, UID: st.Uid, GID: st.Gid,
				Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec), Rdev: deviceNumber(st.Rdev),
			}
			if err := n.read(name); err != nil {
				return err
			}
			files[key] = n
		}
		nodes[name] = n
		if name != dir {
			parent := nodes[filepath.Dir(name)]
			parent.Entries = append(parent.Entries, Entry{filepath.Base(name), n})
		}
		return nil
	})
	return nodes[dir], err
}

// deviceNumber returns a number of stat(2) in 32 bits, as the kernel packs it.
func deviceNumber(rdev uint64) uint32 {
	major, minor := unix.Major(rdev), unix.Minor(rdev)
	return (major&0xfff)<<8 | minor&0xff | (minor&^0xff)<<12
}

// read reads what stat(2) doesn't tell.
func (n *Node) read(name string) (err error) {
	switch {
	case n.is(unix.S_IFREG):
		n.Data, err = os.ReadFile(name)
	case n.is(unix.S_IFLNK):
		n.Target, err = os.Readlink(name)
	}
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	k, err := unix.Llistxattr(name, buf)
	if err != nil {
		return &fs.PathError{Op: "llistxattr", Path: name, Err: err}
	}
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(buf[:k]), "\x00"), "\x00") {
		if attr == "" {
			continue
		}
		value := make([]byte, 64<<10)
		k, err := unix.Lgetxattr(name, attr, value)
		if err != nil {
			return &fs.PathError{Op: "lgetxattr " + attr, Path: name, Err: err}
		}
		n.Xattrs = append(n.Xattrs, Xattr{attr, string(value[:k])})
	}
	return nil
}

// prepare sorts directories, counts names and numbers the files, in the order in
// which their first names stand.
func (n *Node) prepare(next *int, seen map[*Node]bool) {
	n.nlink++
	if seen[n] {
		return
	}
	seen[n] = true
	*next++
	n.ino = *next
	if !n.is(unix.S_IFDIR) {
		return
	}
	n.nlink = 2
	slices.SortFunc(n.Entries, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	for _, e := range n.Entries {
		if e.Node.is(unix.S_IFDIR) {
			n.nlink++
		}
		e.Node.prepare(next, seen)
	}
}

// reset forgets what an earlier build left in the tree.
func (n *Node) reset() {
	n.nlink, n.ino, n.chunks = 0, 0, nil
	for _, e := range n.Entries {
		e.Node.reset()
	}
}

// find returns the node at a path, with slashes between names.
func (n *Node) find(path string) (*Node, error) {
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		i := slices.IndexFunc(n.Entries, func(e Entry) bool { return e.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("the tree has no %s", path)
		}
		n = n.Entries[i].Node
	}
	return n, nil
}

// eachFile calls f for each regular file once.
func (n *Node) eachFile(seen map[*Node]bool, f func(*Node) error) error {
	if seen[n] {
		return nil
	}
	seen[n] = true
	if n.is(unix.S_IFREG) {
		return f(n)
	}
	for _, e := range n.Entries {
		if err := e.Node.eachFile(seen, f); err != nil {
			return err
		}
	}
	return nil
}

// FromLayer returns the tree of a layer's directories, files and symbolic links,
// each of which comes after its directory.
func FromLayer(l imagetest.Layer) (*Node, error) {
	root := &Node{Mode: unix.S_IFDIR | 0o755}
	nodes := map[string]*Node{".": root}
	for m := range l.Members {
		h := &m.Header
		n := &Node{
			UID: uint32(h.Uid), GID: uint32(h.Gid), Target: h.Linkname,
			Sec: h.ModTime.Unix(), Nsec: uint32(h.ModTime.Nanosecond()),
		}
		switch h.Typeflag {
		case tar.TypeDir:
			n.Mode = unix.S_IFDIR
		case tar.TypeReg:
			n.Mode = unix.S_IFREG
		case tar.TypeSymlink:
			n.Mode = unix.S_IFLNK
		default:
			return nil, fmt.Errorf("%s is of type %q", h.Name, h.Typeflag)
		}
		n.Mode |= uint32(h.Mode & 0o7777)
		if m.Body != nil {
			var err error
			if n.Data, err = io.ReadAll(m.Body()); err != nil {
				return nil, err
			}
		}
		name := path.Clean(h.Name)
		parent := nodes[path.Dir(name)]
		if parent == nil {
			return nil, fmt.Errorf("%s comes before its directory", h.Name)
		}
		parent.Entries = append(parent.Entries, Entry{path.Base(name), n})
		nodes[name] = n
	}
	return root, nil
}
