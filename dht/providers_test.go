package dht

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	libp2ppeer "github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"

	"graze/chunk"
)

const testImage = chunk.Blob("sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff")

// A kadNode is a node of the DHT on loopback.
type kadNode struct {
	*Providers
	host host.Host
}

func (n *kadNode) id() chunk.PeerID { return chunk.PeerID(n.host.ID().String()) }

func (n *kadNode) addr() string {
	return n.host.Addrs()[0].String() + "/p2p/" + n.host.ID().String()
}

// member returns the node as a member of a pool.
func (n *kadNode) member() Member {
	return Member{ID: n.id(), P2P: []string{n.host.Addrs()[0].String()}, Weight: DefaultWeight, Ready: true}
}

func startKad(t *testing.T, ip string, cfg ProvidersConfig) *kadNode {
	t.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings("/ip4/"+ip+"/tcp/0"), libp2p.DisableRelay(), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewProviders(h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return &kadNode{p, h}
}

// eventually asks again until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(limit) {
			t.Fatal(what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// TestOtherPool has two pools of five nodes, which one address joins.
func TestOtherPool(t *testing.T) {
	pools := make([][]*kadNode, 2)
	views := make([]atomic.Pointer[View], 2)
	join := ""
	for p := range pools {
		views[p].Store(viewOf([]Member{{ID: "nobody", Weight: 1}}))
		for i := range 5 {
			cfg := ProvidersConfig{Negative: -1, View: func() *View { return views[p].Load() }}
			if join != "" {
				cfg.Bootstrap = []string{join}
			}
			n := startKad(t, fmt.Sprintf("127.0.%d.%d", p+1, i+1), cfg)
			pools[p] = append(pools[p], n)
			join = pools[0][0].addr()
		}
		var members []Member
		for _, n := range pools[p] {
			members = append(members, n.member())
		}
		views[p].Store(viewOf(members))
	}
	all := slices.Concat(pools...)
	for _, n := range all {
		eventually(t, "a node finds no peers", func() bool { return n.Stats().Peers > 0 })
	}
	holder, seeker := pools[0][3], pools[1][4]
	if err := holder.Provide(testImage); err != nil {
		t.Fatal(err)
	}
	var found []Holder
	eventually(t, "the holder is not found", func() bool {
		var err error
		if found, err = seeker.Find(t.Context(), testImage); err != nil {
			t.Fatal(err)
		}
		return len(found) > 0
	})
	if len(found) != 1 || found[0].ID != holder.id() || len(found[0].P2P) == 0 || !strings.HasPrefix(found[0].P2P[0], "/ip4/127.0.1.4/tcp/") {
		t.Errorf("found %+v, want %s", found, holder.id())
	}
	if got, err := holder.Find(t.Context(), testImage); err != nil || len(got) != 0 {
		t.Errorf("the holder finds itself: %+v, %v", got, err)
	}
	// A member of the holder's pool knows it by gossip.
	if got, err := pools[0][1].Find(t.Context(), testImage); err != nil || len(got) != 0 {
		t.Errorf("a neighbour finds a member of its pool: %+v, %v", got, err)
	}
}

// TestBootstrapByAddress has a node that knows another one by its address alone,
// or by a name that has several addresses, of which one is nobody's.
func TestBootstrapByAddress(t *testing.T) {
	a := startKad(t, "127.0.6.1", ProvidersConfig{})
	port, err := a.host.Addrs()[0].ValueForProtocol(multiaddr.P_TCP)
	if err != nil {
		t.Fatal(err)
	}
	lookup := func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.6.99"), netip.MustParseAddr("127.0.6.1")}, nil
	}
	for i, cfg := range []ProvidersConfig{
		{Bootstrap: []string{"127.0.6.1:" + port}},
		{Bootstrap: []string{"pool.example:" + port}, Lookup: lookup},
	} {
		b := startKad(t, fmt.Sprintf("127.0.6.%d", 2+i), cfg)
		eventually(t, "the nodes don't meet", func() bool { return b.Stats().Peers > 0 })
		if id, err := libp2ppeer.Decode(string(a.id())); err != nil || b.host.Network().Connectedness(id) != network.Connected {
			t.Errorf("not connected to %s: %v", a.id(), err)
		}
	}
	alone := startKad(t, "127.0.6.9", ProvidersConfig{})
	self := gate{addr: alone.host.Addrs()[0].String()}
	self.addr = "127.0.6.9:" + strings.TrimPrefix(self.addr, "/ip4/127.0.6.9/tcp/")
	if err := self.open(t.Context(), alone.host, systemLookup); err != nil {
		t.Error("a node that is its own bootstrap peer: ", err)
	}
}

// TestViewBootstraps has a node that knows others only as members of its pool.
func TestViewBootstraps(t *testing.T) {
	a := startKad(t, "127.0.3.1", ProvidersConfig{})
	v := viewOf([]Member{a.member(), {ID: "nobody", P2P: []string{"/ip4/127.0.3.9/tcp/1"}, Weight: 1}})
	b := startKad(t, "127.0.3.2", ProvidersConfig{View: func() *View { return v }})
	eventually(t, "the nodes don't meet", func() bool { return a.Stats().Peers > 0 && b.Stats().Peers > 0 })
}

func TestRefreshAndRelease(t *testing.T) {
	a := startKad(t, "127.0.4.1", ProvidersConfig{})
	b := startKad(t, "127.0.4.2", ProvidersConfig{Bootstrap: []string{a.addr()}, TTL: time.Second, Refresh: 100 * time.Millisecond})
	if err := b.Provide(testImage); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the record is not refreshed", func() bool { return b.Stats().Announced >= 4 })
	if found, err := a.Find(t.Context(), testImage); err != nil || len(found) != 1 {
		t.Errorf("found %v, %v", found, err)
	}
	b.Release(testImage)
	if s := b.Stats(); s.Provided != 0 {
		t.Errorf("stats after release: %+v", s)
	}
}

func TestNegativeCache(t *testing.T) {
	a := startKad(t, "127.0.5.1", ProvidersConfig{Negative: time.Hour})
	b := startKad(t, "127.0.5.2", ProvidersConfig{Bootstrap: []string{a.addr()}})
	eventually(t, "the nodes don't meet", func() bool { return a.Stats().Peers > 0 && b.Stats().Peers > 0 })
	for range 3 {
		if found, err := a.Find(t.Context(), testImage); err != nil || len(found) != 0 {
			t.Errorf("found %v, %v", found, err)
		}
	}
	if s := a.Stats(); s.Searches != 1 || s.NegativeHits != 2 || s.Found != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestAbsentees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a absentees
		for i := range 3*maxAbsent + 1 {
			a.add(chunk.Blob(fmt.Sprint(i)), time.Minute)
		}
		if len(a.until) > maxAbsent || !a.has(chunk.Blob(fmt.Sprint(3*maxAbsent))) {
			t.Errorf("%d images are remembered", len(a.until))
		}
		time.Sleep(time.Minute)
		if a.has(chunk.Blob(fmt.Sprint(3 * maxAbsent))) {
			t.Error("an image is remembered for too long")
		}
	})
}

func TestProvidersRefuse(t *testing.T) {
	h, err := libp2p.New(libp2p.NoListenAddrs, libp2p.DisableRelay(), libp2p.DisableMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, tt := range []struct {
		name string
		cfg  ProvidersConfig
		want string
	}{
		{"bootstrap without peer", ProvidersConfig{Bootstrap: []string{"/ip4/10.0.0.1/tcp/1"}}, "bootstrap peer"},
		{"bootstrap without port", ProvidersConfig{Bootstrap: []string{"10.0.0.1"}}, "bootstrap peer"},
		{"refresh after the end", ProvidersConfig{TTL: time.Minute, Refresh: time.Minute}, "live 1m"},
	} {
		if _, err := NewProviders(h, tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
	}
	p, err := NewProviders(h, ProvidersConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []chunk.Blob{"", "sha256:", "sha256:00", "md5:" + testImage[7:], testImage + "00", "sha256:" + chunk.Blob(strings.Repeat("z", 64))} {
		if err := p.Provide(bad); err == nil {
			t.Errorf("image %q is announced", bad)
		}
	}
	if _, err := p.Find(t.Context(), testImage); err == nil {
		t.Error("a search works without Run")
	}
	for i := range maxProvided {
		if err := p.Provide(chunk.Blob(fmt.Sprintf("sha256:%064x", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Provide(testImage); err == nil {
		t.Error("the number of images is not bounded")
	}
}

func TestRecordStoreIsBounded(t *testing.T) {
	s := newRecordStore(2)
	for _, k := range []string{"/a", "/b", "/c", "/a"} {
		if err := s.Put(t.Context(), ds.NewKey(k), []byte(k)); err != nil {
			t.Fatal(err)
		}
	}
	has := func(k string) bool {
		ok, err := s.Has(t.Context(), ds.NewKey(k))
		return ok && err == nil
	}
	if !has("/a") || !has("/b") || has("/c") {
		t.Error("wrong records are kept")
	}
	b, err := s.Batch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Delete(t.Context(), ds.NewKey("/a"))
	if err := b.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), ds.NewKey("/c"), nil); err != nil || !has("/c") || has("/a") {
		t.Error("room is not used again")
	}
}
