package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"graze/chaos/disk"
	"graze/chaos/liar"
	"graze/chaos/scenario"
)

// errScenario ends the command if what must hold has not.
var errScenario = errors.New("the scenario has failed")

// newChaos returns the commands that break things on purpose.
func newChaos(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "chaos",
		Short: "Play faults on a cluster, and see what its readers notice",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newChaosRun(o), newChaosSoak(o), newChaosProxy(o), newChaosList(o), newLiar(), newReader(o), newDisk(o))
	return c
}

// newChaosRun returns the command that plays scenarios.
func newChaosRun(o *options) *cobra.Command {
	cfg, html := scenario.Config{}, ""
	c := &cobra.Command{
		Use:   "run SCENARIO",
		Short: "Play a scenario: a file, or one of 'graze chaos list'",
		Long: `Run starts a cluster of real nodes in network namespaces of this machine, with a
registry, links and disks of their own, plays a scenario's steps on it, and
compares every file that is read with what must be in it. It prints what has held
and what has not, and a timeline. It needs root.`,
		Example: `  graze chaos run outage-mid-rollout
  graze chaos run --html report.html my.yaml
  graze chaos run --off liar    # without the mechanism that it is about: must fail`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := loadScenario(args[0])
			if err != nil {
				return err
			}
			cfg.Log = o.logger()
			return playScenario(c.Context(), o, s, cfg, html)
		},
	}
	f := c.Flags()
	f.BoolVar(&cfg.Off, "off", false, "turn the mechanism off that the scenario is about, to see that it fails then")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of what is random in the faults")
	f.StringSliceVar(&cfg.Running.Sockets, "nodes", nil, "admin sockets of nodes that run, to play on those")
	f.StringVar(&cfg.Running.Registry, "to", "", "with --nodes: URL of a registry, to which the image is pushed")
	f.StringVar(&cfg.Running.Listen, "listen", "127.0.0.1:5000", "with --nodes: where the nodes find that registry, with its faults, by plain HTTP")
	f.Float64Var(&cfg.Stretch, "stretch", 1, "by how much all times of the steps are longer")
	f.StringVar(&cfg.Logs, "logs", "", "file to keep the nodes' logs in")
	f.StringVar(&html, "html", "", "file to write a report with plots to")
	return c
}

// playScenario plays a scenario and shows what came of it.
func playScenario(ctx context.Context, o *options, s *scenario.Scenario, cfg scenario.Config, html string) error {
	r, err := scenario.Play(ctx, s, cfg)
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("play %s: %w: run it as root", s.Name, err)
	}
	if err != nil {
		return fmt.Errorf("play %s: %w", s.Name, err)
	}
	if err := r.Write(o.stdout); err != nil {
		return err
	}
	if html != "" {
		if err := writeHTML(html, r); err != nil {
			return err
		}
	}
	if !r.OK() {
		return errScenario
	}
	return nil
}

// newChaosSoak returns the command that plays random faults for long.
func newChaosSoak(o *options) *cobra.Command {
	cfg, html, length := scenario.Config{}, "", time.Duration(0)
	c := &cobra.Command{
		Use:   "soak",
		Short: "Play random faults for long, and see whether nodes stay in bounds",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg.Log = o.logger()
			return playScenario(c.Context(), o, scenario.Soak(cfg.Seed, length), cfg, html)
		},
	}
	f := c.Flags()
	f.DurationVar(&length, "for", time.Hour, "how long")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of the faults")
	f.StringVar(&cfg.Logs, "logs", "", "file to keep the nodes' logs in")
	f.StringVar(&html, "html", "", "file to write a report with plots to")
	return c
}

// loadScenario reads a scenario's file, or takes the one of that name.
func loadScenario(name string) (*scenario.Scenario, error) {
	if _, err := os.Stat(name); err == nil {
		return scenario.Load(name)
	}
	return scenario.Builtin(name)
}

// writeHTML writes a report with plots.
func writeHTML(name string, r *scenario.Report) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(r.WriteHTML(f), f.Close())
}

// newChaosList returns the command that lists scenarios.
func newChaosList(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scenarios that come with graze",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(o.stdout, 0, 0, 2, ' ', 0)
			for _, name := range scenario.Names() {
				s, err := scenario.Builtin(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(w, "%s\t%s It is about %s; off: %s.\n", s.Name, s.About, s.Guards, s.Off)
			}
			return w.Flush()
		},
	}
}

// newReader returns the command that reads a mount. Scenarios start it.
func newReader(o *options) *cobra.Command {
	return &cobra.Command{
		Use:    "reader DIR",
		Short:  "Read the files that standard input names, and say what was in them",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return scenario.ReadFiles(args[0], os.Stdin, o.stdout)
		},
	}
}

// newDisk returns the command that serves a disk which can fail. Scenarios start it.
func newDisk(o *options) *cobra.Command {
	return &cobra.Command{
		Use:    "disk FOLDER DIR",
		Short:  "Serve a folder at another place, with the faults that standard input names",
		Args:   cobra.ExactArgs(2),
		Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := disk.New(args[0], scenario.ChunkSuffix)
			if err != nil {
				return err
			}
			return disk.Serve(d, args[1], os.Stdin, o.stdout)
		},
	}
}

// newLiar returns the command that runs a node which lies. Scenarios start it.
func newLiar() *cobra.Command {
	var cfg liar.Config
	c := &cobra.Command{
		Use:    "liar",
		Short:  "Run a member of a cluster that answers with wrong bytes",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			err := liar.Run(c.Context(), cfg)
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.KeyFile, "key", "", "file of the cluster's key")
	f.StringVar(&cfg.Name, "name", "liar", "what it is called")
	f.StringVar(&cfg.Addr, "addr", "", "its IP address")
	f.StringVar(&cfg.Rack, "rack", "", "its rack")
	f.StringVar(&cfg.Join, "join", "", "a member, host:port")
	return c
}
