package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
)

// backupSuffix ends the name of the copy of a file that was there before graze.
const backupSuffix = ".before-graze"

// A Change says what a file is to become.
type Change struct {
	Path   string      // as the machine sees it, without the root
	Old    []byte      // nil if there is no such file
	New    []byte      // nil if it is to go
	Mode   fs.FileMode // of a new file
	Backup bool        // keep the first version beside it
	Secret bool        // not to be shown
	Link   string      // what a symbolic link points to; New says so in words
}

// Verb says in one word what the change does.
func (c *Change) Verb() string {
	switch {
	case c.Old == nil:
		return "made"
	case c.New == nil:
		return "removed"
	}
	return "changed"
}

// A Plan is a list of changes and what has to be done after them.
type Plan struct {
	Changes []Change
	Steps   [][]string // commands to be run, in this order
	Notes   []string   // for a person

	root string
}

// Empty reports whether the machine is as the plan wants it.
func (p *Plan) Empty() bool { return len(p.Changes) == 0 }

// changes reports whether the plan changes a file.
func (p *Plan) changes(path string) bool {
	for _, c := range p.Changes {
		if c.Path == path {
			return true
		}
	}
	return false
}

// read returns the content of a file, nil if there is none.
func (p *Plan) read(path string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(p.root, path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && text == nil {
		text = []byte{}
	}
	return text, err
}

// then plans commands.
func (p *Plan) then(commands ...string) {
	for _, c := range commands {
		p.Steps = append(p.Steps, strings.Fields(c))
	}
}

// set plans the content of a file.
func (p *Plan) set(c Change) error {
	old, err := p.read(c.Path)
	if err != nil {
		return err
	}
	c.Old = old
	if (old == nil) != (c.New == nil) || !bytes.Equal(old, c.New) {
		p.Changes = append(p.Changes, c)
	}
	return nil
}

// remove plans the end of a file, or of a link, which may point to nothing.
func (p *Plan) remove(path string) error {
	if target, err := os.Readlink(filepath.Join(p.root, path)); err == nil {
		p.Changes = append(p.Changes, Change{Path: path, Old: linkTo(target)})
		return nil
	}
	return p.set(Change{Path: path})
}

// link plans a symbolic link. What is there and is none is left alone.
func (p *Plan) link(path, target string) {
	old, err := os.Readlink(filepath.Join(p.root, path))
	c := Change{Path: path, New: linkTo(target), Link: target}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil || old == target:
		return
	default:
		c.Old = linkTo(old)
	}
	p.Changes = append(p.Changes, c)
}

// linkTo says in words what a link is.
func linkTo(target string) []byte { return []byte("a link to " + target + "\n") }

// Diff shows the plan as a unified diff. Of a program only the sizes are shown.
func (p *Plan) Diff() string {
	var b strings.Builder
	for _, c := range p.Changes {
		oldName, newName := c.Path, c.Path
		if c.Old == nil {
			oldName = "/dev/null"
		}
		if c.New == nil {
			newName = "/dev/null"
		}
		if c.Secret {
			fmt.Fprintf(&b, "--- %s\n+++ %s\n(a secret)\n", oldName, newName)
			continue
		}
		if !utf8.Valid(c.Old) || !utf8.Valid(c.New) {
			fmt.Fprintf(&b, "--- %s\n+++ %s\n(a program: %d bytes, before %d)\n", oldName, newName, len(c.New), len(c.Old))
			continue
		}
		b.WriteString(udiff.Unified(oldName, newName, string(c.Old), string(c.New)))
	}
	return b.String()
}

// Apply makes the changes. Each file is replaced in one step; what was done before
// an error stays, and a further plan goes on from there.
func (p *Plan) Apply() error {
	for _, c := range p.Changes {
		if err := p.apply(c); err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
	}
	return nil
}

func (p *Plan) apply(c Change) error {
	path := filepath.Join(p.root, c.Path)
	if c.New == nil {
		return os.Remove(path)
	}
	if c.Link != "" {
		return relink(path, c.Link)
	}
	// Who has made the file a link wants what it points to changed.
	if target, err := filepath.EvalSymlinks(path); err == nil && strings.HasPrefix(target, p.root) {
		path = target
	}
	mode := c.Mode
	if st, err := os.Stat(path); err == nil && !c.Secret {
		mode = st.Mode().Perm()
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if c.Backup && c.Old != nil {
		if _, err := os.Lstat(path + backupSuffix); errors.Is(err, fs.ErrNotExist) {
			if err := replace(path+backupSuffix, c.Old, mode); err != nil {
				return err
			}
		}
	}
	return replace(path, c.New, mode)
}

// relink makes a symbolic link, in place of one that is there.
func relink(path, target string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return err
	}
	return os.Symlink(target, path)
}

// replace writes a file in one step.
func replace(path string, text []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".graze-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
