package image

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
)

// A cursor walks a file system of a tree from its root on. It does not leave
// it, whatever symbolic links it comes upon.
type cursor struct {
	*tree
	root   uint32
	path   []uint32 // dirents from the root to the directory where it stands
	linked int      // symbolic links followed so far
	steps  int      // components of paths so far
}

func newCursor(t *tree, root uint32) *cursor { return &cursor{tree: t, root: root} }

// dir returns the directory where the cursor stands.
func (c *cursor) dir() uint32 {
	if len(c.path) == 0 {
		return c.root
	}
	return c.dirents.at(c.path[len(c.path)-1]).ino
}

// notFound is for walk.
func notFound(string) (uint32, error) { return 0, fs.ErrNotExist }

// walk goes along a path of directories and symbolic links to directories.
// Where there is no such name, it takes the dirent that missing returns for it.
// As in containerd, a link's target is cleaned before it is followed: "a/../b"
// in it is "b" whatever "a" is.
func (c *cursor) walk(p string, missing func(name string) (uint32, error)) error {
	for rest := p; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			c.path = c.path[:max(len(c.path)-1, 0)]
			continue
		}
		if c.steps++; c.steps > MaxSteps {
			return fmt.Errorf("path of more than %d components", MaxSteps)
		}
		e := c.find(c.dir(), name)
		if c.dirents.at(e).ino == 0 {
			var err error
			if e, err = missing(name); err != nil {
				return err
			}
		}
		switch n := c.inodes.at(c.dirents.at(e).ino); n.mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			if len(c.path) >= MaxDepth {
				return fmt.Errorf("more than %d directories deep", MaxDepth)
			}
			c.path = append(c.path, e)
		case syscall.S_IFLNK:
			if c.linked++; c.linked > MaxLinks {
				return fmt.Errorf("%.80q: %w", name, ErrManyLinks)
			}
			target := path.Clean(string(c.links[n.a:][:n.b]))
			if path.IsAbs(target) {
				c.path = c.path[:0]
			}
			rest = target + "/" + rest
		default:
			return fmt.Errorf("%.80q: %w", name, ErrNotDir)
		}
	}
	return nil
}
