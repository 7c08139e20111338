package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"graze/node"
)

// newVerify returns the command that scrubs the chunk store.
func newVerify(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check all that the store keeps, and drop what has rotted",
		Long: `Verify reads every chunk, and every manifest, config and index, that the state
folder keeps, and compares it with its digest. What has rotted is dropped, to be
fetched again when it is next needed; then the exit code is 1. Running mounts are not disturbed.`,
		Example: "  graze verify --state /data/graze",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return runVerify(c, o) },
	}
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// runVerify checks the state folder, and prints what was found.
func runVerify(c *cobra.Command, o *options) error {
	r, err := verify(c.Context(), o)
	if err != nil {
		return err
	}
	if o.json {
		err = o.printJSON(r)
	} else {
		for _, digest := range r.Corrupt {
			fmt.Fprintln(o.stdout, "corrupt:", digest)
		}
		_, err = fmt.Fprintf(o.stdout, "checked %d chunks, %s, and %d metadata blobs: %d were corrupt and dropped\n",
			r.Chunks, size(r.Bytes), r.Blobs, len(r.Corrupt))
	}
	if err == nil && len(r.Corrupt) > 0 {
		err = fmt.Errorf("%d chunks or blobs were corrupt; they are fetched again when they are next needed", len(r.Corrupt))
	}
	return err
}

// verify has the node that runs on the state folder check it, or does so itself
// where none runs.
func verify(ctx context.Context, o *options) (node.VerifyReport, error) {
	remote, err := node.Dial(node.Socket(o.state))
	if err == nil {
		defer remote.Close()
		if r, err := remote.Verify(ctx); !errors.Is(err, node.ErrNotRunning) {
			return r, err
		}
	} else if !errors.Is(err, node.ErrNotRunning) {
		return node.VerifyReport{}, err
	}
	n, err := node.Open(node.Config{State: o.state, Log: o.logger()})
	if err != nil {
		return node.VerifyReport{}, err
	}
	r, err := n.Verify(ctx)
	return r, errors.Join(err, n.Close())
}
