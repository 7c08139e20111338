package snapshotter

import (
	"context"
	"net"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"google.golang.org/grpc"
)

// stopTimeout is how long calls that have begun may go on when the server ends.
const stopTimeout = 2 * time.Second

// Serve answers containerd on a listener, which it closes, until ctx is done.
func (s *Snapshotter) Serve(ctx context.Context, ln net.Listener) error {
	srv := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(srv, snapshotservice.FromSnapshotter(s))
	stop := context.AfterFunc(ctx, func() {
		kill := time.AfterFunc(stopTimeout, srv.Stop)
		defer kill.Stop()
		srv.GracefulStop()
	})
	defer stop()
	return srv.Serve(ln)
}
