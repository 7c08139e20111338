package scheduler

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"graze/chunk"
)

// A fakeDirectory says the same of all chunks.
type fakeDirectory struct {
	keepers, holders []chunk.PeerID

	mu  sync.Mutex
	got map[chunk.ID]bool // guarded by mu
}

func (d *fakeDirectory) Keepers(dst []chunk.PeerID, _ chunk.ID) []chunk.PeerID {
	return append(dst, d.keepers...)
}

func (d *fakeDirectory) Holders(dst []chunk.PeerID, _ chunk.ID) []chunk.PeerID {
	return append(dst, d.holders...)
}

func (d *fakeDirectory) Got(id chunk.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.got == nil {
		d.got = make(map[chunk.ID]bool)
	}
	d.got[id] = true
}

// path returns who was asked, in order, and as what.
func (c *fakeCluster) path() string {
	var list []string
	for _, a := range c.log() {
		list = append(list, fmt.Sprintf("%s:%s", a.to, map[Mode]string{ModeHome: "home", ModeHeld: "held", ModeFind: "find"}[a.mode]))
	}
	return strings.Join(list, " ")
}

// names returns a peer that says who holds what it is asked for.
func names(holders ...chunk.PeerID) fakePeer {
	return says(PeerAnswer{Status: StatusRedirect, Holders: holders})
}

// Before a home asks the origin, it asks those who may know who has the chunk.
func TestFind(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	absent := says(PeerAnswer{Status: StatusAbsent})
	held := holds(im, nil)
	for _, tt := range []struct {
		name    string
		dir     *fakeDirectory
		settled bool
		peers   map[chunk.PeerID]fakePeer
		want    string
		origin  int
	}{
		{"a keeper names a holder", &fakeDirectory{keepers: []chunk.PeerID{"k", "l"}}, true,
			map[chunk.PeerID]fakePeer{"k": names("h"), "l": absent, "h": held}, "k:find h:held", 0},
		{"a keeper has it", &fakeDirectory{keepers: []chunk.PeerID{"k", "l"}}, true,
			map[chunk.PeerID]fakePeer{"k": held, "l": absent}, "k:find", 0},
		{"a keeper knows none", &fakeDirectory{keepers: []chunk.PeerID{"k", "l"}}, true,
			map[chunk.PeerID]fakePeer{"k": absent, "l": absent}, "k:find", 1},
		{"a keeper that may be new knows none", &fakeDirectory{keepers: []chunk.PeerID{"k", "l"}}, false,
			map[chunk.PeerID]fakePeer{"k": absent, "l": names("h"), "h": held}, "k:find l:find h:held", 0},
		{"a keeper is down", &fakeDirectory{keepers: []chunk.PeerID{"k", "l"}}, false,
			map[chunk.PeerID]fakePeer{"k": breaks(), "l": names("h"), "h": held}, "k:find l:find h:held", 0},
		{"this node knows", &fakeDirectory{keepers: []chunk.PeerID{"k", "l"}, holders: []chunk.PeerID{"h"}}, true,
			map[chunk.PeerID]fakePeer{"k": absent, "l": absent, "h": held}, "h:held", 0},
		{"this node is a keeper and knows none", &fakeDirectory{keepers: []chunk.PeerID{"k", "self"}}, true,
			map[chunk.PeerID]fakePeer{"k": absent}, "k:find", 1},
		{"this node is the first keeper and knows none", &fakeDirectory{keepers: []chunk.PeerID{"self", "k"}}, true,
			map[chunk.PeerID]fakePeer{"k": names("h"), "h": held}, "", 1},
		{"this node may be a new keeper", &fakeDirectory{keepers: []chunk.PeerID{"self", "k"}}, false,
			map[chunk.PeerID]fakePeer{"k": names("h"), "h": held}, "k:find h:held", 0},
		{"the named one has it no more", &fakeDirectory{keepers: []chunk.PeerID{"k"}}, true,
			map[chunk.PeerID]fakePeer{"k": names("h"), "h": absent}, "k:find h:held", 1},
		{"strangers and this node are named", &fakeDirectory{keepers: []chunk.PeerID{"k"}}, true,
			map[chunk.PeerID]fakePeer{"k": names("stranger", "self")}, "k:find", 1},
		{"nobody can be asked", &fakeDirectory{}, true, map[chunk.PeerID]fakePeer{}, "", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &fakeCluster{route: Route{Cluster: []chunk.PeerID{"self"}}, peers: tt.peers}
			clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{Directory: tt.dir}, func(t *testing.T, g *rig) {
				if tt.settled {
					g.lock()
					g.state.settling.observe(0, g.state.now)
					g.mu.Unlock()
					pause(t.Context(), settleTime)
				}
				g.mustRead(1, 0, 1)
				if got := c.path(); got != tt.want {
					t.Errorf("asked %q, want %q", got, tt.want)
				}
				if n := len(g.origin.log()); n != tt.origin {
					t.Errorf("%d requests to the origin, want %d", n, tt.origin)
				}
				g.wantIdle()
			})
		})
	}
}

// A node that is said to hold all, and holds nothing, is not believed for long.
func TestWrongHints(t *testing.T) {
	const spans = 40
	dir := &fakeDirectory{keepers: []chunk.PeerID{"k"}}
	c := &fakeCluster{route: Route{Cluster: []chunk.PeerID{"self"}}, peers: map[chunk.PeerID]fakePeer{
		"k": names("liar"), "liar": says(PeerAnswer{Status: StatusAbsent}),
	}}
	clusterBubble(t, c, imageSpec{files: []int64{spans * span}}, Config{Directory: dir}, func(t *testing.T, g *rig) {
		for i := range int64(spans) {
			g.mustRead(1, i*span, 1)
		}
		asked := strings.Count(c.path(), "liar:held")
		if asked < maxWrong/2 || asked > maxWrong {
			t.Errorf("the liar was asked %d times", asked)
		}
		if n := len(g.origin.log()); n != spans {
			t.Errorf("%d requests to the origin", n)
		}
		pause(t.Context(), 2*doubtTime)
		g.lock()
		doubted := slices.ContainsFunc([]chunk.PeerID{"k", "liar"}, func(id chunk.PeerID) bool {
			return g.state.now.Before(g.state.peer(id).doubtUntil)
		})
		g.mu.Unlock()
		if doubted {
			t.Error("it is not believed for ever")
		}
		g.wantIdle()
	})
}

// A holder that is busy is waited for rather than the origin asked.
func TestBusyHolder(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	asked := 0
	c := &fakeCluster{route: Route{Cluster: []chunk.PeerID{"self"}}, peers: map[chunk.PeerID]fakePeer{
		"h": func(ctx context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
			if asked++; asked < 4 {
				return got(&PeerAnswer{Item: All, Part: All, Status: StatusBusy, Wait: 20 * time.Millisecond}, nil)
			}
			return holds(im, nil)(ctx, req, got)
		},
	}}
	clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{Directory: &fakeDirectory{holders: []chunk.PeerID{"h"}}}, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 1)
		if n := len(g.origin.log()); n > 0 || asked != 4 {
			t.Errorf("%d requests to the origin, and %d to the holder", n, asked)
		}
		g.wantIdle()
	})
}

// The directory gets to know what comes from the origin, or from the cluster's
// home: not what a home of the rack gives, which all of the rack get.
func TestDirectoryIsTold(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	for _, tt := range []struct {
		name  string
		route Route
		want  int
	}{
		{"from the origin", Route{Cluster: []chunk.PeerID{"self"}}, 4}, // the whole span
		{"from the cluster's home", Route{Cluster: []chunk.PeerID{"h"}}, 1},
		{"from the rack's home", Route{Rack: []chunk.PeerID{"h"}, Cluster: []chunk.PeerID{"h"}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := new(fakeDirectory)
			c := &fakeCluster{route: tt.route, peers: map[chunk.PeerID]fakePeer{"h": holds(im, nil)}}
			clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{Directory: dir}, func(t *testing.T, g *rig) {
				g.mustRead(1, 0, 1)
				pause(t.Context(), time.Second)
				dir.mu.Lock()
				defer dir.mu.Unlock()
				if len(dir.got) != tt.want {
					t.Errorf("it was told of %d chunks, want %d", len(dir.got), tt.want)
				}
			})
		})
	}
}

// A node that is asked by who may know names the members that it has heard of.
func TestServeFind(t *testing.T) {
	im := newImage(imageSpec{files: []int64{2 * span}})
	req := &PeerRequest{Mode: ModeFind, Items: []PeerItem{{Span: im.spans[0], Parts: []int{0}}, {Span: im.spans[1], Parts: []int{0}}}}
	dir := new(fakeDirectory)
	clusterBubble(t, lone(), imageSpec{files: []int64{2 * span}}, Config{Directory: dir}, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, span)
		dir.holders = []chunk.PeerID{"x", "y", "self", "stranger"}
		before := len(g.origin.log())
		w := &fakeResponder{}
		if err := g.Serve(t.Context(), "x", req, w); err != nil {
			t.Fatal(err)
		}
		w.check(t, req)
		for _, a := range w.answers {
			switch {
			case a.Item == 0 && a.Status == StatusBytes:
			case a.Item == 1 && a.Status == StatusRedirect && slices.Equal(a.Holders, []chunk.PeerID{"y"}):
			default:
				t.Errorf("answer %+v", a)
			}
		}
		dir.holders = nil
		w = &fakeResponder{}
		if err := g.Serve(t.Context(), "x", req, w); err != nil {
			t.Fatal(err)
		}
		if n := w.counts(); n[StatusAbsent] != 1 || n[StatusBytes] != 1 {
			t.Errorf("answers by status %v", n)
		}
		if n := len(g.origin.log()); n != before {
			t.Error("the origin was asked")
		}
	})
}
