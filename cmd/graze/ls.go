package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"graze/node"
)

// newLs returns the command that lists a folder of an image.
func newLs(o *options) *cobra.Command {
	index := indexMode("build")
	c := &cobra.Command{
		Use:   "ls IMAGE [PATH]",
		Short: "List a folder of an image without mounting it",
		Example: `  graze ls registry.example/debian:12 /etc
  graze ls --json registry.example/debian:12 /usr/bin/python3`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			lib, img, err := o.openImage(c, args[0])
			if err != nil {
				return err
			}
			defer lib.Close()
			bars := newProgress(o.stderr)
			view, err := lib.OpenView(c.Context(), img, node.IndexOptions{Build: index == "build", Progress: bars.layer})
			bars.close()
			if err != nil {
				return explainIndex(err, args[0])
			}
			defer view.Close()
			return o.list(view, pathArg(args))
		},
	}
	o.addRegistryFlags(c)
	c.Flags().Var(&index, "index", "what to do with a layer that has no index: build it, or require it and fail")
	c.Flags().BoolVar(&o.json, "json", false, "print one JSON object a line")
	return c
}

// openImage opens the library and resolves a reference. The caller closes the
// library.
func (o *options) openImage(c *cobra.Command, ref string) (*node.Library, *node.Image, error) {
	cfg, err := o.config(c)
	if err != nil {
		return nil, nil, err
	}
	lib, err := node.OpenLibrary(cfg)
	if err != nil {
		return nil, nil, err
	}
	img, err := lib.Resolve(c.Context(), ref)
	if err != nil {
		return nil, nil, errors.Join(err, lib.Close())
	}
	return lib, img, nil
}

// pathArg returns the path in the image, the root if there is none.
func pathArg(args []string) string {
	if len(args) < 2 {
		return "/"
	}
	return path.Clean("/" + args[1])
}

// A listing is what ls prints of a name.
type listing struct {
	Name  string    `json:"name"`
	Ino   uint64    `json:"ino"`
	Mode  string    `json:"mode"` // as ls(1) prints it
	NLink uint32    `json:"nlink"`
	UID   uint32    `json:"uid"`
	GID   uint32    `json:"gid"`
	Size  int64     `json:"size"`
	MTime time.Time `json:"mtime"`
	Link  string    `json:"link,omitempty"` // target of a symbolic link
}

// list prints the entries of a folder, or what is at path if that is no folder.
func (o *options) list(v *node.View, path string) error {
	ino, err := v.Resolve(path)
	if err != nil {
		return err
	}
	var out []listing
	if attr, _ := v.Attr(ino); attr.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		for _, d := range v.ReadDir(ino, 0) {
			out = append(out, listingOf(v, d.Name, d.Ino))
		}
	} else {
		out = append(out, listingOf(v, path, ino))
	}
	if o.json {
		for _, l := range out {
			if err := o.printJSON(l); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(o.stdout, 0, 0, 1, ' ', tabwriter.AlignRight)
	for _, l := range out {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\t %s\n", l.Mode, l.NLink, l.UID, l.GID, l.Size, l.MTime.UTC().Format("2006-01-02 15:04"), l.title())
	}
	return w.Flush()
}

// listingOf returns the listing of an inode under a name.
func listingOf(v *node.View, name string, ino uint64) listing {
	a, _ := v.Attr(ino)
	target, _ := v.Readlink(ino)
	return listing{
		Name:  strings.Clone(name), // it points into the view
		Ino:   ino,
		Mode:  modeString(a.Mode),
		NLink: a.NLink,
		UID:   a.UID,
		GID:   a.GID,
		Size:  a.Size,
		MTime: time.Unix(a.MTime.Sec, int64(a.MTime.Nsec)).UTC(),
		Link:  strings.Clone(target),
	}
}

// title returns the name, and what a symbolic link leads to, with bytes that a
// terminal could take for commands quoted.
func (l *listing) title() string {
	name := printable(l.Name)
	if l.Link != "" {
		name += " -> " + printable(l.Link)
	}
	return name
}

// printable returns s, quoted if it has bytes that don't print.
func printable(s string) string {
	if q := fmt.Sprintf("%q", s); q[1:len(q)-1] != s {
		return q
	}
	return s
}

// modeString returns a mode as ls(1) prints it: "-rwsr-xr-x".
func modeString(mode uint32) string {
	kinds := map[uint32]byte{
		syscall.S_IFREG: '-', syscall.S_IFDIR: 'd', syscall.S_IFLNK: 'l', syscall.S_IFCHR: 'c',
		syscall.S_IFBLK: 'b', syscall.S_IFIFO: 'p', syscall.S_IFSOCK: 's',
	}
	s := []byte("?---------")
	if k, ok := kinds[mode&syscall.S_IFMT]; ok {
		s[0] = k
	}
	for i, c := range []byte("rwxrwxrwx") {
		if mode&(1<<(8-i)) != 0 {
			s[i+1] = c
		}
	}
	for _, special := range []struct {
		bit       uint32
		at        int
		with, out byte
	}{{syscall.S_ISUID, 3, 's', 'S'}, {syscall.S_ISGID, 6, 's', 'S'}, {syscall.S_ISVTX, 9, 't', 'T'}} {
		if mode&special.bit == 0 {
			continue
		}
		if s[special.at] == 'x' {
			s[special.at] = special.with
		} else {
			s[special.at] = special.out
		}
	}
	return string(s)
}

// newCat returns the command that prints a file of an image.
func newCat(o *options) *cobra.Command {
	index := indexMode("build")
	c := &cobra.Command{
		Use:     "cat IMAGE PATH",
		Short:   "Print a file of an image without mounting it",
		Example: "  graze cat registry.example/debian:12 /etc/os-release",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return runCat(c, o, index, args)
		},
	}
	o.addRegistryFlags(c)
	o.addDeadlineFlag(c)
	c.Flags().Var(&index, "index", "what to do with a layer that has no index: build it, or require it and fail")
	return c
}

// runCat copies a file of an image to standard output. Its chunks are fetched
// and forgotten, so that it works beside a running mount.
func runCat(c *cobra.Command, o *options, index indexMode, args []string) (err error) {
	cfg, err := o.config(c)
	if err != nil {
		return err
	}
	cfg.Uncached = true
	n, err := node.Open(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.Context())
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ran, n.Close())
	}()
	img, err := n.Resolve(ctx, args[0])
	if err != nil {
		return err
	}
	bars := newProgress(o.stderr)
	tree, err := n.OpenTree(ctx, img, node.IndexOptions{Build: index == "build", Progress: bars.layer})
	bars.close()
	if err != nil {
		return explainIndex(err, args[0])
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	return copyFile(ctx, o.stdout, tree, pathArg(args))
}

// copyFile writes a regular file of a tree to w.
func copyFile(ctx context.Context, w io.Writer, t *node.Tree, path string) error {
	ino, err := t.View.Resolve(path)
	if err != nil {
		return err
	}
	attr, _ := t.View.Attr(ino)
	if attr.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return &fs.PathError{Op: "read", Path: path, Err: errors.New("is not a regular file")}
	}
	buf := make([]byte, min(1<<20, attr.Size))
	for off := int64(0); off < attr.Size; off += int64(len(buf)) {
		p := buf[:min(int64(len(buf)), attr.Size-off)]
		if _, err := t.Files.ReadAt(ctx, ino, p, off); err != nil {
			return &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}
