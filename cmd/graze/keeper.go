package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/spf13/cobra"

	"graze/keeper"
	"graze/node"
)

// Who holds the mounts of a node while it is away.
const (
	keepAuto    = "auto"
	keepKeeper  = "keeper"
	keepSystemd = "systemd"
	keepNobody  = "nobody"
)

// keeperSocket returns the socket of the keeper for a state folder.
func keeperSocket(state string) string { return filepath.Join(state, "keep.sock") }

// newKeeper returns the command that runs a keeper.
func newKeeper(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "keeper",
		Short: "Hold the mounts of a node while it is away",
		Long: `Keeper holds the descriptors of a node's mounts, so that the mounts live when the
node is killed or replaced: who uses them waits until the next node goes on.

A node starts its keeper by itself. Run one on its own where the node's processes
are all killed together, as systemd does with those of a service. It ends when no
node is there and no mount, or by SIGTERM; then mounts that no node serves end.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := os.MkdirAll(o.state, 0o700); err != nil {
				return err
			}
			// Other processes can be done without first. Not all who may run this
			// may say so.
			_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
			_ = os.WriteFile("/proc/self/comm", []byte("graze-keeper"), 0)
			debug.FreeOSMemory()
			return keeper.Run(c.Context(), keeperSocket(o.state), keeper.Config{})
		},
	}
}

// holder returns how a node finds what holds its mounts.
func holder(who, state string, log *slog.Logger) (func(ctx context.Context) (node.Holder, error), error) {
	systemd := keeper.Environment{
		NotifySocket: os.Getenv("NOTIFY_SOCKET"),
		Store:        os.Getenv("FDSTORE"),
		ListenPID:    os.Getenv("LISTEN_PID"),
		ListenFDs:    os.Getenv("LISTEN_FDS"),
		ListenNames:  os.Getenv("LISTEN_FDNAMES"),
	}
	if who == keepAuto {
		who = keepKeeper
		switch {
		case systemd.HasStore():
			who = keepSystemd
		case os.Getpid() == 1:
			who = keepNobody // a container: all its processes end with this one
		}
	}
	switch who {
	case keepNobody:
		return nil, nil
	case keepKeeper:
		return startKeeper(state, log)
	case keepSystemd:
		return func(context.Context) (node.Holder, error) {
			return keeper.OpenSystemd(systemd, node.HeldName)
		}, nil
	}
	return nil, fmt.Errorf("keep-mounts is auto, keeper, systemd or nobody, not %q", who)
}

// startKeeper returns what finds the keeper of a state folder, or starts one.
func startKeeper(state string, log *slog.Logger) (func(ctx context.Context) (node.Holder, error), error) {
	state, err := filepath.Abs(state)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (node.Holder, error) {
		c, err := keeper.Open(ctx, keeperSocket(state), []string{"/proc/self/exe", "keeper", "--state", state})
		if err != nil {
			return nil, err
		}
		return c, nil
	}, nil
}
