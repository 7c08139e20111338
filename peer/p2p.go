package peer

import (
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	p2ppeer "github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/multiformats/go-multiaddr"

	"graze/chunk"
)

// The protocols of libp2p streams.
const (
	protoChunks protocol.ID = "/graze/chunks/1"
	protoTicket protocol.ID = "/graze/ticket/1"
)

// Connections of the libp2p host. Bulk connections are counted apart
// (Limits.Conns); both together stay well under 20,000 descriptors.
const (
	p2pLowWater  = 384 // what is kept when there are more than
	p2pHighWater = 512
	p2pMostConns = 2048
	p2pStreams   = 8192
	p2pMemory    = 256 << 20
)

// knockTime is a bit more than libp2p gives a caller to prove who it is.
const knockTime = 16 * time.Second

// newP2P makes the libp2p host: TCP and nothing else, closed to all who don't
// have the cluster key.
func newP2P(cfg *Config, door *doorman) (host.Host, error) {
	limits := rcmgr.PartialLimitConfig{
		System: rcmgr.ResourceLimits{
			Conns: p2pMostConns, ConnsInbound: p2pMostConns, ConnsOutbound: p2pMostConns, FD: p2pMostConns,
			Streams: p2pStreams, StreamsInbound: p2pStreams, StreamsOutbound: p2pStreams, Memory: p2pMemory,
		},
		Transient: rcmgr.ResourceLimits{
			Conns: 256, ConnsInbound: 256, ConnsOutbound: 256, FD: 256,
			Streams: 512, StreamsInbound: 512, StreamsOutbound: 512,
		},
		PeerDefault: rcmgr.ResourceLimits{
			Conns: 8, ConnsInbound: 8, ConnsOutbound: 8, FD: 8,
			Streams: 256, StreamsInbound: 256, StreamsOutbound: 256, Memory: 64 << 20,
		},
		ProtocolDefault:     rcmgr.ResourceLimits{Streams: p2pStreams, StreamsInbound: p2pStreams, StreamsOutbound: p2pStreams},
		ProtocolPeerDefault: rcmgr.ResourceLimits{Streams: 128, StreamsInbound: 128, StreamsOutbound: 128},
	}
	// Nodes may stand behind one address, so there is no limit by network.
	resources, err := rcmgr.NewResourceManager(
		rcmgr.NewFixedLimiter(limits.Build(rcmgr.DefaultLimits.AutoScale())),
		rcmgr.WithLimitPerSubnet(
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 0, ConnCount: p2pMostConns}},
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 0, ConnCount: p2pMostConns}},
		),
		rcmgr.WithMetricsDisabled(),
	)
	if err != nil {
		return nil, err
	}
	conns, err := connmgr.NewConnManager(p2pLowWater, p2pHighWater, connmgr.WithGracePeriod(time.Minute))
	if err != nil {
		resources.Close()
		return nil, err
	}
	psk := cfg.Key.Derive("libp2p private network")
	h, err := libp2p.New(
		libp2p.Identity(cfg.Identity.key),
		libp2p.ListenAddrStrings(cfg.P2P...),
		libp2p.PrivateNetwork(psk[:]),
		libp2p.Transport(tcp.NewTCPTransport, tcp.DisableReuseport()),
		libp2p.Security(noise.ID, noise.New),
		libp2p.ResourceManager(resources),
		libp2p.ConnectionManager(conns),
		libp2p.ConnectionGater(door),
		libp2p.WithDialTimeout(cfg.Dial),
		libp2p.UserAgent("graze"),
		libp2p.DisableRelay(),
		libp2p.DisableMetrics(),
		libp2p.DisableIdentifyAddressDiscovery(),
		libp2p.Ping(false),
	)
	if err != nil {
		conns.Close()
		resources.Close()
		return nil, fmt.Errorf("libp2p: %w", err)
	}
	return h, nil
}

// P2P returns the libp2p host, for the DHT. It is closed with h.
func (h *Host) P2P() host.Host { return h.p2p }

// Addrs returns the multiaddrs at which libp2p can be reached.
func (h *Host) Addrs() []string {
	var s []string
	for _, a := range h.p2p.Addrs() {
		s = append(s, a.String())
	}
	return s
}

// Learn notes where a node's libp2p host is, for as long as h lives. What was
// noted before is replaced.
func (h *Host) Learn(id chunk.PeerID, addrs []string) error {
	pid, err := p2ppeer.Decode(string(id))
	if err != nil {
		return fmt.Errorf("peer id %.80q: %w", string(id), err)
	}
	parsed := make([]multiaddr.Multiaddr, len(addrs))
	for i, s := range addrs {
		if parsed[i], err = multiaddr.NewMultiaddr(s); err != nil {
			return fmt.Errorf("address of peer %s: %w", id, err)
		}
	}
	h.p2p.Peerstore().ClearAddrs(pid)
	h.p2p.Peerstore().AddAddrs(pid, parsed, peerstore.PermanentAddrTTL)
	return nil
}

// Forget drops what Learn has noted and the idle connections to a node that has
// left the cluster.
func (h *Host) Forget(id chunk.PeerID) {
	h.pool.drop(id)
	if pid, err := p2ppeer.Decode(string(id)); err == nil {
		h.p2p.Peerstore().ClearAddrs(pid)
	}
}
