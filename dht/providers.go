package dht

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/ipfs/go-cid"
	kad "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p-kad-dht/records"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/multiformats/go-multihash"
	"golang.org/x/sync/singleflight"

	"graze/chunk"
)

// providerProtocol keeps graze's DHT apart from all others.
const providerProtocol = "/graze"

const (
	maxProvided  = 4096             // images that one node announces
	maxHolders   = 20               // holders that one search gives
	maxRecords   = 1 << 17          // records that a node keeps for others
	provideTime  = 30 * time.Second // bounds one announcement
	provideOnce  = 4                // announcements at one time
	provideRetry = time.Minute      // after an announcement that failed
)

// A ProvidersConfig says how a node takes part in the DHT of images.
type ProvidersConfig struct {
	// Bootstrap are nodes through which the DHT is joined: multiaddrs, each with
	// the /p2p/ of its peer, or the host:port at which libp2p listens there. One
	// that is alive is enough.
	Bootstrap []string

	// Lookup resolves the names of bootstrap peers; default: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// View, if set, gives the members of the own pool. They are bootstrap peers
	// too, and are left out of what Find gives.
	View func() *View

	// TTL is how long others keep a record that is not refreshed; default 90m. All
	// nodes should have the same.
	TTL time.Duration

	// Refresh is how often a record is refreshed, a sixth more or less; default
	// TTL/3.
	Refresh time.Duration

	// Negative is how long it is remembered that an image was not found; default
	// 30s, negative: not at all.
	Negative time.Duration

	// Timeout bounds a search; default 5s.
	Timeout time.Duration

	// Log gets the few events that people act on; default: discard.
	Log *slog.Logger
}

// A Holder is a node that says it holds an image.
type Holder struct {
	ID  chunk.PeerID
	P2P []string // libp2p multiaddrs, without the peer ID
}

// Providers is the node's part in the DHT that says who holds which image. A
// record can't be taken back: after Release it lives until its TTL ends, so a
// holder that is found may hold the image no longer.
type Providers struct {
	host     host.Host
	cfg      ProvidersConfig
	gates    []gate
	searches singleflight.Group
	wake     chan struct{} // has one element when provided changed

	mu       sync.Mutex
	run      *running                // guarded by mu; nil unless Run runs
	provided map[chunk.Blob]*provide // guarded by mu
	absent   absentees               // guarded by mu
	stats    ProvidersStats          // guarded by mu
}

// running is what lives as long as Run.
type running struct {
	ctx context.Context
	dht *kad.IpfsDHT
}

// A provide is an image that the node announces.
type provide struct {
	cid  cid.Cid
	next time.Time // when it is announced next
	busy bool
}

// ProvidersStats counts what a node's part of the DHT has done.
type ProvidersStats struct {
	Peers         int    // in the routing table
	Provided      int    // images that are announced
	Announced     uint64 // announcements made
	AnnounceFails uint64 // and failed
	Searches      uint64 // searches made
	Found         uint64 // of them, those that found a holder
	NegativeHits  uint64 // searches spared because the image was not found shortly before
}

// NewProviders returns a node's part in the DHT over h, which stays the caller's.
// It starts nothing and does no I/O.
func NewProviders(h host.Host, cfg ProvidersConfig) (*Providers, error) {
	if cfg.TTL <= 0 {
		cfg.TTL = 90 * time.Minute
	}
	if cfg.Refresh <= 0 {
		cfg.Refresh = cfg.TTL / 3
	}
	if cfg.Refresh >= cfg.TTL {
		return nil, fmt.Errorf("records are refreshed every %v, but live %v", cfg.Refresh, cfg.TTL)
	}
	if cfg.Negative == 0 {
		cfg.Negative = 30 * time.Second
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Lookup == nil {
		cfg.Lookup = systemLookup
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Providers{
		host:     h,
		cfg:      cfg,
		wake:     make(chan struct{}, 1),
		provided: make(map[chunk.Blob]*provide),
	}
	for _, s := range cfg.Bootstrap {
		g, err := parseGate(s)
		if err != nil {
			return nil, err
		}
		p.gates = append(p.gates, g)
	}
	return p, nil
}

// Run takes part in the DHT until ctx is done, and returns once all that it
// started has ended. It fails only when the DHT can't be made. Call it once.
func (p *Providers) Run(ctx context.Context) error {
	d, err := kad.New(p.host,
		kad.ProtocolPrefix(providerProtocol),
		kad.Mode(kad.ModeServer),
		kad.DisableValues(),
		kad.Datastore(newRecordStore(maxRecords)),
		kad.ProviderManagerOpts(records.ProvideValidity(p.cfg.TTL), records.ProviderAddrTTL(p.cfg.TTL)),
		kad.BootstrapPeersFunc(p.bootstrapPeers),
	)
	if err != nil {
		return fmt.Errorf("providers: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	p.run = &running{ctx, d}
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { p.keepConnected(ctx, d) })
	wg.Go(func() { p.keepProvided(ctx, d) })
	<-ctx.Done()
	p.mu.Lock()
	p.run = nil
	p.mu.Unlock()
	cancel()
	wg.Wait()
	if err := d.Close(); err != nil {
		return fmt.Errorf("providers: %w", err)
	}
	return nil
}

// Stats returns the counts.
func (p *Providers) Stats() ProvidersStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Provided = len(p.provided)
	if p.run != nil {
		s.Peers = p.run.dht.RoutingTable().Size()
	}
	return s
}

// imageCID returns the name that an image has in the DHT.
func imageCID(digest chunk.Blob) (cid.Cid, error) {
	text, ok := strings.CutPrefix(string(digest), "sha256:")
	sum, err := hex.DecodeString(text)
	if !ok || err != nil || len(sum) != chunk.SumSize {
		return cid.Undef, fmt.Errorf("image digest %.80q is not a sha256", string(digest))
	}
	mh, err := multihash.Encode(sum, multihash.SHA2_256)
	if err != nil {
		return cid.Undef, fmt.Errorf("image digest: %w", err)
	}
	return cid.NewCidV1(cid.Raw, mh), nil
}

// Find searches for nodes that hold the image whose manifest has the given
// digest, other than the node itself and the members of its pool. At most 20 are
// found; none is no error.
func (p *Providers) Find(ctx context.Context, digest chunk.Blob) ([]Holder, error) {
	id, err := imageCID(digest)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	run, absent := p.run, p.absent.has(digest)
	if absent {
		p.stats.NegativeHits++
	}
	p.mu.Unlock()
	if run == nil {
		return nil, fmt.Errorf("providers are not running: %w", chunk.ErrUnavailable)
	}
	if absent {
		return nil, nil
	}
	// The search is shared, so it lives by its own time and not by its first
	// caller's.
	result := p.searches.DoChan(string(digest), func() (any, error) {
		ctx, cancel := context.WithTimeout(run.ctx, p.cfg.Timeout)
		defer cancel()
		return p.search(ctx, run.dht, digest, id), nil
	})
	select {
	case r := <-result:
		return append([]Holder(nil), r.Val.([]Holder)...), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// search asks the DHT, and remembers what is not there.
func (p *Providers) search(ctx context.Context, d *kad.IpfsDHT, digest chunk.Blob, id cid.Cid) []Holder {
	var view *View
	if p.cfg.View != nil {
		view = p.cfg.View()
	}
	searching, stop := context.WithCancel(ctx)
	defer stop()
	var holders []Holder
	for info := range d.FindProvidersAsync(searching, id, 0) {
		holder := Holder{ID: chunk.PeerID(info.ID.String())}
		if info.ID == p.host.ID() || view != nil && view.Member(holder.ID) != nil || len(holders) == maxHolders {
			continue
		}
		for _, a := range info.Addrs {
			holder.P2P = append(holder.P2P, a.String())
		}
		holders = addHolder(holders, holder)
		if len(holders) == maxHolders {
			stop() // the loop drains what is on its way
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Searches++
	switch {
	case len(holders) > 0:
		p.stats.Found++
	case ctx.Err() == nil && p.cfg.Negative > 0:
		p.absent.add(digest, p.cfg.Negative)
	}
	return holders
}

// addHolder adds h, or the addresses of one that is there without any.
func addHolder(holders []Holder, h Holder) []Holder {
	for i := range holders {
		if holders[i].ID == h.ID {
			holders[i].P2P = h.P2P
			return holders
		}
	}
	return append(holders, h)
}
