package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// maxMessage bounds a message in either direction, in bytes; it is containerd's
// own limit.
const maxMessage = 16 << 20

// A Config says where a Proxy listens and what it allows. Socket and Containerd
// are required.
type Config struct {
	// Socket is the file of the unix socket that kubelet is pointed at by
	// --image-service-endpoint. Its folder is made if missing.
	Socket string

	// Containerd is the file of containerd's socket.
	Containerd string

	// VerdictAge is how long a yes of the registry counts for the same
	// credentials and repository. Default: 5 minutes.
	VerdictAge time.Duration

	// Outage is what becomes of pulls while the registry can't be asked.
	Outage Outage

	// Puller gives containerd images that it has not, while their registry can't be
	// asked and Outage allows it. Default: nobody does.
	Puller Puller

	// Log gets what a person should act on. Default: discard.
	Log *slog.Logger
}

// A Proxy forwards calls of CRI to containerd.
type Proxy struct {
	cfg    Config
	memory Memory
	gate   *gate
}

// New returns a Proxy. It does no I/O.
func New(memory Memory, judge Judge, cfg Config) (*Proxy, error) {
	if cfg.Socket == "" || cfg.Containerd == "" {
		return nil, errors.New("cri: two sockets are needed, the proxy's and containerd's")
	}
	if cfg.VerdictAge < 0 {
		return nil, fmt.Errorf("cri: the age of a verdict is negative: %v", cfg.VerdictAge)
	}
	cfg.VerdictAge = cmp.Or(cfg.VerdictAge, 5*time.Minute)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Proxy{cfg: cfg, memory: memory, gate: newGate(judge, cfg.VerdictAge)}, nil
}

// Run answers the socket until ctx is done. Call it once.
func (p *Proxy) Run(ctx context.Context) error {
	ln, err := listen(ctx, p.cfg.Socket)
	if err != nil {
		return fmt.Errorf("listen for CRI: %w", err)
	}
	// containerd may start later, or be restarted.
	again := backoff.DefaultConfig
	again.MaxDelay = 2 * time.Second
	conn, err := grpc.NewClient("unix://"+p.cfg.Containerd,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return errors.Join(fmt.Errorf("connect to containerd: %w", err), ln.Close())
	}
	srv := grpc.NewServer(
		grpc.ForceServerCodec(codec{}), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { return p.handle(conn, stream) }))
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	return errors.Join(srv.Serve(ln), conn.Close())
}

// listen makes a socket that only its owner can use, in place of one that a
// process left which has ended.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, err
	}
	if conn, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("%s is in use by another process", path), conn.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
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

// handle answers one call.
func (p *Proxy) handle(conn *grpc.ClientConn, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if !strings.HasPrefix(method, "/runtime.v1") {
		return status.Errorf(codes.Unimplemented, "%.100q is not a method of CRI", method)
	}
	var req frame
	if err := stream.RecvMsg(&req); err != nil {
		return err
	}
	ctx := stream.Context()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	service, name, _ := strings.Cut(method[1:], "/")
	if strings.HasSuffix(service, ".ImageService") && name == "PullImage" {
		return p.pull(ctx, call{conn: conn, service: service, down: stream}, req)
	}
	return forward(ctx, conn, method, req, stream)
}

// forward hands a request on, and the answers back.
func forward(ctx context.Context, conn *grpc.ClientConn, method string, req frame, down grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := up.SendMsg(&req); err != nil && !errors.Is(err, io.EOF) {
		return err // io.EOF: why it failed is read below
	}
	if err := up.CloseSend(); err != nil {
		return err
	}
	for {
		var answer frame
		if err := up.RecvMsg(&answer); errors.Is(err, io.EOF) {
			down.SetTrailer(up.Trailer())
			return nil
		} else if err != nil {
			down.SetTrailer(up.Trailer())
			return err
		}
		if err := down.SendMsg(&answer); err != nil {
			return err
		}
	}
}
