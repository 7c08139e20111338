package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"graze/chunk"
	"graze/image"
	"graze/node/adminpb"
)

// socketName is the admin socket's name in the state folder.
const socketName = "graze.sock"

// ErrNotRunning: no node runs on the state folder.
var ErrNotRunning = errors.New("no node runs there")

// serveAdmin answers the admin socket until ctx is done. The folder's lock is
// held, so a socket that is there belongs to nobody.
func (n *Node) serveAdmin(ctx context.Context) error {
	path := Socket(n.dir)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make room for the admin socket: %w", err)
	}
	ln, err := listenUnix(ctx, path)
	if err != nil {
		return fmt.Errorf("listen on the admin socket: %w", err)
	}
	close(n.ready)
	srv := grpc.NewServer()
	adminpb.RegisterAdminServer(srv, admin{node: n})
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	return srv.Serve(ln)
}

// listenUnix listens on a socket that only its owner can use.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// admin answers the admin socket.
type admin struct {
	adminpb.UnimplementedAdminServer
	node *Node
}

// Stats implements adminpb.AdminServer.
func (a admin) Stats(context.Context, *adminpb.StatsRequest) (*adminpb.StatsReply, error) {
	s := a.node.Stats()
	reply := &adminpb.StatsReply{
		Pid:      int64(s.PID),
		UptimeNs: int64(s.Uptime),
		Reads: &adminpb.Reads{
			Hits: s.Reads.Hits, HitBytes: s.Reads.HitBytes,
			Misses: s.Reads.Misses, MissBytes: s.Reads.MissBytes,
			WaitP50Ns: int64(s.Reads.WaitP50), WaitP99Ns: int64(s.Reads.WaitP99),
			Corrupt: s.Reads.Corrupt, Wasted: s.Reads.Wasted,
		},
		Store: &adminpb.Store{
			Bytes: s.Store.Bytes, Limit: s.Store.Limit, Chunks: s.Store.Chunks,
			Evicted: s.Store.Evicted, Corrupt: s.Store.Corrupt, Heard: s.Store.Heard,
		},
		Served: &adminpb.Served{
			Requests: s.Served.Requests, Bytes: s.Served.Bytes, Redirects: s.Served.Redirects,
			Busy: s.Served.Busy, Absent: s.Served.Absent, Abandoned: s.Served.Abandoned,
		},
		Cluster: clusterToPB(&s.Cluster),
		Metadata: &adminpb.Metadata{
			Bytes: s.Metadata.Bytes, Files: s.Metadata.Files, Limit: s.Metadata.Limit,
			InUse: s.Metadata.InUse, Removed: s.Metadata.Removed,
		},

		Containerd: containerdToPB(&s.Containerd),
	}
	for _, m := range s.Mounts {
		out := &adminpb.Mount{
			Dir: m.Dir, Reference: m.Reference, Digest: string(m.Digest), Stale: m.Stale, Format: m.Format,
			Files: m.Files, Bytes: m.Bytes,
			Ops: m.Ops, Reads: m.Reads, ReadBytes: m.ReadBytes, Errors: m.Errors,
			ReadP50Ns: int64(m.ReadP50), ReadP99Ns: int64(m.ReadP99),
			Chunks: m.Chunks, Local: m.Local,
			Safety: &adminpb.Safety{
				Safe: m.Safety.Safe, Why: m.Safety.Why, Copies: int64(m.Safety.Copies), Wanted: int64(m.Safety.Wanted),
				One: m.Safety.One, All: m.Safety.All,
			},
			Layers: layersToPB(m.Layers),
		}
		reply.Mounts = append(reply.Mounts, out)
	}
	for _, src := range s.Sources {
		reply.Sources = append(reply.Sources, &adminpb.Source{
			Kind: src.Kind, Name: src.Name, Requests: src.Requests, Bytes: src.Bytes, Errors: src.Errors, Retries: src.Retries,
			Abandoned: src.Abandoned, Throttled: src.Throttled,
		})
	}
	return reply, nil
}

// layersToPB and layersFromPB translate layers.
func layersToPB(layers []LayerReport) (list []*adminpb.Layer) {
	for _, l := range layers {
		list = append(list, &adminpb.Layer{Digest: string(l.Digest), Size: l.Size, Format: string(l.Format), Index: l.Index})
	}
	return list
}

func layersFromPB(layers []*adminpb.Layer) (list []LayerReport) {
	for _, l := range layers {
		list = append(list, LayerReport{
			Digest: chunk.Blob(l.GetDigest()), Size: l.GetSize(), Format: image.Format(l.GetFormat()), Index: l.GetIndex(),
		})
	}
	return list
}

// Mount implements adminpb.AdminServer.
func (a admin) Mount(req *adminpb.MountRequest, stream grpc.ServerStreamingServer[adminpb.MountReply]) error {
	var mu sync.Mutex // guards stream.Send
	opts := IndexOptions{Build: req.GetBuild(), Progress: func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		// A client that has gone away ends the call by its context.
		_ = stream.Send(&adminpb.MountReply{Reply: &adminpb.MountReply_Progress{Progress: &adminpb.Progress{
			Layer: string(p.Layer), Done: p.Done, Total: p.Total,
		}}})
	}}
	m, err := a.node.Mount(stream.Context(), req.GetReference(), req.GetDir(), MountOptions{IndexOptions: opts})
	if err != nil {
		code := codes.Unknown
		if errors.Is(err, ErrNoIndex) {
			code = codes.FailedPrecondition
		}
		return status.Error(code, err.Error())
	}
	info := m.Info()
	return stream.Send(&adminpb.MountReply{Reply: &adminpb.MountReply_Mounted{Mounted: &adminpb.Mounted{
		Dir: info.Dir, Reference: info.Reference, Digest: string(info.Digest), Stale: info.Stale, Format: info.Format,
		Layers: layersToPB(info.Layers), Files: info.Files, Bytes: info.Bytes, TookNs: int64(info.Took),
	}}})
}

// Verify implements adminpb.AdminServer.
func (a admin) Verify(ctx context.Context, _ *adminpb.VerifyRequest) (*adminpb.VerifyReply, error) {
	r, err := a.node.Verify(ctx)
	if err != nil {
		return nil, err
	}
	return &adminpb.VerifyReply{Chunks: r.Chunks, Blobs: r.Blobs, Bytes: r.Bytes, Corrupt: r.Corrupt}, nil
}

// Presence implements adminpb.AdminServer.
func (a admin) Presence(ctx context.Context, req *adminpb.PresenceRequest) (*adminpb.PresenceReply, error) {
	p, err := a.node.Presence(ctx, req.GetReference())
	if errors.Is(err, ErrNoIndex) {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	reply := &adminpb.PresenceReply{Chunks: p.Chunks, Bytes: p.Bytes, LocalChunks: p.Local.Chunks, LocalBytes: p.Local.Bytes}
	for _, h := range p.Peers {
		reply.Peers = append(reply.Peers, &adminpb.Holder{Node: h.Node, Chunks: h.Chunks, Have: h.Have})
	}
	return reply, err
}

// Peers implements adminpb.AdminServer.
func (a admin) Peers(context.Context, *adminpb.PeersRequest) (*adminpb.PeersReply, error) {
	reply := &adminpb.PeersReply{}
	for _, p := range a.node.Peers() {
		reply.Peers = append(reply.Peers, &adminpb.Peer{
			Id: p.ID, Name: p.Name, Addr: p.Addr, Rack: p.Rack, Zone: p.Zone, Role: p.Role, Weight: int64(p.Weight),
			Ready: p.Ready, Self: p.Self, Tier: p.Tier, State: p.State,
			In: p.In, Out: p.Out, Errors: p.Errors, Corrupt: p.Corrupt, PerMibNs: int64(p.PerMiB),
			Reason: p.Reason, Violations: p.Violations, SlowReads: p.SlowReads,
		})
	}
	return reply, nil
}

// Preheat implements adminpb.AdminServer.
func (a admin) Preheat(req *adminpb.PreheatRequest, stream grpc.ServerStreamingServer[adminpb.PreheatReply]) error {
	var mu sync.Mutex // guards stream.Send
	return a.node.Preheat(stream.Context(), req.GetReference(), func(r PreheatResult) {
		mu.Lock()
		defer mu.Unlock()
		// A client that has gone away ends the call by its context.
		_ = stream.Send(&adminpb.PreheatReply{Node: r.Node, Spans: int64(r.Spans), Error: r.Error})
	})
}

// SeedAdd implements adminpb.AdminServer.
func (a admin) SeedAdd(ctx context.Context, req *adminpb.SeedRequest) (*adminpb.SeedRequest, error) {
	ref, err := a.node.SeedAdd(ctx, req.GetReference())
	return &adminpb.SeedRequest{Reference: ref}, err
}

// SeedRemove implements adminpb.AdminServer.
func (a admin) SeedRemove(ctx context.Context, req *adminpb.SeedRequest) (*adminpb.SeedRequest, error) {
	return req, a.node.SeedRemove(ctx, req.GetReference())
}

// SeedList implements adminpb.AdminServer.
func (a admin) SeedList(context.Context, *adminpb.SeedListRequest) (*adminpb.SeedListReply, error) {
	list, err := a.node.SeedList()
	reply := &adminpb.SeedListReply{}
	for _, s := range list {
		reply.Seeds = append(reply.Seeds, &adminpb.Seed{Reference: s.Reference, Spans: int64(s.Spans), Have: int64(s.Have), Error: s.Error})
	}
	return reply, err
}
