package snapshotter

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestConformance runs containerd's own tests of snapshotters, over the socket.
func TestConformance(t *testing.T) {
	needRoot(t)
	// By the name the suite knows what to expect: overlayfs can't rename directories
	// of lower layers.
	testsuite.SnapshotterSuite(t, "overlayfs", func(_ context.Context, root string) (snapshots.Snapshotter, func() error, error) {
		s, err := Open(Config{Root: root}, newFakeImages())
		if err != nil {
			return nil, nil, err
		}
		client, stop, err := serve(s, filepath.Join(root, "sock"))
		if err != nil {
			return nil, nil, errors.Join(err, s.Close())
		}
		return closer{client, s}, stop, nil
	})
}

// A closer is a client whose Close closes the snapshotter, which that of a client
// leaves alone.
type closer struct {
	snapshots.Snapshotter
	s *Snapshotter
}

// Close implements snapshots.Snapshotter.
func (c closer) Close() error { return errors.Join(c.Snapshotter.Close(), c.s.Close()) }

// Cleanup implements snapshots.Cleaner.
func (c closer) Cleanup(ctx context.Context) error {
	return c.Snapshotter.(snapshots.Cleaner).Cleanup(ctx)
}

// serve runs a snapshotter as the node does, and returns a client of it.
func serve(s *Snapshotter, socket string) (client snapshots.Snapshotter, stop func() error, err error) {
	ln, err := net.Listen("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	served, ran := make(chan error, 1), make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	go func() { ran <- s.Run(ctx) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	stop = func() error {
		cancel()
		err := errors.Join(<-served, <-ran)
		if conn != nil {
			err = errors.Join(err, conn.Close())
		}
		return err
	}
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), "graze"), stop, nil
}
