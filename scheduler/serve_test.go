package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// A fakeResponder notes answers.
type fakeResponder struct {
	mu      sync.Mutex
	answers []PeerAnswer
	bodies  [][]byte
	upload  time.Duration // how long each body takes
}

func (w *fakeResponder) Section(item, part int, s Section) error {
	p := make([]byte, s.Len())
	if _, err := s.File().ReadAt(p, s.Offset()); err != nil {
		return err
	}
	return w.Bytes(item, part, p)
}

func (w *fakeResponder) Bytes(item, part int, p []byte) error {
	if err := pause(context.Background(), w.upload); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers = append(w.answers, PeerAnswer{Item: item, Part: part, Status: StatusBytes, Size: int32(len(p))})
	w.bodies = append(w.bodies, bytes.Clone(p))
	return nil
}

func (w *fakeResponder) Answer(a *PeerAnswer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers = append(w.answers, *a)
	w.bodies = append(w.bodies, nil)
	return nil
}

// counts returns how many answers there were of each status.
func (w *fakeResponder) counts() map[Status]int {
	n := make(map[Status]int)
	for _, a := range w.answers {
		n[a.Status]++
	}
	return n
}

// check fails the test for bytes that are not those of the chunk.
func (w *fakeResponder) check(t *testing.T, req *PeerRequest) {
	t.Helper()
	for i, a := range w.answers {
		if a.Status == StatusBytes {
			if _, err := req.Items[a.Item].Span.Parts[a.Part].Verify(w.bodies[i]); err != nil {
				t.Errorf("item %d, part %d: %v", a.Item, a.Part, err)
			}
		}
	}
}

// lone is a cluster in which this node is home of all, and x asks.
func lone() *fakeCluster {
	return &fakeCluster{
		route: Route{Cluster: []chunk.PeerID{"self"}}, share: 1,
		peers: map[chunk.PeerID]fakePeer{"x": nil, "y": nil, "z": nil},
	}
}

func TestServe(t *testing.T) {
	im := newImage(imageSpec{files: []int64{4 * span}})
	items := []PeerItem{{Span: im.spans[0]}, {Span: im.spans[2], Parts: []int{1, 3}}}
	for _, tt := range []struct {
		name   string
		req    PeerRequest
		held   bool
		broken error // of the origin
		want   map[Status]int
	}{
		{"held, and is", PeerRequest{Mode: ModeHeld, Items: items}, true, nil, map[Status]int{StatusBytes: 6}},
		{"held, and is not", PeerRequest{Mode: ModeHeld, Items: items}, false, nil, map[Status]int{StatusAbsent: 6}},
		{"rack home", PeerRequest{Mode: ModeHome, Items: items}, false, nil, map[Status]int{StatusBytes: 6}},
		{"cluster home", PeerRequest{Mode: ModeHome, Level: 1, Items: items}, false, nil, map[Status]int{StatusBytes: 6}},
		{"passed on by this node", PeerRequest{Mode: ModeHome, Via: []chunk.PeerID{"y", "self"}, Items: items}, true, nil, map[Status]int{StatusAbsent: 1}},
		{"passed on too often", PeerRequest{Mode: ModeHome, Via: []chunk.PeerID{"y", "z", "y", "z"}, Items: items}, true, nil, map[Status]int{StatusAbsent: 1}},
		{"the origin refuses", PeerRequest{Mode: ModeHome, Level: 1, Items: items}, false, chunk.ErrDenied, map[Status]int{StatusFailed: 6}},
		{"the origin is away", PeerRequest{Mode: ModeHome, Level: 1, Items: items}, false, chunk.ErrUnavailable, map[Status]int{StatusBusy: 6}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clusterBubble(t, lone(), imageSpec{files: []int64{4 * span}}, Config{}, func(t *testing.T, g *rig) {
				if tt.held {
					g.mustRead(1, 0, 4*span)
				}
				if tt.broken != nil {
					g.origin.fault = failing(1e6, tt.broken)
				}
				w := &fakeResponder{}
				if err := g.Serve(t.Context(), "x", &tt.req, w); err != nil {
					t.Fatal(err)
				}
				if got := w.counts(); fmt.Sprint(got) != fmt.Sprint(tt.want) {
					t.Errorf("answers by status %v, want %v", got, tt.want)
				}
				w.check(t, &tt.req)
				pause(t.Context(), time.Minute)
				g.wantIdle()
			})
		})
	}
}

func TestServeRefusesMalformedRequests(t *testing.T) {
	im := newImage(imageSpec{files: []int64{4 * span}})
	item := func(edit func(*PeerItem)) []PeerItem {
		it := PeerItem{Span: im.spans[0]}
		it.Span.Parts = slices.Clone(it.Span.Parts)
		edit(&it)
		return []PeerItem{it}
	}
	same := func(*PeerItem) {}
	for _, tt := range []struct {
		name string
		req  PeerRequest
	}{
		{"nothing is wanted", PeerRequest{Mode: ModeHome}},
		{"unknown class", PeerRequest{Class: 9, Mode: ModeHome, Items: item(same)}},
		{"unknown mode", PeerRequest{Mode: 7, Items: item(same)}},
		{"the origin's level", PeerRequest{Mode: ModeHome, Level: 2, Items: item(same)}},
		{"no parts", PeerRequest{Mode: ModeHome, Items: item(func(it *PeerItem) { it.Span.Parts = nil })}},
		{"a part that is none", PeerRequest{Mode: ModeHome, Items: item(func(it *PeerItem) { it.Parts = []int{4} })}},
		{"a negative part", PeerRequest{Mode: ModeHome, Items: item(func(it *PeerItem) { it.Parts = []int{-1} })}},
		{"a part twice", PeerRequest{Mode: ModeHome, Items: item(func(it *PeerItem) { it.Parts = []int{1, 1} })}},
		{"a huge chunk", PeerRequest{Mode: ModeHome, Items: item(func(it *PeerItem) { it.Span.Parts[1].Size = chunk.MaxSize + 1 })}},
		{"a window without parts", PeerRequest{Mode: ModeHome, Items: item(func(it *PeerItem) { it.Span.Window = &chunk.Slice{Len: 4} })}},
		{"too many parts", PeerRequest{Mode: ModeHome, Items: slices.Repeat(item(same), 300)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clusterBubble(t, lone(), imageSpec{files: []int64{4 * span}}, Config{}, func(t *testing.T, g *rig) {
				w := &fakeResponder{}
				if err := g.Serve(t.Context(), "x", &tt.req, w); !errors.Is(err, errBadRequest) {
					t.Errorf("error %v", err)
				}
				if len(w.answers) > 0 {
					t.Errorf("answers %v", w.answers)
				}
			})
		})
	}
}

// Many nodes that ask the cluster home at the same time cost the origin one
// request.
func TestServeIsOneFetchForAll(t *testing.T) {
	clusterBubble(t, lone(), imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Second
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				req := &PeerRequest{Mode: ModeHome, Level: uint8(i % 2), Items: []PeerItem{{Span: g.im.spans[0], Parts: []int{i % 4}}}}
				w := &fakeResponder{}
				if err := g.Serve(t.Context(), chunk.PeerID(fmt.Sprint("n", i)), req, w); err != nil {
					t.Error(err)
				}
				if w.counts()[StatusBytes] != 1 {
					t.Errorf("answers %v", w.answers)
				}
			})
		}
		wg.Wait()
		g.wantRequests([2]int64{0, span})
		if n := g.Stats().Cluster.Coalesced; n != 26 {
			t.Errorf("%d joined, want 26", n)
		}
		g.wantIdle()
	})
}

// A node that leaves, or whose time is up, does not stop the fetch: others are
// about to ask.
func TestServeDeadline(t *testing.T) {
	clusterBubble(t, lone(), imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Second
		req := &PeerRequest{Mode: ModeHome, Level: 1, Deadline: 100 * time.Millisecond, Items: []PeerItem{{Span: g.im.spans[0]}}}
		if err := g.Serve(t.Context(), "x", req, &fakeResponder{}); err == nil {
			t.Error("no error")
		}
		pause(t.Context(), 2*time.Second)
		g.mustRead(1, 0, span)
		g.wantRequests([2]int64{0, span})
		g.wantIdle()
	})
}

// A level 0 request that meets this node's own level 0 search must not wait for
// it: that would close the circle of two nodes that take each other for the
// rack home.
func TestLowLevelIsNotWaitedFor(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	c := &fakeCluster{route: Route{Rack: []chunk.PeerID{"a"}, Cluster: []chunk.PeerID{"b"}}}
	var s *Scheduler
	c.peers = map[chunk.PeerID]fakePeer{
		// a takes this node for the rack home, as this node takes a.
		"a": func(ctx context.Context, req *PeerRequest, got func(*PeerAnswer, io.Reader) error) error {
			w := &fakeResponder{}
			if err := s.Serve(ctx, "a", &PeerRequest{Mode: ModeHome, Items: req.Items}, w); err != nil {
				return err
			}
			for i := range w.answers {
				if err := got(&w.answers[i], bytes.NewReader(w.bodies[i])); err != nil {
					return err
				}
			}
			return nil
		},
		"b": holds(im, nil),
	}
	clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		s = g.Scheduler
		begin := time.Now()
		g.mustRead(1, 0, span)
		if d := time.Since(begin); d > time.Second {
			t.Errorf("the read took %v", d)
		}
		g.wantIdle()
	})
}

// Where a chunk is said to be by a node that lies does not matter to others.
func TestLieAboutTheSpan(t *testing.T) {
	clusterBubble(t, lone(), imageSpec{files: []int64{4 * span}}, Config{}, func(t *testing.T, g *rig) {
		g.origin.latency = time.Second
		lie := g.im.spans[0]
		lie.Off += span
		lie.Start += span
		go g.Serve(t.Context(), "x", &PeerRequest{Mode: ModeHome, Level: 1, Items: []PeerItem{{Span: lie}}}, &fakeResponder{})
		synctest.Wait()
		g.mustRead(1, 0, span)
	})
}

// A sectionStore keeps chunks in a file too.
type sectionStore struct {
	*fakeStore
	dir string
}

type fakeSection struct {
	f *os.File
	n int64
}

func (s fakeSection) File() *os.File { return s.f }
func (s fakeSection) Offset() int64  { return 0 }
func (s fakeSection) Len() int64     { return s.n }
func (s fakeSection) Close() error   { return s.f.Close() }

func (s sectionStore) Section(id chunk.ID) (Section, error) {
	s.mu.Lock()
	p, ok := s.chunks[id]
	s.mu.Unlock()
	if !ok {
		return nil, chunk.ErrNotFound
	}
	name := filepath.Join(s.dir, fmt.Sprintf("%x", id.String()))
	if err := os.WriteFile(name, p, 0o600); err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	return fakeSection{f, int64(len(p))}, err
}

// What the store has in files is sent from there.
func TestServeSections(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	st := sectionStore{&fakeStore{chunks: make(map[chunk.ID][]byte)}, t.TempDir()}
	for i, ref := range im.refs {
		st.chunks[ref.ID] = im.content[i*im.size:][:ref.Size]
	}
	c := lone()
	s, err := New(st, &fakeOrigin{}, fakeDecoder{im}, Config{Cluster: c, Peers: c})
	if err != nil {
		t.Fatal(err)
	}
	req := &PeerRequest{Mode: ModeHeld, Items: []PeerItem{{Span: im.spans[0]}}}
	w := &fakeResponder{}
	if err := s.Serve(t.Context(), "x", req, w); err != nil {
		t.Fatal(err)
	}
	if n := w.counts()[StatusBytes]; n != 4 {
		t.Errorf("answers %v", w.answers)
	}
	w.check(t, req)
}

// A node that sends as much as it may names those who have the chunk.
func TestRedirectWhenBusy(t *testing.T) {
	cfg := Config{Uploads: 16 << 10} // four chunks
	clusterBubble(t, lone(), imageSpec{files: []int64{4 * span}}, cfg, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 4*span)
		if err := g.Serve(t.Context(), "y", g.homeRequest(0), &fakeResponder{}); err != nil {
			t.Fatal(err)
		}
		done := g.serveSlowly("z", 1, time.Second)
		w := &fakeResponder{}
		if err := g.Serve(t.Context(), "x", g.homeRequest(0), w); err != nil {
			t.Fatal(err)
		}
		for _, a := range w.answers {
			if a.Status != StatusRedirect || !slices.Equal(a.Holders, []chunk.PeerID{"y"}) || a.Wait <= 0 {
				t.Errorf("answer %+v", a)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		w = &fakeResponder{}
		if err := g.Serve(t.Context(), "x", g.homeRequest(0), w); err != nil || w.counts()[StatusBytes] != 4 {
			t.Errorf("answers %v once it has time, error %v", w.answers, err)
		}
	})
}

// homeRequest asks for a span as its home.
func (g *rig) homeRequest(span int) *PeerRequest {
	return &PeerRequest{Mode: ModeHome, Items: []PeerItem{{Span: g.im.spans[span]}}}
}

// serveSlowly begins to serve a request by bodies that take d each.
func (g *rig) serveSlowly(from chunk.PeerID, span int, d time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() { done <- g.Serve(g.t.Context(), from, g.homeRequest(span), &fakeResponder{upload: d}) }()
	synctest.Wait()
	return done
}

// Chunks that nobody else has wait until it is their turn to be sent, but not for
// ever.
func TestTurns(t *testing.T) {
	for _, tt := range []struct {
		name string
		slow time.Duration // each of the four bodies that are before
		want map[Status]int
	}{
		{"sent one after the other", maxTurn / 4, map[Status]int{StatusBytes: 4}},
		{"too late", 2 * maxTurn, map[Status]int{StatusBusy: 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Uploads: 16 << 10} // four chunks
			clusterBubble(t, lone(), imageSpec{files: []int64{4 * span}}, cfg, func(t *testing.T, g *rig) {
				g.mustRead(1, 0, 4*span)
				done := g.serveSlowly("z", 1, tt.slow)
				begin := time.Now()
				w := &fakeResponder{}
				if err := g.Serve(t.Context(), "x", g.homeRequest(2), w); err != nil {
					t.Fatal(err)
				}
				if got := w.counts(); !maps.Equal(got, tt.want) || time.Since(begin) == 0 {
					t.Errorf("answers by status %v after %v, want %v", got, time.Since(begin), tt.want)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A chunk that a node is being sent is not sent to it for another request too, nor
// when that request was made before the chunk was there. A reader who asks again
// later gets it again.
func TestNotSentTwice(t *testing.T) {
	const body = justNow / 8
	cfg := Config{Uploads: 16 << 10} // four chunks
	clusterBubble(t, lone(), imageSpec{files: []int64{4 * span}}, cfg, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 4*span)
		ask := func(class chunk.Class, want Status) {
			t.Helper()
			w := &fakeResponder{}
			req := g.homeRequest(0)
			req.Class = class
			if err := g.Serve(t.Context(), "x", req, w); err != nil {
				t.Fatal(err)
			}
			if got := w.counts(); got[want] != 4 {
				t.Errorf("%s: answers by status %v, want %v of 4", class, got, want)
			}
		}
		done := g.serveSlowly("x", 0, body)
		ask(chunk.Demand, StatusBusy)
		ask(chunk.Readahead, StatusBusy)
		if err := <-done; err != nil {
			t.Error(err)
		}
		ask(chunk.Readahead, StatusBusy)
		time.Sleep(time.Millisecond)
		ask(chunk.Demand, StatusBytes)
	})

	// A reader does not wait for what was asked for as a prefetch.
	clusterBubble(t, lone(), imageSpec{files: []int64{4 * span}}, Config{}, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 4*span)
		req := g.homeRequest(0)
		req.Class = chunk.Prefetch
		done := make(chan error, 1)
		go func() { done <- g.Serve(g.t.Context(), "x", req, &fakeResponder{upload: body}) }()
		synctest.Wait()
		w := &fakeResponder{}
		if err := g.Serve(t.Context(), "x", g.homeRequest(0), w); err != nil {
			t.Fatal(err)
		}
		if got := w.counts(); got[StatusBytes] != 4 {
			t.Errorf("answers by status %v to a reader", got)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	// A request that waits in line meanwhile.
	clusterBubble(t, lone(), imageSpec{files: []int64{4 * span}}, cfg, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 4*span)
		before := g.serveSlowly("z", 1, body/4)
		waits := []<-chan error{g.serveSlowly("x", 0, body/4), before}
		w := &fakeResponder{}
		if err := g.Serve(t.Context(), "x", g.homeRequest(0), w); err != nil {
			t.Fatal(err)
		}
		for _, done := range waits {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := w.counts(); got[StatusBusy] != 4 {
			t.Errorf("answers by status %v, though all was sent for the request before", got)
		}
	})
}

// What a node is asked whether it holds it, and is just being sent, is waited for,
// but not for ever.
func TestHeldWaitsForBodies(t *testing.T) {
	for _, tt := range []struct {
		name string
		body time.Duration // how long each of the four takes
		want map[Status]int
	}{
		{"comes", maxTurn / 8, map[Status]int{StatusBytes: 4}},
		{"does not come", 2 * maxTurn, map[Status]int{StatusAbsent: 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			im := newImage(imageSpec{files: []int64{span}})
			c := &fakeCluster{
				route: Route{Cluster: []chunk.PeerID{"a", "self"}}, share: 1,
				peers: map[chunk.PeerID]fakePeer{"a": drips(im, tt.body), "x": nil},
			}
			clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{Uploads: 16 << 10}, func(t *testing.T, g *rig) {
				go g.mustRead(1, 0, span)
				time.Sleep(100 * time.Millisecond)
				w := &fakeResponder{}
				req := &PeerRequest{Mode: ModeHeld, Items: []PeerItem{{Span: g.im.spans[0]}}}
				if err := g.Serve(t.Context(), "x", req, w); err != nil {
					t.Fatal(err)
				}
				if got := w.counts(); !maps.Equal(got, tt.want) {
					t.Errorf("answers by status %v, want %v", got, tt.want)
				}
				time.Sleep(4 * tt.body)
			})
		})
	}
}

// What is evicted before it can be sent comes once more, and is sent whether or not
// the store keeps it then.
func TestEvictedBeforeSent(t *testing.T) {
	clusterBubble(t, lone(), imageSpec{files: []int64{4 * span}}, Config{Uploads: 16 << 10}, func(t *testing.T, g *rig) {
		g.mustRead(1, 0, 4*span)
		before := g.serveSlowly("z", 1, maxTurn/8) // x has to wait
		w := &fakeResponder{}
		done := make(chan error, 1)
		go func() { done <- g.Serve(t.Context(), "x", g.homeRequest(0), w) }()
		synctest.Wait()
		g.store.mu.Lock()
		g.store.full = true
		clear(g.store.chunks)
		g.store.mu.Unlock()
		for _, done := range []<-chan error{before, done} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if got := w.counts(); got[StatusBytes] != 4 || len(got) != 1 {
			t.Errorf("answers by status %v", got)
		}
		w.check(t, g.homeRequest(0))
	})
}

// A chunk that comes just when it is not waited for any more keeps nobody up who has
// it for others too.
func TestChunkAtTheLastMoment(t *testing.T) {
	im := newImage(imageSpec{files: []int64{span}})
	c := &fakeCluster{
		route: Route{Cluster: []chunk.PeerID{"a", "self"}}, share: 1,
		peers: map[chunk.PeerID]fakePeer{"a": drips(im, maxTurn), "x": nil},
	}
	clusterBubble(t, c, imageSpec{files: []int64{span}}, Config{}, func(t *testing.T, g *rig) {
		go g.mustRead(1, 0, span)
		time.Sleep(100 * time.Millisecond)
		sv := &serving{
			s: g.Scheduler, from: "x", w: &fakeResponder{},
			req:    &PeerRequest{Mode: ModeHeld, Items: []PeerItem{{Span: g.im.spans[0]}}},
			misses: []servedMiss{{miss: miss{span: g.im.spans[0]}}},
		}
		if lacking, err := sv.join(t.Context()); err != nil || len(lacking) > 0 {
			t.Fatalf("%d chunks are not waited for, %v", len(lacking), err)
		}
		q := sv.q
		if err := sv.stopWaiting(); err != nil {
			t.Fatal(err)
		}
		q.notify(&sv.misses[0].miss, nil, nil)
		time.Sleep(4 * maxTurn)
	})
}
