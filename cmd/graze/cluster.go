package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"graze/copies"
	"graze/node"
)

// onNode connects to the node that runs on the state folder and calls f.
func (o *options) onNode(ctx context.Context, f func(context.Context, *node.Remote) error) error {
	remote, err := node.Dial(node.Socket(o.state))
	if err == nil {
		defer remote.Close()
		err = f(ctx, remote)
	}
	if errors.Is(err, node.ErrNotRunning) {
		if _, err := os.Stat(node.Socket(o.state)); errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w: run it as root, as the node", err)
		}
		return fmt.Errorf("%w: start 'graze node' or 'graze mount', or name another folder with --state", err)
	}
	return err
}

// newPeers returns the command that lists the members of a node's cluster.
func newPeers(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:     "peers",
		Short:   "List the members of a node's cluster, and what came from them",
		Example: "  graze peers\n  graze peers --json | jq '.[] | select(.state != \"good\")'",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.onNode(c.Context(), func(ctx context.Context, r *node.Remote) error {
				list, err := r.Peers(ctx)
				if err != nil {
					return err
				}
				if o.json {
					return o.printJSON(list)
				}
				w := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "NODE\tRACK\tROLE\tWEIGHT\tADDRESS\tSTATE\tIN\tOUT\tERRORS\tCORRUPT\tBROKE RULES\tPER MIB\tREASON")
				for _, p := range list {
					state := p.State
					switch {
					case p.Self:
						state = "this node"
					case !p.Ready:
						state = "not ready"
					case state == "":
						state = "not asked yet"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n",
						p.Name, p.Rack, p.Role, p.Weight, p.Addr, state, size(p.In), size(p.Out), p.Errors, p.Corrupt,
						p.Violations+p.SlowReads, short(p.PerMiB), p.Reason)
				}
				return w.Flush()
			})
		},
	}
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// newPs returns the command that lists a node's mounts and containerd's images.
func newPs(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "ps",
		Short: "List what a node has mounted, how much of it is here, and why images are served as they are",
		Example: `  graze ps
  graze ps --json | jq '.mounts[].layers'
  graze ps --json | jq '.images[] | select(.reason != "lazy")'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.onNode(c.Context(), func(ctx context.Context, r *node.Remote) error {
				s, err := r.Stats(ctx)
				if err != nil {
					return err
				}
				if o.json {
					return o.printJSON(struct {
						Mounts []node.MountStats  `json:"mounts"`
						Images []node.PulledImage `json:"images"`
					}{s.Mounts, s.Containerd.Images})
				}
				if err := o.printMounts(s); err != nil {
					return err
				}
				return o.printPulled(s.Containerd.Images)
			})
		},
	}
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// imageOf names the image of a mount, and says if it may not be the current one.
func imageOf(m node.MountStats) string {
	if m.Stale {
		return m.Reference + " (stale)"
	}
	return m.Reference
}

// verdict says whether an image is safe without its registry, and why.
func verdict(s copies.Status) string {
	answer := "no, "
	if s.Safe {
		answer = "yes, "
	}
	answer += s.Why
	if s.Wanted > 0 {
		// 100 % only of all.
		answer += fmt.Sprintf(" (%.0f %% has a copy, %.0f %% has %d)", math.Floor(100*s.One), math.Floor(100*s.All), s.Wanted)
	}
	return answer
}

// printMounts prints the mounts of a node, with their layers, and where their
// bytes came from.
func (o *options) printMounts(s node.Stats) error {
	w := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MOUNT\tIMAGE\tDIGEST\tFORMAT\tHERE\tREAD\tERRORS")
	for _, m := range s.Mounts {
		fmt.Fprintf(w, "%s\t%s\t%.19s\t%s\t%.0f %%\t%s\t%d\n", m.Dir, imageOf(m), m.Digest, m.Format,
			100*float64(m.Local)/float64(max(m.Chunks, 1)), size(m.ReadBytes), m.Errors)
		for _, l := range m.Layers {
			fmt.Fprintf(w, "  layer\t%s\t%.19s\t%s\t\t\t%s\n", size(l.Size), l.Digest, l.Format, l.Index)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, m := range s.Mounts {
		if _, err := fmt.Fprintf(o.stdout, "safe without the registry: %s: %s\n", m.Dir, verdict(m.Safety)); err != nil {
			return err
		}
	}
	for _, src := range s.Sources {
		if _, err := fmt.Fprintf(o.stdout, "from %s %s: %s in %d requests\n", src.Kind, src.Name, size(src.Bytes), src.Requests); err != nil {
			return err
		}
	}
	return nil
}

// printPulled prints the images that containerd has asked for, if there are any.
func (o *options) printPulled(images []node.PulledImage) error {
	if len(images) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nPULLED\tREASON\tIMAGE\tERROR")
	for _, i := range images {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", i.Time.Format(time.DateTime), i.Reason, i.Name, i.Error)
	}
	return w.Flush()
}

// newPreheat returns the command that has a cluster fetch an image before it is
// started.
func newPreheat(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "preheat IMAGE",
		Short: "Have every node of the cluster fetch its share of an image",
		Long: `Preheat has every node fetch those parts of an image that it is the first to be
asked for. When it ends, the cluster has the image once, and starting it anywhere
asks the registry for no layer.`,
		Example: "  graze preheat registry.example/team/app:1.4",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return o.onNode(c.Context(), func(ctx context.Context, r *node.Remote) error {
				failed := 0
				err := r.Preheat(ctx, args[0], func(p node.PreheatResult) {
					if p.Error != "" {
						failed++
					}
					if o.json {
						_ = o.printJSON(p)
					} else if p.Error != "" {
						fmt.Fprintf(o.stdout, "%s: failed: %s\n", p.Node, p.Error)
					} else {
						fmt.Fprintf(o.stdout, "%s: has its %d spans\n", p.Node, p.Spans)
					}
				})
				if err == nil && failed > 0 {
					err = fmt.Errorf("%d nodes could not fetch their share; the others' is there", failed)
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&o.json, "json", false, "print JSON, one node a line")
	return c
}

// newSeed returns the commands about images that a seed holds whole.
func newSeed(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "seed",
		Short: "Images that a seed holds whole for its rack",
		Long: `A seed is a node that was started with --seed. It holds whole images: those that
nodes of its rack mount, and those that it is told to.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	add := &cobra.Command{
		Use:     "add IMAGE",
		Short:   "Have the seed hold an image whole",
		Example: "  graze seed add registry.example/team/app:1.4",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			return o.onNode(c.Context(), func(ctx context.Context, r *node.Remote) error {
				ref, err := r.SeedAdd(ctx, args[0])
				if err == nil {
					_, err = fmt.Fprintln(o.stdout, "holding", ref)
				}
				return err
			})
		},
	}
	rm := &cobra.Command{
		Use:   "rm IMAGE",
		Short: "Let the seed drop an image when it needs the room",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			return o.onNode(c.Context(), func(ctx context.Context, r *node.Remote) error {
				return r.SeedRemove(ctx, args[0])
			})
		},
	}
	ls := &cobra.Command{
		Use:   "ls",
		Short: "List the images that the seed holds, and how much of each is there",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.onNode(c.Context(), func(ctx context.Context, r *node.Remote) error {
				list, err := r.SeedList(ctx)
				if err != nil {
					return err
				}
				if o.json {
					return o.printJSON(list)
				}
				w := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "IMAGE\tSPANS\tHERE\tPROBLEM")
				for _, s := range list {
					fmt.Fprintf(w, "%s\t%d\t%.0f %%\t%s\n", s.Reference, s.Spans, 100*float64(s.Have)/float64(max(s.Spans, 1)), s.Error)
				}
				return w.Flush()
			})
		},
	}
	ls.Flags().BoolVar(&o.json, "json", false, "print JSON")
	c.AddCommand(add, rm, ls)
	return c
}
