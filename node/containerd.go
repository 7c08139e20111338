package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/fusefs"
	"graze/origin"
	"graze/snapshotter"
)

// A ContainerdConfig makes a node a snapshotter of containerd. Only Socket is
// required.
type ContainerdConfig struct {
	// Socket is where containerd finds the snapshotter.
	Socket string

	// Root is the folder of the snapshots. Default: "containerd" in the state
	// folder.
	Root string

	// Address is containerd's own socket. The images of clients that don't name
	// them are looked for there. Default: they are not.
	Address string

	// Policies say how images are served, as snapshotter.ParsePolicy reads them.
	// The first that matches holds.
	Policies []string

	// SmallImage is the size in bytes below which an image is pulled. 0 means that
	// all are served lazily.
	SmallImage int64
}

// viewLinger is how long an image stays mounted that no container uses: longer than
// kubelet waits at most before it starts a container again that ends.
const viewLinger = 10 * time.Minute

// snapshots is the node's snapshotter, and what it needs besides.
type snapshots struct {
	*snapshotter.Snapshotter
	socket string
	finder *snapshotter.Content // nil if there is none
}

// newSnapshots opens the snapshotter.
func (n *Node) newSnapshots(cfg ContainerdConfig, registries origin.Config) (*snapshots, error) {
	if cfg.Socket == "" {
		return nil, errors.New("no socket for containerd was given")
	}
	out := snapshotter.Config{Root: cfg.Root, SmallImage: cfg.SmallImage, Linger: viewLinger, Log: n.log}
	if out.Root == "" {
		out.Root = filepath.Join(n.dir, "containerd")
	}
	for _, text := range cfg.Policies {
		p, err := snapshotter.ParsePolicy(text)
		if err != nil {
			return nil, err
		}
		out.Policies = append(out.Policies, p)
	}
	// Folders are named to containerd as they are in the mount table.
	err := os.MkdirAll(out.Root, 0o700)
	if err == nil {
		out.Root, err = filepath.EvalSymlinks(out.Root)
	}
	if err == nil {
		out.Root, err = filepath.Abs(out.Root)
	}
	if err != nil {
		return nil, err
	}
	s := &snapshots{socket: cfg.Socket}
	if cfg.Address != "" {
		if s.finder, err = snapshotter.NewContent(cfg.Address, hostsWithPort(registries)); err != nil {
			return nil, err
		}
		out.Finder = s.finder
	}
	if s.Snapshotter, err = snapshotter.Open(out, lazyImages{n}); err != nil {
		return nil, errors.Join(fmt.Errorf("open containerd's snapshots: %w", err), s.Close())
	}
	return s, nil
}

// hostsWithPort returns the registries in the settings whose names have a port.
func hostsWithPort(cfg origin.Config) (list []string) {
	list = append(list, cfg.PlainHTTPHosts...)
	dirs, _ := os.ReadDir(cfg.HostsDir) // the client of registries reports errors
	for _, d := range dirs {
		name := d.Name()
		if host, ok := strings.CutSuffix(name, "_"); ok && strings.Contains(host, "_") {
			// "host_port_", for file systems without colons
			port := strings.LastIndexByte(host, '_')
			name = host[:port] + ":" + host[port+1:]
		}
		list = append(list, name)
	}
	return slices.DeleteFunc(list, func(host string) bool { return !strings.Contains(host, ":") })
}

// Close closes the snapshotter. Its views stay mounted.
func (s *snapshots) Close() (err error) {
	if s.Snapshotter != nil {
		err = s.Snapshotter.Close()
	}
	if s.finder != nil {
		err = errors.Join(err, s.finder.Close())
	}
	return err
}

// listen opens the socket. One that nobody listens on is what a node left that was
// killed.
func (s *snapshots) listen(ctx context.Context) (net.Listener, error) {
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", s.socket); err == nil {
		return nil, errors.Join(fmt.Errorf("another snapshotter listens on %s", s.socket), conn.Close())
	}
	if err := os.Remove(s.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(s.socket), 0o711); err != nil {
		return nil, err
	}
	ln, err := listenUnix(ctx, s.socket)
	if err != nil {
		return nil, fmt.Errorf("listen for containerd: %w", err)
	}
	return ln, nil
}

// run answers containerd until ctx is done.
func (s *snapshots) run(ctx context.Context, ln net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Serve(ctx, ln) })
	g.Go(func() error { return s.Run(ctx) })
	return g.Wait()
}

// lazyImages gives a node's images to its snapshotter.
type lazyImages struct{ node *Node }

// Resolve implements snapshotter.Images.
func (l lazyImages) Resolve(ctx context.Context, name string) (snapshotter.Image, error) {
	img, err := l.node.Resolve(ctx, name)
	if err != nil {
		return snapshotter.Image{}, err
	}
	out := snapshotter.Image{Name: img.byDigest(), Repository: img.Repository, Chains: chainIDs(img.DiffIDs), Unpackable: true}
	for i := range img.Layers {
		out.Size += img.Layers[i].Size
		out.Unpackable = out.Unpackable && !isNydusBlob(&img.Layers[i])
	}
	return out, nil
}

// chainIDs returns the names that the chains of an image's layers have, from the
// lowest layer alone to all of them.
func chainIDs(diffIDs []chunk.Blob) []chunk.Blob {
	ids := make([]digest.Digest, len(diffIDs))
	for i, d := range diffIDs {
		ids[i] = digest.Digest(d)
	}
	chains := make([]chunk.Blob, len(ids))
	for i, d := range identity.ChainIDs(ids) {
		chains[i] = chunk.Blob(d)
	}
	return chains
}

// Ready implements snapshotter.Images.
func (l lazyImages) Ready(ctx context.Context, name string, build bool) error {
	img, err := l.node.Resolve(ctx, name)
	if err != nil {
		return err
	}
	view, err := l.node.OpenView(ctx, img, IndexOptions{Build: build, Keep: l.node.keep})
	if errors.Is(err, ErrNoIndex) {
		return fmt.Errorf("%w: %w", snapshotter.ErrNoIndex, err)
	}
	if err != nil {
		return err
	}
	return view.Close()
}

// Mount implements snapshotter.Images.
func (l lazyImages) Mount(ctx context.Context, v snapshotter.View, dir string) error {
	if l.node.isMounted(dir) {
		return nil
	}
	_, err := l.node.Mount(ctx, v.Image, dir, MountOptions{IndexOptions: IndexOptions{Build: true}, Layers: v.Layers})
	return err
}

// isMounted reports whether a folder shows a mount of the node that is served.
func (n *Node) isMounted(dir string) bool {
	n.mu.Lock()
	mounts := slices.Clone(n.mounts)
	n.mu.Unlock()
	return slices.ContainsFunc(mounts, func(m *Mount) bool { return m.info.Dir == dir && m.server.Mounted() })
}

// Unmount implements snapshotter.Images.
func (l lazyImages) Unmount(dir string) error {
	err := Unmount(dir, true)
	if errors.Is(err, fusefs.ErrNotMounted) {
		return nil
	}
	return err
}
