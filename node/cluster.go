package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/dht"
	"graze/peer"
)

// A ClusterConfig makes a node part of a cluster. Only KeyFile has no default.
type ClusterConfig struct {
	// KeyFile has the key that all nodes of the cluster share.
	KeyFile string

	// IdentityFile has the node's own key, and is made if missing. Default:
	// identity.key in the state folder.
	IdentityFile string

	// Name is what people call the node. Default: the host's name.
	Name string

	// Bulk is the ip:port at which chunks are served, Gossip that of the
	// membership (TCP and UDP), P2P that of libp2p. Defaults: 0.0.0.0 with ports
	// 7945, 7946 and 7947.
	Bulk, Gossip, P2P string

	// Advertise is the address, without a port, by which the others reach the
	// node. Default: that of Bulk and Gossip, or the host's first address that is
	// not a loopback if these name none.
	Advertise string

	// Join names first contacts, host:port or a name with several addresses;
	// JoinFile is a file with more of them, one a line.
	Join     []string
	JoinFile string

	Rack, Zone string

	// Seed makes the node hold whole images for its rack.
	Seed bool

	// Weight is the node's share of the chunks relative to others. Default: 100,
	// for a seed 400.
	Weight uint16

	// OwnIndexes has the node make the index of a layer that has none by itself.
	// Otherwise one node makes it for all, and the others take its word.
	OwnIndexes bool

	// TagFreshness is how long the answer of a registry, to what a tag stands for
	// or which indexes an image has, is used by all nodes. Default: 5 seconds;
	// negative: each node asks each time.
	TagFreshness time.Duration
	// Bootstrap are nodes of other pools: multiaddrs that end with /p2p/ and the
	// node's ID, or the host:port of its P2P. One of them is enough to find all
	// holders of an image there; Outside is set with it.
	Bootstrap []string

	// Outside has the node find holders of images outside its gossip pool, and be
	// found by them.
	Outside bool

	// Copies is how many members are to hold each part of an image that is mounted
	// anywhere. Default: 2; negative: only what is read is kept.
	Copies int

	// CompletionRate bounds what the node fetches for that, in bytes/s of unpacked
	// content. Default: 32 MiB/s; negative: no bound.
	CompletionRate int64

	// Quarantine is how long another node is asked for nothing after it has sent
	// wrong bytes. Default: 10 minutes.
	Quarantine time.Duration

	// Plain leaves bulk bytes unencrypted. All nodes must agree on it.
	Plain bool

	// UploadRate bounds what others fetch from the node, in bytes/s. Default: no
	// bound.
	UploadRate int64

	// RegistryBytes and RegistryRequests bound what the whole cluster asks of
	// registries, in bytes/s and requests/s. Default: no bound.
	RegistryBytes    int64
	RegistryRequests float64
}

// The ports of a node where its configuration names none.
const (
	bulkPort   = "7945"
	gossipPort = "7946"
	p2pPort    = "7947"
)

// members is a node's place in a cluster: its identity, the other members, and
// the way to them.
type members struct {
	host    *peer.Host
	dht     *dht.Cluster
	outside *outside // nil if the node looks for nobody outside its pool
	catalog *catalog
	log     *slog.Logger
	rack    string
	share   atomic.Pointer[share]
}

// defaultTagFreshness is TagFreshness where the configuration has none.
const defaultTagFreshness = 5 * time.Second

// join makes the node a member of a cluster. Nothing is sent before run. Silence
// is how long another node may say nothing while it is asked.
func (n *Node) join(cfg ClusterConfig, silence time.Duration) (*members, error) {
	key, err := peer.LoadClusterKey(cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's key: %w", err)
	}
	if cfg.Name == "" {
		if cfg.Name, err = os.Hostname(); err != nil {
			return nil, err
		}
	}
	if cfg.Advertise == "" {
		cfg.Advertise = ownAddress(withPort(cfg.Bulk, bulkPort))
	}
	if cfg.IdentityFile == "" {
		cfg.IdentityFile = filepath.Join(n.dir, "identity.key")
	}
	identity, err := peer.LoadIdentity(cfg.IdentityFile)
	if err != nil {
		return nil, fmt.Errorf("read the node's key: %w", err)
	}
	bulk, gossip, p2p := withPort(cfg.Bulk, bulkPort), withPort(cfg.Gossip, gossipPort), withPort(cfg.P2P, p2pPort)
	p2pAddr, err := multiaddr(p2p)
	if err != nil {
		return nil, err
	}
	host, err := peer.New(peer.Config{
		Identity:  identity,
		Key:       key,
		Bulk:      bulk,
		Advertise: advertised(cfg.Advertise, bulk),
		P2P:       []string{p2pAddr},
		Plain:     cfg.Plain,
		Aging:     n.drill.Certificates,
		Stall:     silence,
		Limits:    peer.Limits{Upload: cfg.UploadRate},
		Trace:     n.peerTrace(),
	}, server{n})
	if err != nil {
		return nil, err
	}
	self := dht.Member{
		ID:     host.ID(),
		Name:   cfg.Name,
		Bulk:   host.BulkAddr(),
		P2P:    host.Addrs(),
		Rack:   cfg.Rack,
		Zone:   cfg.Zone,
		Weight: cfg.Weight,
		Ready:  true,
	}
	if cfg.Seed {
		self.Role = dht.Seed
	}
	cluster, err := dht.New(self, dht.Config{
		Key:       key.Derive("gossip"),
		Bind:      gossip,
		Advertise: advertised(cfg.Advertise, gossip),
		Join:      cfg.Join,
		JoinFile:  cfg.JoinFile,
		ViewFile:  filepath.Join(n.dir, "members.json"),
		Log:       n.log,
	})
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	m := &members{host: host, dht: cluster, catalog: n.catalog, log: n.log, rack: cfg.Rack}
	if m.outside, err = n.newOutside(&cfg, m); err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return m, nil
}

// peerTrace logs what an operator should know of connections between nodes, each
// once in a while.
func (n *Node) peerTrace() peer.Trace {
	warn := func(msg, key, who string, err error) {
		if skipped, ok := n.once.allow(msg, who); ok {
			n.log.Warn(msg, key, who, "skipped", skipped, "err", err)
		}
	}
	return peer.Trace{
		Rejected:  func(addr string, err error) { warn("connection was turned away", "addr", hostOf(addr), err) },
		Violation: func(id chunk.PeerID, err error) { warn("node breaks the rules", "peer", string(id), err) },
		Cut: func(id chunk.PeerID, err error) {
			warn("node reads too slowly and was cut off", "peer", string(id), err)
		},
		Fallback: func(id chunk.PeerID, err error) {
			warn("node is reached by libp2p only, which is slower", "peer", string(id), err)
		},
	}
}

// hostOf returns the host of an address: a stranger's port says nothing.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// run takes part in the cluster until ctx is done. held returns the images that
// the node has.
func (m *members) run(ctx context.Context, held func() []chunk.Blob) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.host.Run(ctx) })
	g.Go(func() error { return m.dht.Run(ctx) })
	g.Go(func() error { m.introduce(ctx); return nil })
	if m.outside != nil {
		g.Go(func() error { return m.outside.run(ctx, held) })
	}
	return g.Wait()
}

// withPort returns addr, or any address with the default port if it is empty.
func withPort(addr, port string) string {
	if addr == "" {
		return net.JoinHostPort("0.0.0.0", port)
	}
	return addr
}

// ownAddress returns the address of the machine at which others can reach what
// listens at addr; "" if that names one itself, or the machine has none.
func ownAddress(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || ip != nil && !ip.IsUnspecified() {
		return ""
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && (n.IP.To4() != nil || host == "::") {
			return n.IP.String()
		}
	}
	return ""
}

// advertised returns the address that others reach listen by, if the
// configuration names one.
func advertised(host, listen string) string {
	_, port, err := net.SplitHostPort(listen)
	if host == "" || err != nil || port == "0" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// multiaddr returns the form in which libp2p wants an ip:port.
func multiaddr(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("address %q: %w", addr, err)
	}
	ip := net.ParseIP(host)
	switch {
	case ip == nil:
		return "", fmt.Errorf("address %q has no IP address", addr)
	case ip.To4() != nil:
		return "/ip4/" + host + "/tcp/" + port, nil
	}
	return "/ip6/" + host + "/tcp/" + port, nil
}

// NewClusterKey makes a key for a cluster, in the form that key files have.
func NewClusterKey() string { return peer.NewClusterKey().Text() }

// CheckClusterKey returns what is wrong with the file of a cluster's key.
func CheckClusterKey(file string) error {
	_, err := peer.LoadClusterKey(file)
	return err
}

// Describe says, for a log, where the node is in its cluster.
func (n *Node) Describe() string {
	if n.members == nil {
		return ", alone"
	}
	return fmt.Sprintf(", as %s, serving chunks at %s", n.members.host.ID(), n.members.host.BulkAddr())
}

// introduction is how long a node that has just started waits for an answer of its
// first contacts before it deals with images.
const introduction = 5 * time.Second

// introduced waits until the node knows others of its cluster, or has asked its
// first contacts, but not for long. A node that takes itself for the only one asks
// the registry for what others have.
func (n *Node) introduced(ctx context.Context) error {
	if n.members == nil {
		return nil
	}
	timer := time.NewTimer(introduction)
	defer timer.Stop()
	select {
	case <-n.members.dht.Asked():
	case <-timer.C:
	case <-n.ended:
		return errEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// Resolve is [Library.Resolve] of a node that knows its cluster.
func (n *Node) Resolve(ctx context.Context, ref string) (*Image, error) {
	if err := n.introduced(ctx); err != nil {
		return nil, err
	}
	return n.Library.Resolve(ctx, ref)
}
