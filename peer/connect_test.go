package peer

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"graze/chunk"
	"graze/wire"
)

// deadAddr returns an address at which nobody listens.
func deadAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Where the bulk listener can't be reached, libp2p is used, and that is
// remembered for as long as Config.Fallback says.
func TestFallback(t *testing.T) {
	s := newShelf(t, 100_000)
	for _, plain := range []bool{false, true} {
		t.Run(map[bool]string{false: "encrypted", true: "plain"}[plain], func(t *testing.T) {
			key := NewClusterKey()
			var fallbacks atomic.Int32
			server := start(t, key, s, func(c *Config) { c.Plain = plain })
			client := start(t, key, nobody, func(c *Config) {
				c.Plain, c.Fallback = plain, time.Hour
				c.Trace.Fallback = func(chunk.PeerID, error) { fallbacks.Add(1) }
			})
			client.knows(server)
			to := Target{server.ID(), deadAddr(t)}
			for range 3 {
				if got, _, err := client.ask(t.Context(), to, request(s.refs...)); err != nil || equalChunks(s, s.refs, got) != nil {
					t.Fatalf("%d chunks, %v", len(got), err)
				}
				client.pool.drop(server.ID())
			}
			if n := fallbacks.Load(); n != 1 {
				t.Errorf("the dead listener was tried %d times", n)
			}
			if st := client.Stats(); st.Peers[server.ID()].Fallbacks != 1 || st.Errors != [NumKinds]uint64{} {
				t.Errorf("counted %+v", st.Traffic)
			}
			client.detours.note(to, time.Now().Add(-1)) // its time is over
			if _, _, err := client.ask(t.Context(), to, request(s.refs...)); err != nil {
				t.Error(err)
			}
			if n := fallbacks.Load(); n != 2 {
				t.Errorf("the dead listener was tried %d times, want 2", n)
			}
			// Another address of the same node is another listener.
			if _, _, err := client.ask(t.Context(), server.target(), request(s.refs...)); err != nil {
				t.Error(err)
			}
			if st := client.Stats(); st.Links[Stream] != 0 || st.Links[Encrypted]+st.Links[Plain] != 1 {
				t.Errorf("connections %v", st.Links)
			}
		})
	}
}

// A node that was restarted under its name is found again without an error.
func TestRestart(t *testing.T) {
	s := newShelf(t, 1000)
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			key := NewClusterKey()
			id, err := NewIdentity()
			if err != nil {
				t.Fatal(err)
			}
			bulk, p2p := "127.0.0.1:0", "/ip4/127.0.0.1/tcp/0"
			set := func(c *Config) { c.Plain, c.Identity, c.Bulk, c.P2P = w.way == Plain, id, bulk, []string{p2p} }
			client := start(t, key, nobody, func(c *Config) { c.Plain = w.way == Plain })
			server := start(t, key, s, set)
			client.knows(server)
			for range 3 {
				for range 2 {
					if got, _, err := client.ask(t.Context(), w.target(server), request(s.refs...)); err != nil || len(got) != 1 {
						t.Fatalf("%d chunks, %v", len(got), err)
					}
				}
				bulk, p2p = server.BulkAddr(), server.Addrs()[0]
				server.stop()
				if w.way != Encrypted {
					// A new dial by libp2p fails until it has noticed the end.
					until(t, "libp2p has noticed", func() bool { return len(client.P2P().Network().ConnsToPeer(id.id)) == 0 })
				}
				server = start(t, key, s, set)
			}
		})
	}
}

// A node that is gone is an error within the time for dialling.
func TestUnreachable(t *testing.T) {
	s := newShelf(t, 1)
	key := NewClusterKey()
	server := start(t, key, s, nil)
	client := start(t, key, nobody, func(c *Config) { c.Dial = 200 * time.Millisecond })
	client.knows(server)
	to := server.target()
	server.stop()
	_, _, err := client.ask(t.Context(), to, request(s.refs...))
	wantKind(t, err, KindUnreachable)
}

// Idle connections are closed by the client, and by the server a bit later.
func TestIdle(t *testing.T) {
	s := newShelf(t, 1)
	eachWay(t, s, func(c *Config) { c.Idle = 50 * time.Millisecond }, func(t *testing.T, client, server *node, to Target) {
		if _, _, err := client.ask(t.Context(), to, request(s.refs...)); err != nil {
			t.Fatal(err)
		}
		until(t, "the connection is gone", func() bool {
			return client.Stats().Links == [NumWays]int{} && server.Stats().Links == [NumWays]int{}
		})
	})
}

// Stopping a node ends what it serves and what it asks for.
func TestStopWhileBusy(t *testing.T) {
	s := newShelf(t, 10)
	entered := make(chan struct{})
	h := handlerFunc(func(ctx context.Context, _ chunk.PeerID, q *wire.Request, w *Responder) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	for _, who := range []string{"server", "client"} {
		t.Run(who, func(t *testing.T) {
			eachWay(t, h, nil, func(t *testing.T, client, server *node, to Target) {
				done := make(chan error)
				go func() {
					_, _, err := client.ask(context.Background(), to, request(s.refs...))
					done <- err
				}()
				<-entered
				if who == "server" {
					server.stop()
				} else {
					client.stop()
				}
				// The server may still say that the request has failed.
				if err := <-done; err != nil {
					wantKind(t, err, KindBroken)
				} else if who == "client" {
					t.Error("no error")
				}
			})
		})
	}
}

func TestConfig(t *testing.T) {
	id, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	good := Config{Identity: id, Key: NewClusterKey(), Bulk: "127.0.0.1:0", P2P: []string{"/ip4/127.0.0.1/tcp/0"}}
	tests := []struct {
		name string
		do   func(c *Config)
	}{
		{"no identity", func(c *Config) { c.Identity = nil }},
		{"no key", func(c *Config) { c.Key = ClusterKey{} }},
		{"negative time", func(c *Config) { c.Stall = -1 }},
		{"negative count", func(c *Config) { c.Limits.Requests = -1 }},
		{"negative rate", func(c *Config) { c.Limits.Upload = -1 }},
		{"small window", func(c *Config) { c.Limits.Bytes = 1 }},
		{"no address", func(c *Config) { c.Bulk = "nowhere" }},
		{"no multiaddr", func(c *Config) { c.P2P = []string{"nowhere"} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good
			tt.do(&c)
			if h, err := New(c, nobody); err == nil {
				h.Close()
				t.Error("it was accepted")
			}
		})
	}
	c := good
	c.Advertise = "node.example:7000"
	h, err := New(c, nobody)
	if err != nil {
		t.Fatal(err)
	}
	if h.BulkAddr() != c.Advertise || len(h.Addrs()) == 0 || h.ID() != id.ID() {
		t.Errorf("%s at %s and %v", h.ID(), h.BulkAddr(), h.Addrs())
	}
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
