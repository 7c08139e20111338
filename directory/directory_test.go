package directory

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"graze/chunk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fakeView has as keepers of a chunk the two members after the place that its
// key falls on.
type fakeView struct {
	epoch   uint64
	members []chunk.PeerID
}

func (v fakeView) Epoch() uint64 { return v.epoch }

func (v fakeView) Keepers(dst []chunk.PeerID, key Key) []chunk.PeerID {
	n := Key(len(v.members))
	return append(dst, v.members[key%n], v.members[(key+1)%n])
}

func (v fakeView) Members(dst []chunk.PeerID) []chunk.PeerID { return append(dst, v.members...) }

// A fakeCluster joins directories.
type fakeCluster struct {
	mu    sync.Mutex
	view  fakeView                    // guarded by mu
	nodes map[chunk.PeerID]*Directory // guarded by mu
	sent  int                         // guarded by mu; messages
}

// A place is a fakeCluster as one node has it.
type place struct {
	*fakeCluster
	self chunk.PeerID
}

func (p place) Self() chunk.PeerID { return p.self }

func (p place) View() View {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.view
}

func (p place) Tell(_ context.Context, to chunk.PeerID, m Message) error {
	p.mu.Lock()
	d := p.nodes[to]
	p.sent++
	p.mu.Unlock()
	if d == nil {
		return errors.New("it is down")
	}
	d.Heard(p.self, m)
	return nil
}

func (c *fakeCluster) see(epoch uint64, members ...chunk.PeerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view = fakeView{epoch, members}
}

// start gives a node a directory that runs until ctx is done, or the returned
// function is called.
func (c *fakeCluster) start(t *testing.T, self chunk.PeerID, stored iter.Seq[chunk.ID]) (*Directory, func()) {
	t.Helper()
	d, err := New(place{c, self}, Config{Stored: stored})
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	if c.nodes == nil {
		c.nodes = make(map[chunk.PeerID]*Directory)
	}
	c.nodes[self] = d
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx)
	}()
	stop := sync.OnceFunc(func() {
		c.mu.Lock()
		delete(c.nodes, self)
		c.mu.Unlock()
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return d, stop
}

// knows reports whether some keeper of a chunk names a node as its holder.
func (c *fakeCluster) knows(id chunk.ID, holder chunk.PeerID, t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, keeper := range c.view.Keepers(nil, KeyOf(id)) {
		d := c.nodes[keeper]
		if d == nil || !slices.Contains(d.Holders(nil, id), holder) {
			t.Errorf("%s does not know that %s has %s", keeper, holder, id)
		}
	}
}

func ids(n int) []chunk.ID {
	var list []chunk.ID
	for i := range n {
		list = append(list, chunk.SHA256.Sum([]byte{byte(i), byte(i >> 8)}))
	}
	return list
}

var abc = []chunk.PeerID{"a", "b", "c", "d"}

func startAll(t *testing.T, c *fakeCluster) map[chunk.PeerID]*Directory {
	c.see(1, abc...)
	all := make(map[chunk.PeerID]*Directory)
	for _, id := range abc {
		all[id], _ = c.start(t, id, nil)
	}
	return all
}

func TestKeepersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(fakeCluster)
		all := startAll(t, c)
		list := ids(5000)
		for _, id := range list {
			all["a"].Got(id)
		}
		time.Sleep(3 * time.Second)
		for _, id := range list {
			c.knows(id, "a", t)
		}
		if c.sent > 12 {
			t.Errorf("it took %d messages", c.sent)
		}
	})
}

// Flush returns when all is told.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(fakeCluster)
		all := startAll(t, c)
		id := ids(1)[0]
		all["b"].Got(id)
		all["b"].Flush(t.Context())
		c.knows(id, "b", t)
	})
}

// New keepers get to know what the nodes have: after a node has gone, for one that
// has come, and for one that has started anew.
func TestChanges(t *testing.T) {
	list := ids(300)
	for _, row := range []struct {
		name   string
		change func(t *testing.T, c *fakeCluster, stop map[chunk.PeerID]func())
	}{
		{"gone", func(t *testing.T, c *fakeCluster, stop map[chunk.PeerID]func()) {
			stop["d"]()
			c.see(2, "a", "b", "c")
		}},
		{"new", func(t *testing.T, c *fakeCluster, stop map[chunk.PeerID]func()) {
			c.start(t, "e", nil)
			c.see(2, "a", "b", "c", "d", "e")
		}},
		{"restarted", func(t *testing.T, c *fakeCluster, stop map[chunk.PeerID]func()) {
			stop["d"]()
			c.start(t, "d", nil)
		}},
		{"away for a while, as the others see it", func(t *testing.T, c *fakeCluster, stop map[chunk.PeerID]func()) {
			c.mu.Lock()
			d := c.nodes["d"]
			delete(c.nodes, "d")
			c.mu.Unlock()
			c.nodes["a"].Got(list[0])
			time.Sleep(time.Minute)
			c.mu.Lock()
			c.nodes["d"] = d
			c.mu.Unlock()
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := new(fakeCluster)
				c.see(1, abc...)
				stop := make(map[chunk.PeerID]func())
				for _, id := range abc {
					var stored iter.Seq[chunk.ID]
					if id == "a" {
						stored = slices.Values(list)
					}
					_, stop[id] = c.start(t, id, stored)
				}
				time.Sleep(time.Minute)
				row.change(t, c, stop)
				time.Sleep(10 * time.Minute)
				for _, id := range list {
					c.knows(id, "a", t)
				}
			})
		})
	}
}

// A cluster in which nothing happens is quiet.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(fakeCluster)
		startAll(t, c)
		time.Sleep(time.Minute)
		c.mu.Lock()
		before := c.sent
		c.mu.Unlock()
		time.Sleep(time.Hour)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.sent != before {
			t.Errorf("%d messages were sent in an hour", c.sent-before)
		}
	})
}

func TestConfig(t *testing.T) {
	if _, err := New(place{new(fakeCluster), "a"}, Config{Limit: -1}); err == nil {
		t.Error("a negative limit is no error")
	}
}
