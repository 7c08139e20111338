package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"graze/chunk"
	"graze/copies"
	"graze/node/adminpb"
	"graze/seed"
)

// A Remote is a node that another process runs.
type Remote struct {
	conn   *grpc.ClientConn
	admin  adminpb.AdminClient
	socket string
}

// Socket returns the admin socket of the node whose state folder is dir.
func Socket(dir string) string { return filepath.Join(dir, socketName) }

// Dial returns the node that answers an admin socket. It fails with ErrNotRunning
// where none does. Close it after use.
func Dial(socket string) (*Remote, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", path, ErrNotRunning)
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &Remote{conn: conn, admin: adminpb.NewAdminClient(conn), socket: path}, nil
}

// Close ends the connection.
func (r *Remote) Close() error { return r.conn.Close() }

// explain makes an error of a call one of ours: what the node said, or that it
// says nothing.
func (r *Remote) explain(err error) error {
	s, ok := status.FromError(err)
	switch {
	case ok && s.Code() == codes.Unavailable:
		return fmt.Errorf("%s: %w", r.socket, ErrNotRunning)
	case ok && s.Code() == codes.FailedPrecondition:
		return &remoteError{s.Message(), ErrNoIndex}
	case ok:
		return &remoteError{s.Message(), nil}
	}
	return err
}

// A remoteError is an error that the node has returned.
type remoteError struct {
	message string
	kind    error // one of this package's errors, or nil
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.kind }

// Stats returns the node's figures.
func (r *Remote) Stats(ctx context.Context) (Stats, error) {
	p, err := r.admin.Stats(ctx, &adminpb.StatsRequest{})
	if err != nil {
		return Stats{}, r.explain(err)
	}
	reads, store, served, metadata := p.GetReads(), p.GetStore(), p.GetServed(), p.GetMetadata()
	s := Stats{
		PID:     int(p.GetPid()),
		Uptime:  time.Duration(p.GetUptimeNs()),
		Mounts:  []MountStats{},
		Sources: []SourceStats{},
		Reads: ReadStats{
			Hits: reads.GetHits(), HitBytes: reads.GetHitBytes(),
			Misses: reads.GetMisses(), MissBytes: reads.GetMissBytes(),
			WaitP50: time.Duration(reads.GetWaitP50Ns()), WaitP99: time.Duration(reads.GetWaitP99Ns()),
			Corrupt: reads.GetCorrupt(), Wasted: reads.GetWasted(),
		},
		Store: StoreStats{
			Bytes: store.GetBytes(), Limit: store.GetLimit(), Chunks: store.GetChunks(),
			Evicted: store.GetEvicted(), Corrupt: store.GetCorrupt(), Heard: store.GetHeard(),
		},
		Served: ServedStats{
			Requests: served.GetRequests(), Bytes: served.GetBytes(), Redirects: served.GetRedirects(),
			Busy: served.GetBusy(), Absent: served.GetAbsent(), Abandoned: served.GetAbandoned(),
		},
		Cluster: clusterFromPB(p.GetCluster()),
		Metadata: MetadataStats{
			Bytes: metadata.GetBytes(), Files: metadata.GetFiles(), Limit: metadata.GetLimit(),
			InUse: metadata.GetInUse(), Removed: metadata.GetRemoved(),
		},

		Containerd: containerdFromPB(p.GetContainerd()),
	}
	for _, m := range p.GetMounts() {
		out := MountStats{
			Dir: m.GetDir(), Reference: m.GetReference(), Digest: chunk.Blob(m.GetDigest()), Stale: m.GetStale(), Format: m.GetFormat(),
			Files: m.GetFiles(), Bytes: m.GetBytes(),
			Ops: m.GetOps(), Reads: m.GetReads(), ReadBytes: m.GetReadBytes(), Errors: m.GetErrors(),
			ReadP50: time.Duration(m.GetReadP50Ns()), ReadP99: time.Duration(m.GetReadP99Ns()),
			Chunks: m.GetChunks(), Local: m.GetLocal(),
			Safety: copies.Status{
				Safe: m.GetSafety().GetSafe(), Why: m.GetSafety().GetWhy(),
				Copies: int(m.GetSafety().GetCopies()), Wanted: int(m.GetSafety().GetWanted()),
				One: m.GetSafety().GetOne(), All: m.GetSafety().GetAll(),
			},
			Layers: layersFromPB(m.GetLayers()),
		}
		s.Mounts = append(s.Mounts, out)
	}
	for _, src := range p.GetSources() {
		s.Sources = append(s.Sources, SourceStats{
			Kind: src.GetKind(), Name: src.GetName(), Requests: src.GetRequests(), Bytes: src.GetBytes(), Errors: src.GetErrors(), Retries: src.GetRetries(),
			Abandoned: src.GetAbandoned(), Throttled: src.GetThrottled(),
		})
	}
	return s, nil
}

// Mount has the node mount an image; dir is a path as the node sees it. The mount
// stays until the node ends or somebody unmounts it. Of opts, Keep has no effect.
func (r *Remote) Mount(ctx context.Context, ref, dir string, opts IndexOptions) (MountInfo, error) {
	stream, err := r.admin.Mount(ctx, &adminpb.MountRequest{Reference: ref, Dir: dir, Build: opts.Build})
	if err != nil {
		return MountInfo{}, r.explain(err)
	}
	for {
		reply, err := stream.Recv()
		if err != nil {
			return MountInfo{}, r.explain(err)
		}
		if p := reply.GetProgress(); p != nil && opts.Progress != nil {
			opts.Progress(Progress{Layer: chunk.Blob(p.GetLayer()), Done: p.GetDone(), Total: p.GetTotal()})
		}
		if m := reply.GetMounted(); m != nil {
			return MountInfo{
				Dir: m.GetDir(), Reference: m.GetReference(), Digest: chunk.Blob(m.GetDigest()), Stale: m.GetStale(), Format: m.GetFormat(),
				Layers: layersFromPB(m.GetLayers()), Files: m.GetFiles(), Bytes: m.GetBytes(), Took: time.Duration(m.GetTookNs()),
			}, nil
		}
	}
}

// Verify has the node check all that it keeps: see Node.Verify.
func (r *Remote) Verify(ctx context.Context) (VerifyReport, error) {
	p, err := r.admin.Verify(ctx, &adminpb.VerifyRequest{})
	if err != nil {
		return VerifyReport{}, r.explain(err)
	}
	return VerifyReport{
		Chunks:  p.GetChunks(),
		Blobs:   p.GetBlobs(),
		Bytes:   p.GetBytes(),
		Corrupt: append([]string{}, p.GetCorrupt()...),
	}, nil
}

// Presence returns how much of an image the node has, and what of it others have:
// see Node.Presence.
func (r *Remote) Presence(ctx context.Context, ref string) (Presence, error) {
	reply, err := r.admin.Presence(ctx, &adminpb.PresenceRequest{Reference: ref})
	if err != nil {
		return Presence{}, r.explain(err)
	}
	p := Presence{
		Content: Content{reply.GetChunks(), reply.GetBytes()},
		Local:   Content{reply.GetLocalChunks(), reply.GetLocalBytes()},
		Peers:   []PeerPresence{},
	}
	for _, h := range reply.GetPeers() {
		p.Peers = append(p.Peers, PeerPresence{Node: h.GetNode(), Chunks: h.GetChunks(), Have: h.GetHave()})
	}
	return p, nil
}

// Peers returns what the node knows of the members of its cluster.
func (r *Remote) Peers(ctx context.Context) ([]PeerInfo, error) {
	reply, err := r.admin.Peers(ctx, &adminpb.PeersRequest{})
	if err != nil {
		return nil, r.explain(err)
	}
	list := []PeerInfo{}
	for _, p := range reply.GetPeers() {
		list = append(list, PeerInfo{
			ID: p.GetId(), Name: p.GetName(), Addr: p.GetAddr(), Rack: p.GetRack(), Zone: p.GetZone(), Role: p.GetRole(), Weight: int(p.GetWeight()),
			Ready: p.GetReady(), Self: p.GetSelf(), Tier: p.GetTier(), State: p.GetState(),
			In: p.GetIn(), Out: p.GetOut(), Errors: p.GetErrors(), Corrupt: p.GetCorrupt(), PerMiB: time.Duration(p.GetPerMibNs()),
			Reason: p.GetReason(), Violations: p.GetViolations(), SlowReads: p.GetSlowReads(),
		})
	}
	return list, nil
}

// Preheat has every node of the cluster fetch its share of an image: see
// Node.Preheat. It calls done for each node.
func (r *Remote) Preheat(ctx context.Context, ref string, done func(PreheatResult)) error {
	stream, err := r.admin.Preheat(ctx, &adminpb.PreheatRequest{Reference: ref})
	if err != nil {
		return r.explain(err)
	}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return r.explain(err)
		}
		done(PreheatResult{Node: reply.GetNode(), Spans: int(reply.GetSpans()), Error: reply.GetError()})
	}
}

// SeedAdd has the node hold an image whole. It returns the reference by digest.
func (r *Remote) SeedAdd(ctx context.Context, ref string) (string, error) {
	reply, err := r.admin.SeedAdd(ctx, &adminpb.SeedRequest{Reference: ref})
	if err != nil {
		return "", r.explain(err)
	}
	return reply.GetReference(), nil
}

// SeedRemove has the node no longer hold an image whole.
func (r *Remote) SeedRemove(ctx context.Context, ref string) error {
	if _, err := r.admin.SeedRemove(ctx, &adminpb.SeedRequest{Reference: ref}); err != nil {
		return r.explain(err)
	}
	return nil
}

// SeedList says how much of each image the node holds.
func (r *Remote) SeedList(ctx context.Context) ([]seed.Status, error) {
	reply, err := r.admin.SeedList(ctx, &adminpb.SeedListRequest{})
	if err != nil {
		return nil, r.explain(err)
	}
	list := []seed.Status{}
	for _, s := range reply.GetSeeds() {
		list = append(list, seed.Status{Reference: s.GetReference(), Spans: int(s.GetSpans()), Have: int(s.GetHave()), Error: s.GetError()})
	}
	return list, nil
}
