package image

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
)

// maxResolve is how many symbolic links Resolve follows, as the kernel does.
const maxResolve = 40

// What else than fs.ErrNotExist can be wrong with a path.
var (
	ErrNotDir    = errors.New("not a directory")
	ErrManyLinks = errors.New("too many levels of symbolic links")
)

// Resolve returns the inode that a path leads to. It follows symbolic links,
// the last one too, and both they and ".." stay inside the view: its root is
// "/". An error is a *fs.PathError with fs.ErrNotExist, ErrNotDir or
// ErrManyLinks.
func (v *View) Resolve(path string) (ino uint64, err error) {
	ino = RootIno
	links := 0
	for rest := path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if r, _ := v.inode(ino); r.mode&syscall.S_IFMT != syscall.S_IFDIR {
			return 0, &fs.PathError{Op: "resolve", Path: path, Err: ErrNotDir}
		}
		switch name {
		case "", ".":
			continue
		case "..":
			ino = v.Parent(ino)
			continue
		}
		child, ok := v.Lookup(ino, name)
		if !ok {
			return 0, &fs.PathError{Op: "resolve", Path: path, Err: fs.ErrNotExist}
		}
		target, ok := v.Readlink(child)
		if !ok {
			ino = child
			continue
		}
		if links++; links > maxResolve {
			return 0, &fs.PathError{Op: "resolve", Path: path, Err: ErrManyLinks}
		}
		if strings.HasPrefix(target, "/") {
			ino = RootIno
		}
		rest = target + "/" + rest
	}
	if r, _ := v.inode(ino); strings.HasSuffix(path, "/") && r.mode&syscall.S_IFMT != syscall.S_IFDIR {
		return 0, &fs.PathError{Op: "resolve", Path: path, Err: ErrNotDir}
	}
	return ino, nil
}
