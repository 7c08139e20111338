package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"graze/node"
)

// newIndex returns the command that makes the index of an image.
func newIndex(o *options) *cobra.Command {
	push, layout := false, ""
	c := &cobra.Command{
		Use:   "index IMAGE",
		Short: "Make the index of an unmodified image",
		Long: `Index reads the layers of an image once and makes the index that lets every node
mount it without pulling it. The image is not changed: its digest, signatures and
scans stay valid, and nodes without graze go on using it.

The index is kept in the state folder. --push publishes it in the image's
repository, as an OCI artifact whose subject is the image; -o writes the artifact
as an OCI layout. Layers that are indexed already, for this or another image, are
not read again.`,
		Example: `  graze index --push registry.example/team/app:1.4
  graze index -o app-index.oci registry.example/team/app:1.4`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return runIndex(c, o, args[0], push, layout)
		},
	}
	o.addRegistryFlags(c)
	c.Flags().BoolVar(&push, "push", false, "publish the index as a referrer of the image")
	c.Flags().StringVarP(&layout, "output", "o", "", "write the index as an OCI layout to this folder")
	c.Flags().BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

// An indexResult is what the command index prints.
type indexResult struct {
	Reference string             `json:"reference"`
	Digest    string             `json:"digest"`
	Layers    []node.LayerReport `json:"layers"`
	Pushed    string             `json:"pushed,omitempty"` // digest of the artifact
	Layout    string             `json:"layout,omitempty"` // folder that it was written to
}

// runIndex makes the index of an image, and publishes it where that is wanted.
func runIndex(c *cobra.Command, o *options, ref string, push bool, layout string) error {
	cfg, err := o.config(c)
	if err != nil {
		return err
	}
	lib, err := node.OpenLibrary(cfg)
	if err != nil {
		return err
	}
	defer lib.Close()
	img, err := lib.Resolve(c.Context(), ref)
	if err != nil {
		return err
	}
	bars := newProgress(o.stderr)
	x, err := lib.BuildIndex(c.Context(), img, node.IndexOptions{Progress: bars.layer})
	bars.close()
	if err != nil {
		return err
	}
	result := indexResult{Reference: img.Reference, Digest: string(img.Digest), Layers: x.Layers}
	if push {
		d, err := lib.Publish(c.Context(), x)
		switch {
		case errors.Is(err, node.ErrNothingToPublish):
			fmt.Fprintln(o.stderr, "graze:", err)
		case err != nil:
			return err
		}
		result.Pushed = string(d)
	}
	if layout != "" {
		if _, err := lib.WriteLayout(c.Context(), x, layout); err != nil {
			return err
		}
		result.Layout = layout
	}
	return o.printIndex(result)
}

// printIndex prints a line for each layer, and where the index went.
func (o *options) printIndex(r indexResult) error {
	if o.json {
		return o.printJSON(r)
	}
	w := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LAYER\tSIZE\tFORMAT\tTREE\tCHECKPOINTS\tINDEX")
	for _, l := range r.Layers {
		fmt.Fprintf(w, "%.19s\t%s\t%s\t%s\t%s\t%s\n", l.Digest, size(l.Size), l.Format, size(l.Tree), size(l.Checkpoints), l.Index)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Pushed != "" {
		fmt.Fprintf(o.stdout, "pushed %s as a referrer of %s\n", r.Pushed, r.Reference)
	}
	if r.Layout != "" {
		fmt.Fprintf(o.stdout, "wrote the index to %s\n", r.Layout)
	}
	return nil
}

// explainIndex adds to an error about a missing index what can be done.
func explainIndex(err error, ref string) error {
	if errors.Is(err, node.ErrNoIndex) {
		return fmt.Errorf("%w: run 'graze index --push %s' once, or use --index build", err, ref)
	}
	return err
}
