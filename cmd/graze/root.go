package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"graze/node"
)

// defaultState is the state folder where none is named.
const defaultState = "/var/lib/graze"

// options are the settings that several commands share.
type options struct {
	stdout, stderr io.Writer

	state         string
	plainHTTP     bool
	hostsDir      string
	platform      string
	readDeadline  time.Duration
	storeLimit    byteSize
	unverifiedTOC string
	json          bool
	verbose       bool
}

// newRoot returns the command line of graze.
func newRoot(stdout, stderr io.Writer) *cobra.Command {
	if _, ok := stderr.(*os.File); !ok {
		stderr = &lockedWriter{w: stderr}
	}
	o := &options{stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:           "graze",
		Short:         "Containers start from images that are not there yet",
		Long:          "graze mounts container images without pulling them: each chunk of a file is\nfetched when it is first read, verified, and kept.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
		Args:          cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			err := fmt.Errorf("unknown command %q", args[0])
			if near := c.SuggestionsFor(args[0]); len(near) > 0 {
				err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
			}
			return &usageError{command: c.CommandPath(), err: err}
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{command: c.CommandPath(), err: err}
	})
	root.PersistentFlags().StringVar(&o.state, "state", defaultState, "folder that everything is kept in")
	root.PersistentFlags().BoolVarP(&o.verbose, "verbose", "v", false, "say more on standard error")
	root.AddCommand(
		newMount(o), newUmount(o), newIndex(o), newLs(o), newCat(o), newInspect(o), newStats(o), newVerify(o), newRegistry(o),
		newNode(o), newKeeper(o), newPull(o), newKey(o), newPs(o), newPeers(o), newPreheat(o), newSeed(o), newInstall(o), newUninstall(o), newMaterialize(o), newDoctor(o), newChaos(o))
	for _, c := range root.Commands() {
		c.Args = usageArgs(c.Args)
	}
	return root
}

// A lockedWriter lets the log and the progress of work write to what, unlike a
// file, takes one writer at a time.
type lockedWriter struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

// Write implements io.Writer.
func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// usageArgs makes an error of args a usageError.
func usageArgs(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, list []string) error {
		if err := args(c, list); err != nil {
			return &usageError{command: c.CommandPath(), err: err}
		}
		return nil
	}
}

// addRegistryFlags adds the flags of commands that talk to a registry.
func (o *options) addRegistryFlags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&o.plainHTTP, "plain-http", false, "speak plain HTTP to registries (loopback addresses always do)")
	f.StringVar(&o.hostsDir, "hosts-dir", "", "folder of hosts.toml files, as containerd's certs.d")
	f.StringVar(&o.platform, "platform", "", "platform of a multi-platform image, such as linux/arm64 (default: this machine's)")
	f.StringVar(&o.unverifiedTOC, "unverified-toc", "refuse", "what to do with a layer whose table of contents the manifest does not vouch for: refuse or accept")
}

// addDeadlineFlag adds the flag of commands that read files.
func (o *options) addDeadlineFlag(c *cobra.Command) {
	c.Flags().DurationVar(&o.readDeadline, "read-deadline", 5*time.Minute, "how long a read waits for the registry before it fails")
}

// addStoreFlag adds the flag of commands that keep chunks.
func (o *options) addStoreFlag(c *cobra.Command) {
	c.Flags().Var(&o.storeLimit, "store-limit", "most bytes of chunks to keep, such as 20GiB (default: 80 % of the space that is free at first)")
}

// config makes a node's configuration of the flags.
func (o *options) config(c *cobra.Command) (node.Config, error) {
	cfg := node.Config{
		State:        o.state,
		StoreLimit:   int64(o.storeLimit),
		ReadDeadline: o.readDeadline,
		Log:          o.logger(),
	}
	cfg.Origin.PlainHTTP = o.plainHTTP
	cfg.Origin.HostsDir = o.hostsDir
	cfg.Origin.Keychain = node.DockerKeychain()
	cfg.Origin.UserAgent = "graze/" + version()
	if err := checkHostsDir(o.hostsDir); err != nil {
		return cfg, fmt.Errorf("--hosts-dir: %w", err)
	}
	if o.platform != "" {
		p, err := v1.ParsePlatform(o.platform)
		if err != nil {
			return cfg, &usageError{command: c.CommandPath(), err: fmt.Errorf("--platform: %w", err)}
		}
		cfg.Platform = *p
	}
	switch o.unverifiedTOC {
	case "accept":
		cfg.AcceptUnverifiedTOC = true
	case "refuse":
	default:
		return cfg, &usageError{command: c.CommandPath(), err: fmt.Errorf("--unverified-toc is refuse or accept, not %q", o.unverifiedTOC)}
	}
	return cfg, nil
}

// checkHostsDir returns an error unless dir is a folder, or empty for none.
func checkHostsDir(dir string) error {
	if dir == "" {
		return nil
	}
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = fmt.Errorf("%s is not a folder", dir)
	}
	return err
}

// logger returns the log, which goes to standard error.
func (o *options) logger() *slog.Logger {
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(o.stderr, &slog.HandlerOptions{Level: level}))
}

// printJSON prints v on a line of its own.
func (o *options) printJSON(v any) error { return json.NewEncoder(o.stdout).Encode(v) }

// version returns the module's version, or the commit that it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && (info.Main.Version == "" || info.Main.Version == "(devel)") {
			return s.Value[:12]
		}
	}
	return info.Main.Version
}
