package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"

	"graze/node"
)

// newNode returns the command that runs a node.
func newNode(o *options) *cobra.Command {
	file, show := "", false
	flags := defaultNodeFile()
	c := &cobra.Command{
		Use:   "node",
		Short: "Run a node, which mounts images and shares what it has read",
		Long: `Node runs until it is interrupted. Images are mounted on it by 'graze mount --node'.
On SIGTERM the mounts stay, and their users wait for the next 'graze node' on the
state folder; so they do if the node is killed: see the setting keep-mounts. SIGINT,
and 'graze umount --all', take the mounts away.

With a cluster key it is a member of a cluster: what it lacks it fetches from the
other members, and what it has it gives to them; the registry gives each chunk to
the cluster once.

Settings come from a file; a few can be given as flags, which win. --print-config
prints all of them as a file.`,
		Example: `  graze key new > /etc/graze/cluster.key; chmod 600 /etc/graze/cluster.key
  graze node --config /etc/graze/node.toml
  graze node --key /etc/graze/cluster.key --join seed-1:7946 --rack a3 --print-config`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := readNodeFile(file)
			if err != nil {
				return err
			}
			f.override(c, &flags)
			if show {
				return printNodeFile(o.stdout, &f)
			}
			return runNode(c.Context(), o, &f)
		},
	}
	f := c.Flags()
	f.StringVar(&file, "config", "", "file of settings (TOML)")
	f.BoolVar(&show, "print-config", false, "print all settings as a file, with what they are for, and end")
	f.StringVar(&flags.Cluster.KeyFile, "key", "", "file of the cluster's key")
	f.StringArrayVar(&flags.Cluster.Join, "join", nil, "first contact, host:port; may be given several times")
	f.StringVar(&flags.Cluster.Rack, "rack", "", "rack of the node")
	f.StringVar(&flags.Cluster.Zone, "zone", "", "zone of the node")
	f.BoolVar(&flags.Cluster.Seed, "seed", false, "hold whole images for the rack")
	f.StringVar(&flags.Cluster.Listen, "listen", flags.Cluster.Listen, "ip:port at which chunks are served")
	f.StringVar(&flags.Cluster.Advertise, "advertise", "", "address by which others reach the node")
	f.StringVar(&flags.KeepMounts, "keep-mounts", flags.KeepMounts, "who holds mounts while the node is away: keeper, systemd, nobody or auto")
	f.BoolVar(&flags.Registry.PlainHTTP, "plain-http", false, "speak plain HTTP to registries")
	return c
}

// override takes over the settings that were given as flags.
func (f *nodeFile) override(c *cobra.Command, flags *nodeFile) {
	given := func(name string) bool { return c.Flags().Changed(name) }
	if given("state") {
		f.State, _ = c.Flags().GetString("state")
	}
	if given("verbose") {
		f.Verbose, _ = c.Flags().GetBool("verbose")
	}
	for name, set := range map[string]func(){
		"key":         func() { f.Cluster.KeyFile = flags.Cluster.KeyFile },
		"join":        func() { f.Cluster.Join = flags.Cluster.Join },
		"rack":        func() { f.Cluster.Rack = flags.Cluster.Rack },
		"zone":        func() { f.Cluster.Zone = flags.Cluster.Zone },
		"seed":        func() { f.Cluster.Seed = flags.Cluster.Seed },
		"listen":      func() { f.Cluster.Listen = flags.Cluster.Listen },
		"advertise":   func() { f.Cluster.Advertise = flags.Cluster.Advertise },
		"keep-mounts": func() { f.KeepMounts = flags.KeepMounts },
		"plain-http":  func() { f.Registry.PlainHTTP = flags.Registry.PlainHTTP },
	} {
		if given(name) {
			set()
		}
	}
}

// runNode runs a node until ctx is done.
func runNode(ctx context.Context, o *options, f *nodeFile) error {
	cfg, err := f.nodeConfig(o)
	if err != nil {
		return err
	}
	n, err := node.Open(cfg)
	if err != nil {
		return err
	}
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	select {
	case <-n.Ready():
		fmt.Fprintf(o.stdout, "node: answering %s%s\n", node.Socket(f.State), n.Describe())
		err = <-ran
	case err = <-ran:
	}
	return errors.Join(err, n.Close())
}

// printNodeFile prints settings as a file that readNodeFile reads, each with what
// it is for.
func printNodeFile(w io.Writer, f *nodeFile) error {
	var b strings.Builder
	if err := printSettings(&b, "", reflect.ValueOf(f).Elem()); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printSettings prints the fields of a struct, then those that are structs as
// tables.
func printSettings(b *strings.Builder, table string, v reflect.Value) error {
	var tables []int
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name := field.Tag.Get("toml")
		if field.Type.Kind() == reflect.Struct && field.Type != reflect.TypeFor[fileSize]() {
			tables = append(tables, i)
			continue
		}
		line, err := toml.Marshal(map[string]any{name: v.Field(i).Interface()})
		if err != nil {
			return fmt.Errorf("%s%s: %w", table, name, err)
		}
		fmt.Fprintf(b, "# %s\n%s\n", field.Tag.Get("doc"), line)
	}
	for _, i := range tables {
		field := v.Type().Field(i)
		fmt.Fprintf(b, "# %s\n[%s]\n\n", field.Tag.Get("doc"), field.Tag.Get("toml"))
		if err := printSettings(b, field.Tag.Get("toml")+".", v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

// newKey returns the command for cluster keys.
func newKey(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "key",
		Short: "Make the key that the nodes of a cluster share",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(&cobra.Command{
		Use:   "new [FILE]",
		Short: "Print a new key, or write it to a file that only its owner can read",
		Example: `  graze key new /etc/graze/cluster.key
  kubectl create secret generic graze --from-literal=cluster.key="$(graze key new)"`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			text := node.NewClusterKey() + "\n"
			if len(args) == 0 {
				_, err := io.WriteString(o.stdout, text)
				return err
			}
			file := filepath.Clean(args[0])
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return err
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, os.ErrExist) {
				return fmt.Errorf("%s is there already: a cluster keeps its key; remove the file to make another", args[0])
			}
			if err != nil {
				return err
			}
			_, err = f.WriteString(text)
			return errors.Join(err, f.Sync(), f.Close())
		},
	})
	return c
}
