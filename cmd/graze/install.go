package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"graze/node"
	"graze/setup"
)

// installOptions are the flags of install and uninstall.
type installOptions struct {
	setup.Options
	dryRun   bool
	now      bool
	force    bool
	settings string // file that becomes the node's settings
	key      string // file that becomes the cluster's key
}

func (i *installOptions) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&i.Root, "root", "/", "folder that the machine's files are below, such as /host in a container")
	f.StringVar(&i.ContainerdConfig, "containerd-config", "/etc/containerd/config.toml", "containerd's configuration")
	f.StringVar(&i.NodeConfig, "config", "/etc/graze/node.toml", "the node's settings")
	f.BoolVar(&i.NoUnit, "no-unit", false, "leave systemd alone")
	f.BoolVar(&i.dryRun, "dry-run", false, "print what would change, and change nothing")
	f.BoolVar(&i.now, "now", false, "also do what remains: enable, start and restart services by systemctl, of --root if given")
}

// newInstall returns the command that makes containerd use graze.
func newInstall(o *options) *cobra.Command {
	var i installOptions
	c := &cobra.Command{
		Use:   "install",
		Short: "Make this machine's containerd use graze",
		Long: `Install tells containerd of graze, in a file of its own where the configuration
imports such files, else by single lines in the configuration, whose first version
is kept beside it; writes a systemd unit, and settings of the node if there are
none, with the cluster's key if /etc/graze/cluster.key is there. It can be run again at any time. 'graze uninstall' undoes it.`,
		Example: `  graze install --dry-run
  graze install --now
  graze install --root /host --settings /etc/graze/node.toml --now`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := i.prepare(); err != nil {
				return err
			}
			plan, err := setup.Install(i.Options)
			if err != nil {
				return err
			}
			return o.carryOut(c.Context(), plan, &i)
		},
	}
	i.addFlags(c)
	c.Flags().StringVar(&i.settings, "settings", "", "file whose content becomes the node's settings, also if there are some (default: those of 'graze node --print-config', if there are none)")
	c.Flags().StringVar(&i.key, "key", "", "file of the cluster's key, whose content is put where the node's settings say")
	return c
}

// newUninstall returns the command that undoes install.
func newUninstall(o *options) *cobra.Command {
	var i installOptions
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Undo install",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := readNodeFile(filepath.Join(i.Root, i.NodeConfig))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if filepath.Clean(i.Root) == "/" {
				if i.Binary, err = os.Executable(); err != nil {
					return err
				}
			}
			i.SnapshotRoot, i.State = f.snapshotRoot(), f.State
			plan, err := setup.Remove(i.Options, i.force)
			if err != nil {
				return err
			}
			return o.carryOut(c.Context(), plan, &i)
		},
	}
	i.addFlags(c)
	c.Flags().BoolVar(&i.force, "force", false, "also if containerd has snapshots of graze")
	return c
}

// prepare completes the options of install. Below another root the program itself
// is installed, too; else the unit runs it where it is.
func (i *installOptions) prepare() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if filepath.Clean(i.Root) == "/" {
		i.Binary = self
	} else if i.Program, err = os.ReadFile(self); err != nil {
		return err
	}
	f, err := i.nodeSettings()
	if err != nil {
		return err
	}
	if f.Containerd.Socket == "" {
		return fmt.Errorf("the node's settings name no containerd.socket: set it to %q", setup.DefaultSocket)
	}
	i.Socket, i.SnapshotRoot, i.MapsIDs = f.Containerd.Socket, f.snapshotRoot(), mapsIDs()
	if i.key == "" {
		return nil
	}
	if i.KeyFile = f.Cluster.KeyFile; i.KeyFile == "" {
		return errors.New("the node's settings name no cluster.key-file for the key: set it to where the key is to be, such as \"/etc/graze/cluster.key\"")
	}
	if err := node.CheckClusterKey(i.key); err != nil {
		return err
	}
	i.Key, err = os.ReadFile(i.key)
	return err
}

// mapsIDs reports whether the kernel maps the owners of files in FUSE mounts, as
// Linux does since 6.12.
func mapsIDs() bool {
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 6 || major == 6 && minor >= 12
}

// snapshotRoot returns the folder of the snapshots.
func (f *nodeFile) snapshotRoot() string {
	if f.Containerd.Root != "" {
		return f.Containerd.Root
	}
	return filepath.Join(f.State, "containerd")
}

// nodeSettings returns the settings that the node will have: those that were given,
// those that it has, or new ones.
func (i *installOptions) nodeSettings() (f nodeFile, err error) {
	if i.settings != "" {
		i.ReplaceSettings = true
		if i.NodeSettings, err = os.ReadFile(i.settings); err != nil {
			return f, err
		}
		return readNodeFile(i.settings)
	}
	f, err = readNodeFile(filepath.Join(i.Root, i.NodeConfig))
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	f.Containerd.Socket = setup.DefaultSocket
	f.CRI.Socket = "/run/graze/cri.sock"
	// A cluster's key that is there, or is given, is used.
	const key = "/etc/graze/cluster.key"
	if _, err := os.Stat(filepath.Join(i.Root, key)); err == nil || i.key != "" {
		f.Cluster.KeyFile = key
	}
	const certs = "/etc/containerd/certs.d"
	if st, err := os.Stat(filepath.Join(i.Root, certs)); err == nil && st.IsDir() {
		f.Registry.HostsDir = certs
	}
	var text bytes.Buffer
	err = printNodeFile(&text, &f)
	i.NodeSettings = text.Bytes()
	return f, err
}

// carryOut prints a plan, or carries it out and says what remains to be done.
func (o *options) carryOut(ctx context.Context, plan *setup.Plan, i *installOptions) error {
	if plan.Empty() {
		_, err := fmt.Fprintln(o.stdout, "nothing to do")
		return err
	}
	if i.dryRun {
		fmt.Fprint(o.stdout, plan.Diff())
	} else if err := plan.Apply(); err != nil {
		return err
	}
	for _, change := range plan.Changes {
		if !i.dryRun {
			fmt.Fprintf(o.stdout, "%s %s\n", change.Verb(), change.Path)
		}
	}
	// What has failed and what comes after it remains to be done: the next run has
	// no changes that it would follow from.
	var failed error
	for _, step := range plan.Steps {
		if i.now && !i.dryRun && failed == nil {
			if failed = runStep(ctx, i.Root, step); failed == nil {
				fmt.Fprintf(o.stdout, "done: %s\n", strings.Join(step, " "))
				continue
			}
		}
		fmt.Fprintf(o.stdout, "to do: %s\n", strings.Join(step, " "))
	}
	for _, note := range plan.Notes {
		fmt.Fprintf(o.stdout, "note: %s\n", note)
	}
	return failed
}

// runStep runs a command, such as one of systemd's, that of another root if given.
func runStep(ctx context.Context, root string, step []string) error {
	cmd := exec.CommandContext(ctx, step[0], step[1:]...)
	if filepath.Clean(root) != "/" {
		// The program is looked for where it will run.
		cmd = &exec.Cmd{Path: "/usr/bin/env", Args: append([]string{"env"}, step...), Dir: "/"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		// It is the host's own systemd that is meant.
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_IGNORE_CHROOT=1"}
	}
	out, err := cmd.CombinedOutput()
	if said := bytes.TrimSpace(out); err != nil && len(said) > 0 {
		err = fmt.Errorf("%w: %s", err, said)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(step, " "), err)
	}
	return nil
}
