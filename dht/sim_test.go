package dht

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

var testKey = [32]byte{1, 2, 3}

// A simNode is a cluster member in a synctest bubble.
type simNode struct {
	*Cluster
	addr      string
	transport *memTransport
	stop      context.CancelFunc
	done      chan error
}

// startSim starts node i on n.
func startSim(t *testing.T, n *memNet, i int, cfg Config) *simNode {
	t.Helper()
	addr := memAddr(i)
	tr := n.transport(addr)
	cfg.Transport = tr
	if cfg.Key == ([32]byte{}) {
		cfg.Key = testKey
	}
	c, err := New(Member{
		ID:    chunk.PeerID(fmt.Sprintf("node%03d", i)),
		Name:  fmt.Sprintf("host-%d", i),
		Bulk:  fmt.Sprintf("10.0.%d.%d:7001", i/250, i%250+1),
		P2P:   []string{fmt.Sprintf("/ip4/10.0.%d.%d/tcp/7002", i/250, i%250+1)},
		Rack:  fmt.Sprintf("rack%d", i%4),
		Ready: true,
	}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	node := &simNode{c, addr, tr, stop, make(chan error, 1)}
	go func() { node.done <- c.Run(ctx) }()
	return node
}

// leave stops nodes and waits for them.
func leave(t *testing.T, nodes ...*simNode) {
	t.Helper()
	for _, n := range nodes {
		n.stop()
	}
	for _, n := range nodes {
		if err := <-n.done; err != nil {
			t.Errorf("%s: %v", n.self.ID, err)
		}
	}
	// A probe that memberlist has begun ends by its own timeout.
	time.Sleep(10 * time.Second)
}

// within waits until ok, and fails when it takes longer than d of the bubble's
// time. It returns the time that it took.
func within(t *testing.T, d time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > d {
			t.Fatalf("%s: not within %v", what, d)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(start)
}

// agree reports whether all nodes see n members and have one epoch.
func agree(nodes []*simNode, n int) bool {
	for _, node := range nodes {
		v := node.View()
		if len(v.Members()) != n || v.Epoch() != nodes[0].View().Epoch() {
			return false
		}
	}
	return true
}

func TestCrowd(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 30
	}
	synctest.Test(t, func(t *testing.T) {
		network := newMemNet()
		var nodes []*simNode
		for i := range n {
			nodes = append(nodes, startSim(t, network, i, Config{Join: []string{memAddr(0), memAddr(1), memAddr(2)}}))
		}
		t.Logf("%d nodes agree after %v", n, within(t, 30*time.Second, "join", func() bool { return agree(nodes, n) }))
		for _, id := range []chunk.PeerID{"node000", "node029"} {
			m := nodes[5].View().Member(id)
			if m == nil || m.Bulk == "" || len(m.P2P) != 1 || m.Rack == "" || !m.Ready || m.Weight != DefaultWeight || m.Unconfirmed {
				t.Errorf("member %s = %+v", id, m)
			}
		}

		crashed := nodes[n-n/10:]
		alive := nodes[:n-n/10]
		for _, node := range crashed {
			network.kill(node.addr)
		}
		t.Logf("crash of %d known to all after %v", len(crashed),
			within(t, 40*time.Second, "crash", func() bool { return agree(alive, len(alive)) }))
		leave(t, crashed...)

		for i := len(alive); i < n; i++ {
			nodes[i] = startSim(t, network, i, Config{Join: []string{memAddr(0)}})
		}
		t.Logf("they are back after %v", within(t, 40*time.Second, "rejoin", func() bool { return agree(nodes, n) }))

		leave(t, nodes[0])
		if !agree(nodes[1:], n-1) {
			t.Error("a leave is not known to all after ten seconds")
		}
		leave(t, nodes[1:]...)
	})
}

// TestPartition cuts a cluster in two for longer than gossip remembers the dead.
// One side has the only contact of the configuration, or there is none any more.
func TestPartition(t *testing.T) {
	const n = 16
	for _, tt := range []struct {
		name     string
		contacts bool
	}{
		{"through the contacts", true}, {"through lost members", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := newMemNet()
				var gone atomic.Bool
				lookup := func(context.Context, string) ([]netip.Addr, error) {
					if gone.Load() {
						return nil, fmt.Errorf("no such host")
					}
					return []netip.Addr{netip.MustParseAddrPort(memAddr(0)).Addr()}, nil
				}
				var nodes []*simNode
				for i := range n {
					nodes = append(nodes, startSim(t, network, i, Config{Join: []string{"seed"}, Lookup: lookup}))
				}
				within(t, 60*time.Second, "join", func() bool { return agree(nodes, n) })
				gone.Store(!tt.contacts)
				left := make(map[string]bool)
				for _, node := range nodes[:n/2] {
					left[node.addr] = true
				}
				network.setCut(func(a, b string) bool { return left[a] != left[b] })
				within(t, 60*time.Second, "cut", func() bool { return agree(nodes[:n/2], n/2) && agree(nodes[n/2:], n/2) })
				time.Sleep(5 * time.Minute)
				network.setCut(nil)
				t.Logf("one again after %v", within(t, 5*time.Minute, "heal", func() bool { return agree(nodes, n) }))
				leave(t, nodes...)
			})
		})
	}
}

// TestContactLate has the only contact start long after the nodes that know it.
func TestContactLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newMemNet()
		a := startSim(t, network, 1, Config{Join: []string{memAddr(0)}})
		b := startSim(t, network, 2, Config{Join: []string{"seeds:7946"}, Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != "seeds" {
				return nil, fmt.Errorf("no such host %s", host)
			}
			return []netip.Addr{netip.MustParseAddr("10.0.0.77"), netip.MustParseAddr("10.0.0.1")}, nil
		}})
		time.Sleep(10 * time.Minute)
		if got := a.Stats(); got.Joins < 10 || got.Joins > 60 || got.JoinErrors != got.Joins {
			t.Errorf("contact was asked %d times in ten minutes, with %d errors", got.Joins, got.JoinErrors)
		}
		if len(a.View().Members()) != 1 || a.View().Self().ID != "node001" {
			t.Errorf("node alone sees %v", a.View().Members())
		}
		select {
		case <-a.Asked():
		default:
			t.Error("a node whose contact does not answer has not asked it yet")
		}
		c := startSim(t, network, 0, Config{})
		nodes := []*simNode{a, b, c}
		within(t, time.Minute, "join", func() bool { return agree(nodes, 3) })
		late := startSim(t, network, 3, Config{Join: []string{memAddr(0)}})
		<-late.Asked()
		if n := len(late.View().Members()); n != 4 {
			t.Errorf("a node that has asked its contact knows %d nodes", n)
		}
		leave(t, append(nodes, late)...)
	})
}

func TestJitter(t *testing.T) {
	for _, tt := range []struct {
		name         string
		jitter       time.Duration
		first, spans time.Duration // no earlier than first; all within spans
	}{
		{"default", 0, 0, 2 * time.Second},
		{"long", 30 * time.Second, 0, 30 * time.Second},
		{"none", -1, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := newMemNet()
				nodes := []*simNode{startSim(t, network, 0, Config{})}
				synctest.Wait()
				start := time.Now()
				at := make([]time.Duration, 20)
				for i := range at {
					nodes = append(nodes, startSim(t, network, i+1, Config{Join: []string{memAddr(0)}, Jitter: tt.jitter}))
				}
				for left := len(at); left > 0; time.Sleep(10 * time.Millisecond) {
					synctest.Wait()
					left = 0
					for i := range at {
						if at[i] == 0 {
							if nodes[i+1].transport.dials.Load() == 0 {
								left++
								continue
							}
							at[i] = max(1, time.Since(start))
						}
					}
				}
				first, last := at[0], at[0]
				for _, d := range at {
					first, last = min(first, d), max(last, d)
				}
				if last > tt.spans+10*time.Millisecond || tt.spans > 0 && last-first < tt.spans/2 {
					t.Errorf("20 nodes ask between %v and %v", first, last)
				}
				leave(t, nodes...)
			})
		})
	}
}

func TestLastView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "view.json")
		network := newMemNet()
		var nodes []*simNode
		for i := range 6 {
			cfg := Config{Join: []string{memAddr(0)}}
			if i == 5 {
				cfg.ViewFile = file
			}
			nodes = append(nodes, startSim(t, network, i, cfg))
		}
		within(t, time.Minute, "join", func() bool { return agree(nodes, 6) })
		leave(t, nodes[5])
		within(t, time.Minute, "leave", func() bool { return agree(nodes[:5], 5) })

		// The node comes back and knows the others only by its last view. A
		// network that lets nothing through comes first.
		epoch := nodes[0].View().Epoch()
		network.setCut(func(a, b string) bool { return a == memAddr(5) || b == memAddr(5) })
		back := startSim(t, network, 5, Config{ViewFile: file})
		synctest.Wait()
		if s := back.Stats(); s.Members != 6 || s.Unconfirmed != 5 {
			t.Errorf("after the start the node has %d members, %d unconfirmed", s.Members, s.Unconfirmed)
		}
		time.Sleep(time.Minute)
		network.setCut(nil)
		nodes[5] = back
		within(t, time.Minute, "return", func() bool { return agree(nodes, 6) })
		within(t, 10*time.Second, "confirm", func() bool { return back.Stats().Unconfirmed == 0 })
		if back.View().Epoch() == epoch {
			t.Error("the epoch is the same with one member more")
		}

		// Members that went while it was away are dropped once a contact has told
		// its state.
		leave(t, back)
		leave(t, nodes[4])
		within(t, time.Minute, "leave", func() bool { return agree(nodes[:4], 4) })
		back = startSim(t, network, 5, Config{ViewFile: file})
		nodes = append(nodes[:4], back)
		within(t, 20*time.Second, "return", func() bool { return agree(nodes, 5) })
		leave(t, nodes...)

		// Nobody is there any more: the members are dropped after a time, and the
		// file is kept for its contacts.
		back = startSim(t, network, 5, Config{ViewFile: file})
		time.Sleep(aloneTime + time.Second)
		if s := back.Stats(); s.Members != 1 {
			t.Errorf("a node alone has %d members", s.Members)
		}
		leave(t, back)
		if members, _, err := readLastView(file); err != nil || len(members) == 0 {
			t.Errorf("the file has %d members, err %v", len(members), err)
		}
	})
}

func TestAnnounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newMemNet()
		var nodes []*simNode
		for i := range 8 {
			nodes = append(nodes, startSim(t, network, i, Config{Join: []string{memAddr(0)}}))
		}
		within(t, time.Minute, "join", func() bool { return agree(nodes, 8) })
		a, b := nodes[3], nodes[6]
		epoch := b.View().Epoch()

		a.SetLoad(loadStep - 1)
		time.Sleep(time.Minute)
		if got := a.Stats().Announced; got != 0 {
			t.Errorf("a small change of load was announced %d times", got)
		}
		for i := range 600 { // load that jumps ten times a second, for a minute
			a.SetLoad(uint8(40 + 200*(i%2)))
			time.Sleep(100 * time.Millisecond)
		}
		if got := a.Stats().Announced; got < 3 || got > 7 {
			t.Errorf("load was announced %d times in a minute", got)
		}
		a.SetLoad(99)
		time.Sleep(30 * time.Second)
		a.SetLoad(200)
		within(t, 30*time.Second, "load", func() bool { return b.View().Member("node003").Load == 200 })
		if b.View().Epoch() != epoch {
			t.Error("load changed the epoch")
		}

		a.SetReady(false)
		within(t, 5*time.Second, "not ready", func() bool { return !b.View().Member("node003").Ready })
		if b.View().Epoch() == epoch || b.Stats().Unready != 1 {
			t.Error("readiness did not change the epoch")
		}
		a.SetReady(true)
		within(t, 5*time.Second, "ready", func() bool { return agree(nodes, 8) && b.View().Epoch() == epoch })
		leave(t, nodes...)
	})
}

// TestBadMetadata has a member whose metadata nobody can read.
func TestBadMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newMemNet()
		a := startSim(t, network, 0, Config{})
		b := startSim(t, network, 1, Config{Join: []string{memAddr(0)}})
		within(t, time.Minute, "join", func() bool { return agree([]*simNode{a, b}, 2) })

		cfg, err := Config{Key: testKey, Transport: network.transport(memAddr(2))}.complete()
		if err != nil {
			t.Fatal(err)
		}
		odd := startOdd(t, cfg, []byte("\x01\x01\xffshort"))
		if _, err := odd.Join([]string{memAddr(0)}); err != nil {
			t.Fatal(err)
		}
		within(t, time.Minute, "count", func() bool { return a.Stats().BadMetadata > 0 && b.Stats().BadMetadata > 0 })
		time.Sleep(time.Minute)
		if !agree([]*simNode{a, b}, 2) {
			t.Error("the members that can be read are not in the view")
		}
		if err := odd.Shutdown(); err != nil {
			t.Error(err)
		}
		leave(t, a, b)
	})
}
