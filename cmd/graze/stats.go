package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	if s.Cluster.Members > 0 {
		o.printCluster(&s)
	}
	r := s.Reads
	fmt.Fprintf(o.stdout, "\nreads: %d hits (%s), %d misses (%s) that waited %s at p50 and %s at p99; %d corrupt chunks, %s came twice\n",
		r.Hits, size(r.HitBytes), r.Misses, size(r.MissBytes), short(r.WaitP50), short(r.WaitP99), r.Corrupt, size(r.Wasted))
	fmt.Fprintf(o.stdout, "store: %s of %s in %d chunks; %d evicted, %d corrupt\n",
		size(s.Store.Bytes), size(s.Store.Limit), s.Store.Chunks, s.Store.Evicted, s.Store.Corrupt)
	m := s.Metadata
	_, err := fmt.Fprintf(o.stdout, "metadata: %s of %s in %d files, %s of it for images in use; %d files removed\n",
		size(m.Bytes), size(m.Limit), m.Files, size(m.InUse), m.Removed)
	return err
}

// printCluster prints lines about a node's part in its cluster. Lines of what
// should be zero are left out if all of it is.
func (o *options) printCluster(s *node.Stats) {
	v, c := &s.Served, &s.Cluster
	fmt.Fprintf(o.stdout, "\nserved: %s to other nodes in %d requests, %s of it in vain; %d redirects, %d busy, %d absent\n",
		size(v.Bytes), v.Requests, size(v.Abandoned), v.Redirects, v.Busy, v.Absent)
	fmt.Fprintf(o.stdout, "cluster: %d members, %d of them not ready; links: %s; %d nodes avoided for failures, %d for wrong bytes\n",
		c.Members, c.Unready, counts(c.Links), c.Open, c.Quarantined)
	fmt.Fprintf(o.stdout, "asked: %d chunks a second time (%d came from there first, %s in vain), %d again as urgent; %d redirects followed, %d joined a fetch\n",
		c.HedgesFired, c.HedgesWon, size(c.HedgesWasted), c.Promoted, c.Redirects, c.Coalesced)
	if len(c.Errors) > 0 {
		fmt.Fprintf(o.stdout, "requests that broke: %s\n", counts(c.Errors))
	}
	if len(c.Rejected) > 0 || c.GossipRefused > 0 {
		fmt.Fprintf(o.stdout, "strangers turned away: %s; gossip refused %d times\n", counts(c.Rejected), c.GossipRefused)
	}
	if len(c.Violations) > 0 || c.SlowReaders+c.IgnoredHolders+c.BadMembers > 0 {
		fmt.Fprintf(o.stdout, "rules broken by members: %s; %d slow readers cut off, %d holders ignored, %d members unreadable\n",
			counts(c.Violations), c.SlowReaders, c.IgnoredHolders, c.BadMembers)
	}
	if x := &c.Outside; x.Enabled {
		fmt.Fprintf(o.stdout, "outside: %d nodes in the table, %d images announced; %d searches, %d of them found a holder; %d holders known\n",
			x.Peers, x.Provided, x.Searches, x.Found, x.Holders)
	}
}

// counts prints named counts by their names.
func counts(m map[string]int64) string {
	if len(m) == 0 {
		return "none"
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, fmt.Sprintf("%d %s", m[name], name))
	}
	return strings.Join(list, ", ")
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
