package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"graze/node"
)

// newMount returns the command that mounts an image in the foreground.
func newMount(o *options) *cobra.Command {
	index, socket := indexMode("build"), ""
	c := &cobra.Command{
		Use:   "mount IMAGE DIR",
		Short: "Mount an image on a folder",
		Long: `Mount mounts the root file system of an image on a folder, read-only, and
serves it until it is interrupted or the folder is unmounted. A line is printed
when the mount is ready.

A file's bytes are fetched when they are first read. For that, each layer needs
an index: that of the image's format, such as the table of contents of an eStargz
layer, or graze's own index, which 'graze index --push' publishes beside the image. With --index build, which is
the default, a layer without any is read whole and indexed first.

With --node, a running node mounts the image, and the command ends when the mount
is ready.`,
		Example: `  graze mount registry.example/debian:12 /mnt
  graze mount --plain-http --index require --state /data/graze registry:5000/app /mnt
  graze mount --node /var/lib/graze/graze.sock registry.example/debian:12 /mnt
  chroot /mnt python3 --version; graze umount /mnt`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if socket != "" {
				return mountOn(c, o, socket, index, args[0], args[1])
			}
			return runMount(c, o, index, args[0], args[1])
		},
	}
	o.addRegistryFlags(c)
	o.addDeadlineFlag(c)
	o.addStoreFlag(c)
	c.Flags().Var(&index, "index", "what to do with a layer that has no index: build it, or require it and fail")
	c.Flags().BoolVar(&o.json, "json", false, "print the line as JSON")
	c.Flags().StringVar(&socket, "node", "", "have the node that answers this socket mount the image; it has its own settings")
	for _, own := range []string{"plain-http", "hosts-dir", "platform", "unverified-toc", "read-deadline", "store-limit"} {
		c.MarkFlagsMutuallyExclusive("node", own)
	}
	return c
}

// mountOn has a running node mount an image.
func mountOn(c *cobra.Command, o *options, socket string, index indexMode, ref, dir string) error {
	remote, err := node.Dial(socket)
	if err != nil {
		return fmt.Errorf("%w: start 'graze node'", err)
	}
	defer remote.Close()
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	bars := newProgress(o.stderr)
	info, err := remote.Mount(c.Context(), ref, dir, node.IndexOptions{Build: index == "build", Progress: bars.layer})
	bars.close()
	if err != nil {
		return explainIndex(err, ref)
	}
	return o.printMount(info)
}

// runMount mounts an image and serves it until the command's context is done or
// somebody unmounts it.
func runMount(c *cobra.Command, o *options, index indexMode, ref, dir string) (err error) {
	cfg, err := o.config(c)
	if err != nil {
		return err
	}
	n, err := node.Open(cfg)
	if err != nil {
		return err
	}
	// They would end: this command serves its own mount only.
	if waiting, err := node.WaitingMounts(cfg.State); len(waiting) > 0 || err != nil {
		if err == nil {
			err = fmt.Errorf("%d mounts wait for their node, the first on %s: start 'graze node', unmount them with 'graze umount --all', or name another folder with --state", len(waiting), waiting[0])
		}
		return errors.Join(err, n.Close())
	}
	ctx, stop := context.WithCancel(c.Context())
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ran, n.Close())
	}()

	bars := newProgress(o.stderr)
	m, err := n.Mount(ctx, ref, dir, node.MountOptions{IndexOptions: node.IndexOptions{Build: index == "build", Progress: bars.layer}})
	bars.close()
	if err != nil {
		return explainIndex(err, ref)
	}
	if err := o.printMount(m.Info()); err != nil {
		return err
	}
	<-m.Done()
	return m.Err()
}

// printMount prints the line that says that a mount is ready.
func (o *options) printMount(info node.MountInfo) error {
	ms := info.Took.Milliseconds()
	if o.json {
		return o.printJSON(struct {
			node.MountInfo
			Milliseconds int64 `json:"milliseconds"`
		}{info, ms})
	}
	stale := ""
	if info.Stale {
		stale = ", as last known: the registry does not answer"
	}
	_, err := fmt.Fprintf(o.stdout, "mounted %s on %s: %s, %s, %d layers, %d files, %d ms%s\n",
		info.Reference, info.Dir, info.Digest, info.Format, len(info.Layers), info.Files, ms, stale)
	return err
}

// indexMode is a flag that says what to do with a layer that has no index.
type indexMode string

// String implements pflag.Value.
func (m *indexMode) String() string { return string(*m) }

// Type implements pflag.Value.
func (m *indexMode) Type() string { return "mode" }

// Set implements pflag.Value.
func (m *indexMode) Set(s string) error {
	if s != "build" && s != "require" {
		return fmt.Errorf("it is build or require, not %q", s)
	}
	*m = indexMode(s)
	return nil
}

// layer shows how much of a layer has been indexed.
func (p *progress) layer(at node.Progress) {
	digits := strings.TrimPrefix(string(at.Layer), "sha256:")
	p.update("indexing "+digits[:min(12, len(digits))], at.Done, at.Total)
}

// newUmount returns the command that takes mounts away.
func newUmount(o *options) *cobra.Command {
	lazy, force, all := false, false, false
	c := &cobra.Command{
		Use:   "umount DIR | umount --all",
		Short: "Unmount an image, or all of a node",
		Long: `Umount takes the mount on a folder away, whether or not it is being served; a
'graze mount' that serves it ends. With --all it does so with all mounts of the node
that has the state folder, whether or not it runs.`,
		Example: "  graze umount /mnt\n  graze umount --lazy /mnt\n  graze umount --all --force",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if all == (len(args) == 1) {
				return &usageError{command: c.CommandPath(), err: errors.New("it takes a folder, or --all")}
			}
			dirs := args
			var errs []error
			if all {
				list, err := node.MountDirs(o.state)
				dirs, errs = list, []error{err}
			}
			for _, dir := range dirs {
				err := unmount(dir, lazy, force)
				if all && errors.Is(err, node.ErrNotMounted) {
					continue // and the node has not heard of it
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	f := c.Flags()
	f.BoolVar(&all, "all", false, "unmount all images of the node that has the state folder")
	f.BoolVar(&lazy, "lazy", false, "take a mount away that is in use; it is served until its last user is gone")
	f.BoolVar(&force, "force", false, "take a mount away that is in use, and have all who use or wait for it get errors")
	c.MarkFlagsMutuallyExclusive("lazy", "force")
	return c
}

func unmount(dir string, lazy, force bool) error {
	if force {
		return node.Abort(dir)
	}
	return node.Unmount(dir, lazy)
}
