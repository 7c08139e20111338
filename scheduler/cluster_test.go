package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// A fakeCluster is a rack of nodes, of which this one is "self", and what each
// of the others does when it is asked.
type fakeCluster struct {
	route Route
	share float64

	mu    sync.Mutex
	peers map[chunk.PeerID]fakePeer
	asked []fakeAsk
}

// A fakePeer answers a request.
type fakePeer func(ctx context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error

// A fakeAsk is one request that a peer got.
type fakeAsk struct {
	to    chunk.PeerID
	mode  Mode
	level uint8
	class chunk.Class
	parts int
}

func (c *fakeCluster) Self() chunk.PeerID { return "self" }
func (c *fakeCluster) Share() float64     { return c.share }

func (c *fakeCluster) Route(_ *chunk.Span, r *Route) {
	r.Rack = append(r.Rack, c.route.Rack...)
	r.Cluster = append(r.Cluster, c.route.Cluster...)
	r.Former = append(r.Former, c.route.Former...)
	r.Outside = append(r.Outside, c.route.Outside...)
}

func (c *fakeCluster) Place(id chunk.PeerID) (Place, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.peers[id]
	if id == "self" {
		ok = true
	}
	return Place{Rack: "r", Zone: "z", Outside: slices.Contains(c.route.Outside, id)}, ok
}

func (c *fakeCluster) Fetch(ctx context.Context, to chunk.PeerID, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
	if err := pause(ctx, time.Millisecond); err != nil {
		return err
	}
	a := fakeAsk{to: to, mode: req.Mode, level: req.Level, class: req.Class}
	for i := range req.Items {
		a.parts += req.Items[i].wanted()
	}
	c.mu.Lock()
	p := c.peers[to]
	c.asked = append(c.asked, a)
	c.mu.Unlock()
	return p(ctx, req, got)
}

// log returns what was asked for so far.
func (c *fakeCluster) log() []fakeAsk {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}

// each calls f for each wanted part.
func each(req *PeerRequest, f func(item, part int, ref chunk.Ref) error) error {
	for i := range req.Items {
		var err error
		req.Items[i].each(func(part int) {
			if err == nil {
				err = f(i, part, req.Items[i].Span.Parts[part].Ref)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// says returns a peer that gives one answer for all.
func says(a PeerAnswer) fakePeer {
	return func(_ context.Context, _ *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
		a := a
		a.Item, a.Part = All, All
		return got(&a, nil)
	}
}

// breaks returns a peer that can't be reached.
func breaks() fakePeer {
	return func(context.Context, *PeerRequest, func(*PeerAnswer, io.Reader) error) error {
		return errors.New("connection refused")
	}
}

// holds returns a peer that has all chunks of im, changed by edit if that is not
// nil.
func holds(im *fakeImage, edit func(p []byte) []byte) fakePeer {
	return holdsBy(im, func(p []byte) (io.Reader, int) {
		if edit != nil {
			p = edit(bytes.Clone(p))
		}
		return bytes.NewReader(p), len(p)
	})
}

// holdsBy returns a peer that has all chunks of im, and sends them by the bodies
// that are made of them, of which it says that they have so many bytes.
func holdsBy(im *fakeImage, body func(p []byte) (io.Reader, int)) fakePeer {
	have := make(map[chunk.ID][]byte)
	for i, ref := range im.refs {
		have[ref.ID] = im.content[i*im.size:][:ref.Size]
	}
	return func(_ context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
		return each(req, func(item, part int, ref chunk.Ref) error {
			r, n := body(have[ref.ID])
			a := &PeerAnswer{Item: item, Part: part, Status: StatusBytes, Size: int32(n)}
			return got(a, r)
		})
	}
}

// stalls returns a peer that sends the first bytes of a chunk and no more.
func stalls(im *fakeImage) fakePeer {
	return func(ctx context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
		return each(req, func(item, part int, ref chunk.Ref) error {
			body := io.MultiReader(bytes.NewReader([]byte("x")), blocked{ctx})
			return got(&PeerAnswer{Item: item, Part: part, Status: StatusBytes, Size: ref.Size}, body)
		})
	}
}

// drips returns a peer that has all chunks of im, of which each takes d to come, a
// byte now and then.
func drips(im *fakeImage, d time.Duration) fakePeer {
	return holdsBy(im, func(p []byte) (io.Reader, int) { return &drip{p: p, pause: d / drops}, len(p) })
}

// drops is how many pieces a body comes in that drips.
const drops = 16

type drip struct {
	p     []byte
	pause time.Duration
	n     int
}

func (d *drip) Read(p []byte) (int, error) {
	if len(d.p) == 0 {
		return 0, io.EOF
	}
	time.Sleep(d.pause)
	k := len(d.p)
	if d.n++; d.n < drops {
		k = 1
	}
	n := copy(p, d.p[:k])
	d.p = d.p[n:]
	return n, nil
}

// blocked is a reader that blocks until its context is done.
type blocked struct{ ctx context.Context }

func (b blocked) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, context.Cause(b.ctx)
}

// clusterBubble runs f with a scheduler in a cluster, without read-ahead.
func clusterBubble(t *testing.T, c *fakeCluster, spec imageSpec, cfg Config, f func(t *testing.T, g *rig)) {
	cfg.Cluster, cfg.Peers, cfg.Readahead = c, c, -1
	bubble(t, spec, cfg, f)
}

func TestPathOfARead(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	absent, refuses := says(PeerAnswer{Status: StatusAbsent}), says(PeerAnswer{Status: StatusFailed})
	all := []chunk.PeerID{"a", "b", "c", "d"}
	for _, tt := range []struct {
		name   string
		route  Route
		peers  map[chunk.PeerID]fakePeer
		want   string // who is asked, in order
		origin int    // requests to it
	}{
		{"the rack home has it", Route{Rack: all[:2], Cluster: all[2:]},
			map[chunk.PeerID]fakePeer{"a": holds(im, nil)}, "a:home0", 0},
		{"the rack home is down", Route{Rack: all[:2], Cluster: all[2:]},
			map[chunk.PeerID]fakePeer{"a": breaks(), "b": holds(im, nil)}, "a:home0 b:home0", 0},
		{"no rack homes", Route{Cluster: all[2:]},
			map[chunk.PeerID]fakePeer{"c": holds(im, nil)}, "c:home1", 0},
		{"rack home by itself", Route{Rack: []chunk.PeerID{"self", "a"}, Cluster: all[2:]},
			map[chunk.PeerID]fakePeer{"c": holds(im, nil)}, "c:home1", 0},
		{"cluster home by itself", Route{Rack: []chunk.PeerID{"self"}, Cluster: []chunk.PeerID{"self", "c"}},
			map[chunk.PeerID]fakePeer{}, "", 1},
		{"next in line are asked by a home that has just started", Route{Cluster: []chunk.PeerID{"self", "c"}},
			map[chunk.PeerID]fakePeer{"c": holds(im, nil)}, "c:held1", 0},
		{"a former home has it", Route{Cluster: []chunk.PeerID{"self"}, Former: []chunk.PeerID{"d"}},
			map[chunk.PeerID]fakePeer{"d": holds(im, nil)}, "d:held1", 0},
		{"a former home lacks it", Route{Cluster: []chunk.PeerID{"self"}, Former: []chunk.PeerID{"d"}},
			map[chunk.PeerID]fakePeer{"d": absent}, "d:held1", 1},
		{"one outside has it", Route{Cluster: []chunk.PeerID{"self"}, Former: []chunk.PeerID{"d"}, Outside: []chunk.PeerID{"x"}},
			map[chunk.PeerID]fakePeer{"d": absent, "x": holds(im, nil)}, "d:held1 x:held1", 0},
		{"one outside lacks it", Route{Cluster: []chunk.PeerID{"self"}, Outside: []chunk.PeerID{"x"}},
			map[chunk.PeerID]fakePeer{"x": absent}, "x:held1", 1},
		{"the home is asked before one outside", Route{Cluster: []chunk.PeerID{"c"}, Outside: []chunk.PeerID{"x"}},
			map[chunk.PeerID]fakePeer{"c": holds(im, nil), "x": holds(im, nil)}, "c:home1", 0},
		{"one outside is down", Route{Cluster: []chunk.PeerID{"self"}, Outside: []chunk.PeerID{"x"}},
			map[chunk.PeerID]fakePeer{"x": breaks()}, "x:held1", 1},
		{"all are down", Route{Rack: all[:2], Cluster: all[2:]},
			map[chunk.PeerID]fakePeer{"a": breaks(), "b": breaks(), "c": breaks(), "d": breaks()},
			"a:home0 b:home0 c:home1 d:home1 c:held1 d:held1", 1},
		{"a redirect", Route{Rack: all[:1], Cluster: all[2:]},
			map[chunk.PeerID]fakePeer{"a": says(PeerAnswer{Status: StatusRedirect, Holders: []chunk.PeerID{"b"}}), "b": holds(im, nil)},
			"a:home0 b:held1", 0},
		{"the registry refuses the homes", Route{Rack: all[:1], Cluster: all[2:]},
			map[chunk.PeerID]fakePeer{"a": refuses}, "a:home0", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &fakeCluster{route: tt.route, peers: tt.peers}
			clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
				g.mustRead(1, 0, 1)
				got := ""
				for i, a := range c.log() {
					if i > 0 {
						got += " "
					}
					got += fmt.Sprintf("%s:%s%d", a.to, map[Mode]string{ModeHome: "home", ModeHeld: "held"}[a.mode], a.level)
				}
				got = normalHeld(got)
				if want := normalHeld(tt.want); got != want {
					t.Errorf("asked %q, want %q", got, want)
				}
				if n := len(g.origin.log()); n != tt.origin {
					t.Errorf("%d requests to the origin, want %d", n, tt.origin)
				}
				g.wantIdle()
			})
		})
	}
}

// One outside that is busy is asked again rather than the origin, but not for
// ever.
func TestBusyOutside(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	for _, tt := range []struct {
		busy   int // answers
		origin int // requests to it
	}{{3, 0}, {1000, 1}} {
		t.Run(fmt.Sprint(tt.busy), func(t *testing.T) {
			asked := 0
			c := &fakeCluster{route: Route{Cluster: []chunk.PeerID{"self"}, Outside: []chunk.PeerID{"x"}}, peers: map[chunk.PeerID]fakePeer{
				"x": func(ctx context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
					if asked++; asked <= tt.busy {
						return got(&PeerAnswer{Item: All, Part: All, Status: StatusBusy, Wait: time.Millisecond}, nil)
					}
					return holds(im, nil)(ctx, req, got)
				},
			}}
			clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
				begin := time.Now()
				g.mustRead(1, 0, 1)
				if n := len(g.origin.log()); n != tt.origin {
					t.Errorf("%d requests to the origin after %d to the one outside, want %d", n, asked, tt.origin)
				}
				if d := time.Since(begin); d > 2*maxWait {
					t.Errorf("the read took %v", d)
				}
				g.wantIdle()
			})
		})
	}
}

// While the origin does not answer, holders outside that are found later serve.
func TestOutsideFoundLater(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	c := &fakeCluster{route: Route{Cluster: []chunk.PeerID{"self"}}, peers: map[chunk.PeerID]fakePeer{"x": holds(im, nil)}}
	clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.fault = func(int, originRequest, []byte) ([]byte, error) {
			return nil, fmt.Errorf("%w: registry is down", chunk.ErrUnavailable)
		}
		time.AfterFunc(20*time.Second, func() {
			g.lock()
			c.route.Outside = []chunk.PeerID{"x"}
			g.mu.Unlock()
		})
		begin := time.Now()
		g.mustRead(1, 0, 1)
		if d := time.Since(begin); d < 20*time.Second || d > 20*time.Second+2*maxPause {
			t.Errorf("the read took %v", d)
		}
		if s := g.Stats().Cluster; s.Tiers[TierOutside].Bytes == 0 {
			t.Error("nothing has come from outside")
		}
		g.wantIdle()
	})
}

// normalHeld removes the level of requests for what is held: it means nothing.
func normalHeld(s string) string {
	for _, l := range []string{"0", "1"} {
		s = string(bytes.ReplaceAll([]byte(s), []byte("held"+l), []byte("held")))
	}
	return s
}

// Whatever peers do, a reader gets the right bytes in time.
func TestBadPeers(t *testing.T) {
	im := newImage(imageSpec{files: []int64{4 * span}})
	million := make([]chunk.PeerID, 1e6)
	for i := range million {
		million[i] = chunk.PeerID(fmt.Sprint("p", i))
	}
	for _, tt := range []struct {
		name  string
		peer  fakePeer
		state PeerState
	}{
		{"flips a bit", holds(im, func(p []byte) []byte { p[7] ^= 1; return p }), PeerQuarantined},
		{"is one byte short", holds(im, func(p []byte) []byte { return p[1:] }), PeerOpen},
		{"is one byte long", holds(im, func(p []byte) []byte { return append(p, 0) }), PeerOpen},
		{"stalls", stalls(im), PeerGood},
		{"says nothing and ends", says(PeerAnswer{Status: StatusAbsent}), PeerGood},
		{"answers with an unknown status", says(PeerAnswer{Status: 99}), PeerGood},
		{"redirects to itself", says(PeerAnswer{Status: StatusRedirect, Holders: []chunk.PeerID{"a"}}), PeerOpen},
		{"redirects to this node", says(PeerAnswer{Status: StatusRedirect, Holders: []chunk.PeerID{"self"}}), PeerGood},
		{"redirects to a million", says(PeerAnswer{Status: StatusRedirect, Holders: million}), PeerGood},
		{"is always busy", says(PeerAnswer{Status: StatusBusy, Wait: time.Hour}), PeerGood},
		{"answers what was not asked", func(_ context.Context, _ *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
			return got(&PeerAnswer{Item: 1000, Part: 7, Status: StatusBytes, Size: 1}, bytes.NewReader([]byte("x")))
		}, PeerOpen},
		{"sends the same chunk for ever", func(ctx context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
			for ctx.Err() == nil {
				if err := holds(im, nil)(ctx, req, got); err != nil {
					return err
				}
				if err := pause(ctx, time.Millisecond); err != nil {
					return err
				}
			}
			return context.Cause(ctx)
		}, PeerGood},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &fakeCluster{
				route: Route{Rack: []chunk.PeerID{"a", "b"}, Cluster: []chunk.PeerID{"b", "a"}},
				peers: map[chunk.PeerID]fakePeer{"a": tt.peer, "b": holds(im, nil)},
			}
			clusterBubble(t, c, imageSpec{files: []int64{4 * span}}, Config{}, func(t *testing.T, g *rig) {
				begin := time.Now()
				g.mustRead(1, 0, 4*span)
				if d := time.Since(begin); d > 2*maxWait {
					t.Errorf("the read took %v", d)
				}
				if n := len(g.origin.log()); n > 0 {
					t.Errorf("%d requests to the origin", n)
				}
				s := g.Stats().Cluster
				if n := len(s.Peers); n > 2 {
					t.Errorf("%d peers are known", n)
				}
				for _, p := range s.Peers {
					if p.ID == "a" && p.State != tt.state {
						t.Errorf("the peer is %s, want %s", p.State, tt.state)
					}
					if (p.Reason == "") != (p.State == PeerGood) {
						t.Errorf("the peer is %s, for this reason: %q", p.State, p.Reason)
					}
				}
			})
		})
	}
}

// A home that works on a request for ever, without an answer, is left while a
// reader has the time to ask others.
func TestHomeWithoutAnswer(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	works := func(ctx context.Context, _ *PeerRequest, _ func(*PeerAnswer, io.Reader) error) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	c := &fakeCluster{
		route: Route{Cluster: []chunk.PeerID{"a", "b", "c"}},
		peers: map[chunk.PeerID]fakePeer{"a": works, "b": works, "c": holds(im, nil)},
	}
	clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{ReadDeadline: time.Minute}, func(t *testing.T, g *rig) {
		begin := time.Now()
		g.mustRead(1, 0, 1)
		if d := time.Since(begin); d > 25*time.Second {
			t.Errorf("the read took %v", d)
		}
		if n := len(g.origin.log()); n > 0 {
			t.Errorf("%d requests to the origin", n)
		}
		g.wantIdle()
	})
}

// Two peers that redirect to each other are left.
func TestRedirectLoop(t *testing.T) {
	to := func(id chunk.PeerID) fakePeer {
		return says(PeerAnswer{Status: StatusRedirect, Holders: []chunk.PeerID{id}})
	}
	c := &fakeCluster{
		route: Route{Rack: []chunk.PeerID{"a", "b"}, Cluster: []chunk.PeerID{"a", "b"}},
		peers: map[chunk.PeerID]fakePeer{"a": to("b"), "b": to("a")},
	}
	clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 1)
		if n := len(c.log()); n > 100 {
			t.Errorf("%d requests to peers", n)
		}
		g.wantRequests([2]int64{0, span})
	})
}

// A redirect to the node that waits for the chunk here leads nowhere: it would take the
// request for one that goes round in a circle.
func TestRedirectToWhoAsks(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	c := &fakeCluster{
		route: Route{Cluster: []chunk.PeerID{"a", "self"}},
		peers: map[chunk.PeerID]fakePeer{
			"a": says(PeerAnswer{Status: StatusRedirect, Holders: []chunk.PeerID{"x", "b"}}),
			"b": holds(im, nil),
			"x": says(PeerAnswer{Status: StatusAbsent}),
		},
	}
	clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		w := &fakeResponder{}
		req := g.homeRequest(0)
		req.Via = []chunk.PeerID{"x"}
		if err := g.Serve(t.Context(), "x", req, w); err != nil {
			t.Fatal(err)
		}
		if got := w.counts(); got[StatusBytes] != 4 {
			t.Errorf("answers by status %v", got)
		}
		for _, asked := range c.log() {
			if asked.to == "x" {
				t.Errorf("who asks was asked: %+v", asked)
			}
		}
	})
}

// Chunks that are wanted at one moment from one peer travel in one request.
func TestOneRequestForManyChunks(t *testing.T) {
	im := newImage(imageSpec{files: []int64{10 * span}})
	c := &fakeCluster{
		route: Route{Rack: []chunk.PeerID{"a"}, Cluster: []chunk.PeerID{"a"}},
		peers: map[chunk.PeerID]fakePeer{"a": holds(im, nil)},
	}
	clusterBubble(t, c, imageSpec{files: []int64{10 * span}}, Config{}, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 10*span)
		if log := c.log(); len(log) != 1 || log[0].parts != 40 {
			t.Errorf("requests %+v", log)
		}
		g.wantIdle()
	})
}

// A reader that joins a prefetch under way has it asked for as the reader's.
func TestPromotionAtPeers(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	c := &fakeCluster{route: Route{Cluster: []chunk.PeerID{"a"}}, peers: make(map[chunk.PeerID]fakePeer)}
	c.peers["a"] = func(ctx context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
		if req.Class == chunk.Prefetch {
			if err := pause(ctx, time.Minute); err != nil {
				return err
			}
		}
		return holds(im, nil)(ctx, req, got)
	}
	clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		wait := g.prefetch(t.Context(), chunk.Prefetch, 0)
		pause(t.Context(), time.Second)
		begin := time.Now()
		g.mustRead(1, 0, 1)
		if d := time.Since(begin); d > 2*promoteAfter {
			t.Errorf("the reader waited for %v", d)
		}
		if n := g.Stats().Cluster.Promoted; n != 1 {
			t.Errorf("%d chunks were promoted", n)
		}
		if err := wait(); err != nil {
			t.Error(err)
		}
		g.wantIdle()
	})
}

// A reader that joins a read-ahead goes on with it if the peer says that it has no
// time for the reader: that is what a peer says which is sending the chunk.
func TestBusyPromotion(t *testing.T) {
	readaheadFrom(t, span/4, time.Second, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 1)
		if g.Stats().Cluster.Promoted == 0 {
			t.Error("the reader's request was not made")
		}
	})
}

// What is read ahead and is coming in already is not asked for once more.
func TestNoPromotionOfBodies(t *testing.T) {
	readaheadFrom(t, span, 0, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 1)
		if n := g.Stats().Cluster.Promoted; n != 0 {
			t.Errorf("%d chunks were asked for once more", n)
		}
	})
}

// readaheadFrom has a file of some size read ahead from a peer that has no time for
// readers. Its first body comes after some time, and each takes longer than a reader
// waits before it asks for itself. Half a second into that f is called. Nothing may
// come twice, or from the origin.
func readaheadFrom(t *testing.T, size int64, after time.Duration, f func(t *testing.T, g *rig)) {
	t.Helper()
	im := newImage(imageSpec{files: []int64{size}})
	c := &fakeCluster{route: Route{Cluster: []chunk.PeerID{"a"}}, peers: make(map[chunk.PeerID]fakePeer)}
	c.peers["a"] = func(ctx context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
		if req.Class == chunk.Demand {
			return got(&PeerAnswer{Item: All, Part: All, Status: StatusBusy, Wait: time.Hour}, nil)
		}
		if err := pause(ctx, after); err != nil {
			return err
		}
		return drips(im, time.Second)(ctx, req, got)
	}
	clusterBubble(t, c, imageSpec{files: []int64{size}}, Config{}, func(t *testing.T, g *rig) {
		wait := g.prefetch(t.Context(), chunk.Readahead, 0)
		pause(t.Context(), 500*time.Millisecond)
		f(t, g)
		if err := wait(); err != nil {
			t.Error(err)
		}
		if n := g.Stats().Wasted; n != 0 {
			t.Errorf("%d bytes came twice", n)
		}
		g.wantRequests()
		g.wantIdle()
	})
}

// Readers ask a second peer when the first is slow, within the budget, and take
// what comes first.
func TestHedge(t *testing.T) {
	im := newImage(imageSpec{files: []int64{100 * span}})
	slow := func(ctx context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
		if err := pause(ctx, 10*time.Second); err != nil {
			return err
		}
		return holds(im, nil)(ctx, req, got)
	}
	c := &fakeCluster{
		route: Route{Rack: []chunk.PeerID{"a", "b"}, Cluster: []chunk.PeerID{"a"}},
		peers: map[chunk.PeerID]fakePeer{"a": slow, "b": holds(im, nil)},
	}
	clusterBubble(t, c, imageSpec{files: []int64{100 * span}}, Config{}, func(t *testing.T, g *rig) {
		begin := time.Now()
		g.mustRead(1, 0, 1)
		if d := time.Since(begin); d > firstHedge+20*time.Millisecond {
			t.Errorf("the first read took %v", d)
		}
		var wg sync.WaitGroup
		for i := range int64(40) {
			wg.Go(func() { g.mustRead(1, (i+1)*span, 1) })
		}
		wg.Wait()
		s := g.Stats().Cluster
		if most := int64(4); s.HedgesFired > most || s.HedgesWon == 0 {
			t.Errorf("%d hedges, %d won; want %d at most", s.HedgesFired, s.HedgesWon, most)
		}
		g.wantIdle()
	})
}

func TestRegistryBudget(t *testing.T) {
	c := &fakeCluster{route: Route{Cluster: []chunk.PeerID{"self"}}, share: 0.25}
	cfg := Config{OriginRate: 400 << 10} // 100 KiB a second are this node's
	clusterBubble(t, c, imageSpec{files: []int64{40 * span}}, cfg, func(t *testing.T, g *rig) {
		begin := time.Now()
		for i := range int64(40) {
			g.mustRead(1, i*span, 1)
		}
		// The first second is saved up.
		if d := time.Since(begin); d < 5*time.Second || d > 7*time.Second {
			t.Errorf("640 KiB took %v", d)
		}
		if g.Stats().Cluster.Throttled == 0 {
			t.Error("nothing was throttled")
		}
	})
}

func TestConfigOfACluster(t *testing.T) {
	c := &fakeCluster{}
	im := newImage(imageSpec{files: []int64{1}})
	for name, cfg := range map[string]Config{
		"no peers":            {Cluster: c},
		"no cluster":          {Peers: c},
		"negative rate":       {OriginRate: -1},
		"negative calls":      {Calls: -1},
		"negative upload":     {Uploads: -1},
		"negative quarantine": {Quarantine: -1},
	} {
		if _, err := New(&fakeStore{}, &fakeOrigin{}, fakeDecoder{im}, cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A peer that breaks is left alone, and asked again by one call at a time.
func TestBreaker(t *testing.T) {
	im := newImage(imageSpec{files: []int64{200 * span}})
	c := &fakeCluster{
		route: Route{Rack: []chunk.PeerID{"a", "b"}, Cluster: []chunk.PeerID{"b"}},
		peers: map[chunk.PeerID]fakePeer{"a": breaks(), "b": holds(im, nil)},
	}
	clusterBubble(t, c, imageSpec{files: []int64{200 * span}}, Config{}, func(t *testing.T, g *rig) {
		next := int64(0)
		read := func(d time.Duration) (toA int) {
			before := len(c.log())
			for end := time.Now().Add(d); time.Now().Before(end); next++ {
				g.mustRead(1, next%200*span, 1)
				pause(t.Context(), 100*time.Millisecond)
			}
			for _, a := range c.log()[before:] {
				if a.to == "a" {
					toA++
				}
			}
			return toA
		}
		if n := read(900 * time.Millisecond); n != maxErrors {
			t.Errorf("%d calls before it is avoided, want %d", n, maxErrors)
		}
		if n := read(6 * time.Second); n < 2 || n > 3 {
			t.Errorf("%d calls to find out whether it is back", n)
		}
		c.mu.Lock()
		c.peers["a"] = holds(im, nil)
		c.mu.Unlock()
		read(5 * time.Second)
		if n := read(time.Second); n < 9 {
			t.Errorf("%d calls after it came back", n)
		}
		synctest.Wait()
	})
}
