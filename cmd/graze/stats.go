package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"graze/node"
)

// newStats returns the command that shows what a running node has done.
func newStats(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "stats",
		Short: "Show what the running mounts have read and fetched",
		Example: `  graze stats
  graze stats --state /data/graze --json | jq '[.sources[].bytes] | add'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.onNode(c.Context(), func(ctx context.Context, r *node.Remote) error {
				s, err := r.Stats(ctx)
				if err != nil {
					return err
				}
				if o.json {
					return o.printJSON(s)
				}
				return o.printStats(s)
			})
		},
	}
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// printStats prints tables of mounts and sources, and lines about reads and the
// store.
func (o *options) printStats(s node.Stats) error {
	w := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MOUNT\tIMAGE\tFORMAT\tFILES\tREAD\tP50\tP99\tERRORS")
	for _, m := range s.Mounts {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%d\n", m.Dir, imageOf(m), m.Format, m.Files,
			size(m.ReadBytes), short(m.ReadP50), short(m.ReadP99), m.Errors)
	}
	fmt.Fprintln(w, "\nSOURCE\tREQUESTS\tBYTES\tERRORS\tRETRIES")
	for _, src := range s.Sources {
		fmt.Fprintf(w, "%s %s\t%d\t%s\t%d\t%d\n", src.Kind, src.Name, src.Requests, size(src.Bytes), src.Errors, src.Retries)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if v := s.Served; v.Requests > 0 {
		fmt.Fprintf(o.stdout, "\nserved: %s to other nodes in %d requests; %d redirects, %d busy, %d absent\n",
			size(v.Bytes), v.Requests, v.Redirects, v.Busy, v.Absent)
	}
	r := s.Reads
	fmt.Fprintf(o.stdout, "\nreads: %d hits (%s), %d misses (%s) that waited %s at p50 and %s at p99; %d corrupt chunks\n",
		r.Hits, size(r.HitBytes), r.Misses, size(r.MissBytes), short(r.WaitP50), short(r.WaitP99), r.Corrupt)
	_, err := fmt.Fprintf(o.stdout, "store: %s of %s in %d chunks; %d evicted, %d corrupt\n",
		size(s.Store.Bytes), size(s.Store.Limit), s.Store.Chunks, s.Store.Evicted, s.Store.Corrupt)
	return err
}

// short prints a duration with as many digits as matter.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
