package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"graze/doctor"
	"graze/node"
	"graze/origin"
)

// defaultNodeConfig is where 'graze install' puts the node's settings.
const defaultNodeConfig = "/etc/graze/node.toml"

// errUnhealthy: the findings say what is wrong.
var errUnhealthy = errors.New("something is wrong; see above for what to do")

// newDoctor returns the command that looks for what is wrong.
func newDoctor(o *options) *cobra.Command {
	var cfg doctor.Config
	file := ""
	c := &cobra.Command{
		Use:   "doctor [IMAGE…]",
		Short: "Look for what keeps graze from working here, and say what to do",
		Long: `Doctor looks at the kernel, FUSE, overlayfs, limits, disk, keys, the running node,
other nodes, containerd and its configuration, and registries with their clocks. Of
images that are named it asks the registry, as the node would.

It exits with 1 if something fails. Warnings are about what works, but not as well
as it could.`,
		Example: `  graze doctor
  graze doctor --registry registry.example registry.example/team/app:1.4
  graze doctor --json | jq '.[] | select(.level != "ok")'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, images []string) error {
			f, err := readNodeFile(configOrNone(file))
			if err != nil {
				return err
			}
			if c.Flags().Changed("state") {
				f.State = o.state
			}
			if !c.Flags().Changed("containerd") {
				cfg.Containerd = f.Containerd.Address
			}
			cfg.Images = images
			return o.examine(c.Context(), &f, cfg)
		},
	}
	c.Flags().StringVar(&file, "config", defaultNodeConfig, "the node's settings")
	c.Flags().StringVar(&cfg.Containerd, "containerd", "", "containerd's socket, or \"\" if none is used (default: that of the node's settings)")
	c.Flags().StringArrayVar(&cfg.Registries, "registry", nil, "registry to be reached, beside those of hosts-dir; may be given several times")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// configOrNone returns the name of a file of settings, "" for the default one if
// that is missing.
func configOrNone(file string) string {
	if _, err := os.Stat(file); file == defaultNodeConfig && errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return file
}

// examine does the command's work.
func (o *options) examine(ctx context.Context, f *nodeFile, cfg doctor.Config) error {
	settings, err := f.nodeConfig(o)
	if err != nil {
		return err
	}
	client, err := origin.New(settings.Origin)
	if err != nil {
		return err
	}
	defer client.Close()
	cfg.Registry = pinger{client}
	cfg.Registries = append(cfg.Registries, knownRegistries(f.Registry.HostsDir)...)
	cfg.State, cfg.StoreLimit = f.State, int64(f.StoreLimit.byteSize)
	cfg.KeyFile, cfg.CheckKey = f.Cluster.KeyFile, node.CheckClusterKey
	cfg.Snapshotter, cfg.ImageProxy = f.Containerd.Socket, f.CRI.Socket
	if cfg.Node.Program, err = os.Executable(); err != nil {
		return err
	}
	if err := askNode(ctx, &cfg); err != nil && !errors.Is(err, node.ErrNotRunning) {
		return err
	}
	if !cfg.Node.Running {
		cfg.Peers = contacts(f.Cluster.Join, f.Cluster.Gossip)
	}
	return o.printFindings(doctor.Examine(ctx, cfg))
}

// askNode completes a configuration by what the running node says.
func askNode(ctx context.Context, cfg *doctor.Config) error {
	remote, err := node.Dial(node.Socket(cfg.State))
	if err != nil {
		return err
	}
	defer remote.Close()
	stats, err := remote.Stats(ctx)
	if err != nil {
		return err
	}
	cfg.Node.Running, cfg.Node.PID = true, stats.PID
	peers, err := remote.Peers(ctx)
	for _, p := range peers {
		if !p.Self {
			cfg.Peers = append(cfg.Peers, doctor.Peer{Name: p.Name, Addr: p.Addr, State: p.State, Corrupt: p.Corrupt})
		}
	}
	return err
}

// contacts returns the nodes that a node would join.
func contacts(join []string, gossip string) []doctor.Peer {
	var list []doctor.Peer
	for _, addr := range join {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			_, port, _ := net.SplitHostPort(gossip)
			addr = net.JoinHostPort(addr, port)
		}
		list = append(list, doctor.Peer{Name: addr, Addr: addr})
	}
	return list
}

// knownRegistries returns the registries that a folder of hosts.toml files is for.
func knownRegistries(dir string) []string {
	entries, err := os.ReadDir(filepath.Clean(dir))
	if dir == "" || err != nil {
		return nil // the registry's own check says so
	}
	var list []string
	for _, e := range entries {
		name := e.Name()
		if host, port, ok := strings.Cut(strings.TrimSuffix(name, "_"), "_"); ok && strings.HasSuffix(name, "_") {
			name = net.JoinHostPort(host, port)
		}
		if e.IsDir() && name != "_default" {
			list = append(list, name)
		}
	}
	return list
}

// A pinger is the doctor's way to registries.
type pinger struct{ client *origin.Client }

// Ping implements doctor.Registry.
func (p pinger) Ping(ctx context.Context, registry string) ([]doctor.Reply, error) {
	replies, err := p.client.Ping(ctx, registry)
	var list []doctor.Reply
	for _, r := range replies {
		list = append(list, doctor.Reply(r))
	}
	return list, err
}

// Resolve implements doctor.Registry.
func (p pinger) Resolve(ctx context.Context, image string) error {
	_, err := p.client.Head(ctx, image)
	return err
}

// printFindings prints what was found, and returns an error if something fails.
func (o *options) printFindings(list []doctor.Finding) error {
	failed := false
	for _, f := range list {
		failed = failed || f.Level == doctor.Fail
		if o.json {
			continue
		}
		fmt.Fprintf(o.stdout, "%-5s %-12s %s\n", f.Level, f.Check, f.Found)
		if f.Do != "" {
			fmt.Fprintf(o.stdout, "%18s → %s\n", "", f.Do)
		}
	}
	if o.json {
		if err := o.printJSON(list); err != nil {
			return err
		}
	}
	if failed {
		return errUnhealthy
	}
	return nil
}
