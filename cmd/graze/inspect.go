package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"graze/node"
)

// newInspect returns the command that tells of images what can be known without
// reading their files.
func newInspect(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "inspect IMAGE…",
		Short: "Show the indexes of images, what they share, and where their chunks are",
		Long: `Inspect looks for all indexes of images, of all formats, those too that are not
used, and says why. Of the ones that are used it counts the chunks: how many are
repeated within an image, how many the images have in common with each other and
with what else the state folder knows of, and how much of each image is here and
with other nodes. The latter are asked by the node that runs on the state folder.

No index is made, and no file is read.`,
		Example: `  graze inspect registry.example/debian:12
  graze inspect --json registry.example/app:1 registry.example/app:2 | jq '.shared'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return o.inspect(c, args) },
	}
	o.addRegistryFlags(c)
	c.Flags().BoolVar(&o.json, "json", false, "print one JSON object for each image")
	return c
}

// An inspected is what inspect prints of an image.
type inspected struct {
	*node.Inspection

	// Presence is missing if the image can't be mounted as it is.
	Presence *node.Presence `json:"presence,omitempty"`
}

// inspect inspects images and prints what it has found.
func (o *options) inspect(c *cobra.Command, refs []string) error {
	cfg, err := o.config(c)
	if err != nil {
		return err
	}
	lib, err := node.OpenLibrary(cfg)
	if err != nil {
		return err
	}
	defer lib.Close()
	var list []*node.Inspection
	for _, ref := range refs {
		img, err := lib.Resolve(c.Context(), ref)
		if err != nil {
			return err
		}
		in, err := lib.Inspect(c.Context(), img)
		if err != nil {
			return err
		}
		list = append(list, in)
	}
	if err := lib.Compare(list); err != nil {
		return err
	}
	for i, in := range list {
		p, err := presence(c.Context(), cfg, refs[i])
		if err != nil && !errors.Is(err, node.ErrNoIndex) {
			return err
		}
		out := inspected{Inspection: in, Presence: p}
		if o.json {
			err = o.printJSON(out)
		} else {
			err = out.print(o.stdout)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// presence has the node that runs on the state folder say where an image is, or
// looks into the folder where none runs.
func presence(ctx context.Context, cfg node.Config, ref string) (*node.Presence, error) {
	remote, err := node.Dial(node.Socket(cfg.State))
	if err == nil {
		defer remote.Close()
		p, err := remote.Presence(ctx, ref)
		if err == nil {
			return &p, nil
		}
		if !errors.Is(err, node.ErrNotRunning) {
			return nil, err
		}
	} else if !errors.Is(err, node.ErrNotRunning) {
		return nil, err
	}
	n, err := node.Open(cfg)
	if err != nil {
		return nil, err
	}
	p, err := n.Presence(ctx, ref)
	if err = errors.Join(err, n.Close()); err != nil {
		return nil, err
	}
	return &p, nil
}

// print prints for a person.
func (in *inspected) print(w io.Writer) error {
	fmt.Fprintf(w, "%s\n  digest    %s\n  platform  %s\n  layers    %d, %s\n", in.Reference, in.Digest, in.Platform, len(in.Layers), size(in.Size))
	for i, l := range in.Layers {
		fmt.Fprintf(w, "  layer %d   %s, %s\n", i+1, l.Digest, size(l.Size))
		printIndexes(w, l.Indexes)
	}
	if len(in.Whole) > 0 {
		fmt.Fprintln(w, "  all layers")
		printIndexes(w, in.Whole)
	}
	fmt.Fprintf(w, "  chunks    %s\n", content(in.Content))
	if in.Repeated.Chunks > 0 {
		fmt.Fprintf(w, "  repeated  %s\n", content(in.Repeated))
	}
	for _, c := range in.Shared {
		fmt.Fprintf(w, "  shared    %s with %s\n", content(c.Content), c.With)
	}
	if in.Presence == nil {
		_, err := fmt.Fprintf(w, "  A layer has no index: the image can't be mounted before one is made.\n")
		return err
	}
	fmt.Fprintf(w, "  here      %s of %s\n", content(in.Presence.Local), content(in.Presence.Content))
	for _, h := range in.Presence.Peers {
		fmt.Fprintf(w, "  node %s has %d of %d\n", h.Node, h.Have, h.Chunks)
	}
	return nil
}

// printIndexes prints a line for each index.
func printIndexes(w io.Writer, list []node.FoundIndex) {
	if len(list) == 0 {
		fmt.Fprintln(w, "    no index")
	}
	for _, f := range list {
		switch {
		case f.Used:
			fmt.Fprintf(w, "    used      %s, %s: %s\n", f.Format, content(f.Content), f.Index)
		case f.Format != "":
			fmt.Fprintf(w, "    not used  %s, %s: %s; %s\n", f.Format, content(f.Content), f.Index, f.Why)
		default:
			fmt.Fprintf(w, "    unusable  %s\n", f.Why)
		}
	}
}

// content prints a number of chunks.
func content(c node.Content) string { return fmt.Sprintf("%d chunks, %s", c.Chunks, size(c.Bytes)) }
