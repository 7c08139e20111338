package dht

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	kad "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

const (
	bootstrapOnce = 3               // members of the own pool that are dialled at one time
	rebootstrap   = 5 * time.Minute // how often bootstrap peers are looked after
)

// A gate is an address through which the DHT is joined.
type gate struct {
	text string
	info peer.AddrInfo // without addresses if addr is set
	addr string        // host:port of a libp2p listener whose peer is not known
}

// parseGate reads a multiaddr with the /p2p/ of its peer, or host:port.
func parseGate(s string) (gate, error) {
	if strings.HasPrefix(s, "/") {
		info, err := peer.AddrInfoFromString(s)
		if err != nil {
			return gate{}, fmt.Errorf("bootstrap peer %.100q: %w", s, err)
		}
		return gate{text: s, info: *info}, nil
	}
	if err := checkHostPort("bootstrap peer", s); err != nil {
		return gate{}, err
	}
	return gate{text: s, addr: s}, nil
}

// open connects to the peer behind the gate. One that is known by its address
// alone is asked for its name first: in the cluster's private network whoever
// answers has the cluster's key.
func (g *gate) open(ctx context.Context, h host.Host, lookup lookupFunc) error {
	info := g.info
	if g.addr != "" {
		var err error
		if info, err = identify(ctx, h, lookup, g.addr); err != nil {
			return err
		}
	}
	if info.ID == h.ID() {
		return nil
	}
	return h.Connect(ctx, info)
}

// A lookupFunc resolves the name of a host.
type lookupFunc func(ctx context.Context, host string) ([]netip.Addr, error)

// identify finds out which peer listens at host:port: it expects one that can't
// be there, and is told who is.
func identify(ctx context.Context, h host.Host, lookup lookupFunc, addr string) (peer.AddrInfo, error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return peer.AddrInfo{}, err
	}
	ips, err := lookup(ctx, name)
	if err != nil {
		return peer.AddrInfo{}, err
	}
	var addrs []multiaddr.Multiaddr
	for _, ip := range ips[:min(len(ips), maxContacts)] {
		tcp, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(ip.Unmap().String(), port))
		if err != nil {
			return peer.AddrInfo{}, err
		}
		a, err := manet.FromNetAddr(tcp)
		if err != nil {
			return peer.AddrInfo{}, err
		}
		addrs = append(addrs, a)
	}
	nobody, err := nobodyID()
	if err != nil {
		return peer.AddrInfo{}, err
	}
	defer h.Peerstore().RemovePeer(nobody)
	defer h.Peerstore().ClearAddrs(nobody)
	var errs []error
	for _, a := range addrs {
		if multiaddr.Contains(h.Addrs(), a) {
			return peer.AddrInfo{ID: h.ID()}, nil
		}
		err := h.Connect(ctx, peer.AddrInfo{ID: nobody, Addrs: []multiaddr.Multiaddr{a}})
		if mismatch := (sec.ErrPeerIDMismatch{}); errors.As(err, &mismatch) {
			return peer.AddrInfo{ID: mismatch.Actual, Addrs: []multiaddr.Multiaddr{a}}, nil
		}
		errs = append(errs, err)
		h.Peerstore().ClearAddrs(nobody)
	}
	return peer.AddrInfo{}, errors.Join(errs...)
}

// nobodyID returns the name of a peer that nobody is: its key is forgotten.
func nobodyID() (peer.ID, error) {
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		return "", err
	}
	key, err := crypto.UnmarshalEd25519PublicKey(public)
	if err != nil {
		return "", err
	}
	return peer.IDFromPublicKey(key)
}

// neighbours returns some members of the own pool, in random order.
func (p *Providers) neighbours() []peer.AddrInfo {
	if p.cfg.View == nil {
		return nil
	}
	var peers []peer.AddrInfo
	members := p.cfg.View().Members()
	for _, i := range rand.Perm(len(members)) {
		if len(peers) == bootstrapOnce {
			break
		}
		if info, ok := addrInfo(&members[i]); ok && info.ID != p.host.ID() {
			peers = append(peers, info)
		}
	}
	return peers
}

// addrInfo returns where a member is by libp2p.
func addrInfo(m *Member) (peer.AddrInfo, bool) {
	id, err := peer.Decode(string(m.ID))
	if err != nil || len(m.P2P) == 0 {
		return peer.AddrInfo{}, false
	}
	info := peer.AddrInfo{ID: id}
	for _, s := range m.P2P {
		if a, err := multiaddr.NewMultiaddr(s); err == nil {
			info.Addrs = append(info.Addrs, a)
		}
	}
	return info, len(info.Addrs) > 0
}

// keepConnected dials bootstrap peers: for ever while none of the configuration
// answers or nobody is known, and now and then later, so that pools that were
// apart find each other again.
func (p *Providers) keepConnected(ctx context.Context, d *kad.IpfsDHT) {
	for pause := firstPause; ; {
		outside := p.dialAll(ctx)
		if d.RoutingTable().Size() > 0 {
			p.wakeUp()
		}
		if len(p.gates) > 0 && !outside || d.RoutingTable().Size() == 0 {
			if !sleep(ctx, jitter(pause)) {
				return
			}
			pause = min(2*pause, longestPause)
			continue
		}
		pause = firstPause
		if !sleep(ctx, jitter(rebootstrap)) {
			return
		}
	}
}

// dialAll dials the bootstrap peers of the configuration and some members of the
// own pool. It reports whether one of the former is connected.
func (p *Providers) dialAll(ctx context.Context) (outside bool) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var met atomic.Bool
	failed := func(text string, err error) {
		if ctx.Err() == nil {
			p.cfg.Log.Debug("bootstrap peer does not answer", "peer", text, "err", err)
		}
	}
	for i := range p.gates {
		g := &p.gates[i]
		wg.Go(func() {
			if err := g.open(ctx, p.host, p.cfg.Lookup); err != nil {
				failed(g.text, err)
				return
			}
			met.Store(true)
		})
	}
	for _, info := range p.neighbours() {
		wg.Go(func() {
			if err := p.host.Connect(ctx, info); err != nil {
				failed(info.ID.String(), err)
			}
		})
	}
	wg.Wait()
	return met.Load()
}

// bootstrapPeers returns peers for the DHT to begin with when its table is empty.
func (p *Providers) bootstrapPeers() []peer.AddrInfo {
	peers := p.neighbours()
	for i := range p.gates {
		if p.gates[i].addr == "" {
			peers = append(peers, p.gates[i].info)
		}
	}
	return peers
}
