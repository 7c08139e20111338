package peer

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
	"graze/wire"
)

func TestFetch(t *testing.T) {
	s := newShelf(t, 1, 4096, 1<<20, 300_000, chunk.MaxSize)
	eachWay(t, s, nil, func(t *testing.T, client, server *node, to Target) {
		refs := []chunk.Ref{s.refs[2], s.refs[0], s.refs[4], s.refs[3], s.refs[1]}
		for range 2 { // the second time on a connection that exists
			got, other, err := client.ask(t.Context(), to, request(refs...))
			if err != nil || len(other) > 0 {
				t.Fatalf("Fetch: %v, %v", err, other)
			}
			if err := equalChunks(s, refs, got); err != nil {
				t.Error(err)
			}
		}
		var total uint64
		for _, r := range refs {
			total += 2 * uint64(r.Size)
		}
		out := client.Stats()
		until(t, "the server has counted both requests", func() bool { return server.Stats().RequestsIn == 2 })
		in := server.Stats()
		if out.BytesIn != total || out.RequestsOut != 2 || out.ChunksIn != 10 || in.BytesOut != total || in.ChunksOut != 10 {
			t.Errorf("counted %+v and %+v, want %d bytes", out.Traffic, in.Traffic, total)
		}
		if d := cmp.Diff(out.Peers[server.ID()], out.Traffic); d != "" {
			t.Errorf("the only peer's traffic is not the total: %s", d)
		}
		links := 0
		for _, n := range in.Links {
			links += n
		}
		if links != 1 {
			t.Errorf("%d connections for requests one after the other", links)
		}
	})
}

// Answers may come in any order and from many goroutines.
func TestFetchAnyOrder(t *testing.T) {
	sizes := make([]int, 300)
	for i := range sizes {
		sizes[i] = 1 + rand.IntN(20_000)
	}
	s := newShelf(t, sizes...)
	h := handlerFunc(func(_ context.Context, _ chunk.PeerID, q *wire.Request, w *Responder) error {
		var wg sync.WaitGroup
		for _, i := range rand.Perm(len(q.Items)) {
			wg.Go(func() {
				sec := s.at[q.Items[i].Span.Parts[0].ID]
				if i%3 > 0 {
					if err := w.Bytes(i, 0, sec); err != nil {
						t.Errorf("Bytes: %v", err)
					}
					return
				}
				p := make([]byte, sec.n)
				sec.f.ReadAt(p, sec.off)
				if err := w.Data(i, 0, p); err != nil {
					t.Errorf("Data: %v", err)
				}
			})
		}
		wg.Wait()
		return nil
	})
	eachWay(t, h, nil, func(t *testing.T, client, server *node, to Target) {
		var wg sync.WaitGroup
		for range 10 { // more than there may be connections
			wg.Go(func() {
				got, _, err := client.ask(t.Context(), to, request(s.refs...))
				if err == nil {
					err = equalChunks(s, s.refs, got)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for way, n := range client.Stats().Links {
			if n > 4 {
				t.Errorf("%d connections %s, the limit is 4", n, Way(way))
			}
		}
	})
}

func TestStatuses(t *testing.T) {
	s := newShelf(t, 10, 20, 30, 40, 50)
	holders := []wire.Holder{{ID: "12D3KooWA", Addr: "10.0.0.1:1"}, {ID: "12D3KooWB", Addr: "10.0.0.2:2"}}
	h := handlerFunc(func(_ context.Context, from chunk.PeerID, q *wire.Request, w *Responder) error {
		for _, err := range []error{
			w.Status(4, 0, wire.Answer{Status: wire.Failed, Reason: string(from)}),
			w.Status(1, 0, wire.Answer{Status: wire.Redirect, Holders: holders}),
			w.Bytes(0, 0, s.at[s.refs[0].ID]),
			w.Status(2, 0, wire.Answer{Status: wire.Busy, Wait: time.Second}),
			w.Status(3, wire.All, wire.Answer{Status: wire.Absent}),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		for name, err := range map[string]error{
			"second answer": w.Status(1, 0, wire.Answer{Status: wire.Absent}),
			"nothing left":  w.Status(wire.All, wire.All, wire.Answer{Status: wire.Absent}),
			"bytes":         w.Status(1, 0, wire.Answer{Status: wire.Bytes, Size: 1}),
			"unknown item":  w.Status(5, 0, wire.Answer{Status: wire.Absent}),
			"unknown part":  w.Data(0, 1, []byte("x")),
			"empty chunk":   w.Data(0, 0, nil),
		} {
			if err == nil {
				t.Errorf("%s: it was sent", name)
			}
		}
		return nil
	})
	eachWay(t, h, nil, func(t *testing.T, client, server *node, to Target) {
		got, other, err := client.ask(t.Context(), to, request(s.refs...))
		if err != nil {
			t.Fatal(err)
		}
		if err := equalChunks(s, s.refs[:1], got); err != nil {
			t.Error(err)
		}
		want := []wire.Answer{
			{Item: 4, Status: wire.Failed, Reason: string(client.ID())},
			{Item: 1, Status: wire.Redirect, Holders: holders},
			{Item: 2, Status: wire.Busy, Wait: time.Second},
			{Item: 3, Part: wire.All, Status: wire.Absent},
		}
		if d := cmp.Diff(want, other); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	})
}

// What the handler leaves is answered for it.
func TestHandlerFails(t *testing.T) {
	s := newShelf(t, 10, 20)
	h := handlerFunc(func(_ context.Context, _ chunk.PeerID, q *wire.Request, w *Responder) error {
		if err := w.Bytes(1, 0, s.at[s.refs[1].ID]); err != nil {
			return err
		}
		return errors.New(strings.Repeat("ä", 1000))
	})
	eachWay(t, h, nil, func(t *testing.T, client, server *node, to Target) {
		got, other, err := client.ask(t.Context(), to, request(s.refs...))
		if err != nil || len(got) != 1 {
			t.Fatalf("%d chunks, %v", len(got), err)
		}
		want := []wire.Answer{{Item: wire.All, Part: wire.All, Status: wire.Failed, Reason: strings.Repeat("ä", 128)}}
		if d := cmp.Diff(want, other); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	})
}

// The server learns all that the request says.
func TestRequestArrives(t *testing.T) {
	s := newShelf(t, 10)
	seen := make(chan *wire.Request, 1)
	h := handlerFunc(func(ctx context.Context, _ chunk.PeerID, q *wire.Request, w *Responder) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the context has no deadline")
		}
		seen <- q
		return nil
	})
	eachWay(t, h, nil, func(t *testing.T, client, server *node, to Target) {
		q := request(s.refs...)
		q.Class, q.Mode, q.Level, q.Epoch, q.Deadline = chunk.Backfill, wire.Home, 1, 7, time.Minute
		q.Via, q.Repositories = []chunk.PeerID{client.ID()}, []string{"registry.example/app"}
		q.Items[0].Span.Blob = chunk.Blob("sha256:" + strings.Repeat("0", 64))
		q.Items[0].Span.Len, q.Items[0].Span.Codec = 10, chunk.Raw
		if _, _, err := client.ask(t.Context(), to, q); err != nil {
			t.Fatal(err)
		}
		got := <-seen
		if d := cmp.Diff(q, got, cmp.Comparer(func(a, b chunk.ID) bool { return a == b })); d != "" {
			t.Errorf("(-sent +got)\n%s", d)
		}
	})
}

// A body that the caller leaves unread is skipped, one that it fails on ends the
// request with the caller's error.
func TestUnreadBodies(t *testing.T) {
	s := newShelf(t, 100_000, 200_000, 300_000)
	eachWay(t, s, nil, func(t *testing.T, client, server *node, to Target) {
		n := 0
		var kept io.Reader
		err := client.Fetch(t.Context(), to, request(s.refs...), func(a *wire.Answer, body io.Reader) error {
			kept = body
			m, err := io.CopyN(io.Discard, body, int64(1000*n))
			n++
			if m != int64(1000*(n-1)) {
				t.Errorf("read %d bytes", m)
			}
			return err
		})
		if err != nil || n != 3 {
			t.Errorf("%d answers, %v", n, err)
		}
		if _, err := kept.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("a body can be read after the call: %v", err)
		}
		mine := errors.New("mine")
		err = client.Fetch(t.Context(), to, request(s.refs...), func(a *wire.Answer, body io.Reader) error { return mine })
		if err != mine {
			t.Errorf("error %v, want the caller's", err)
		}
		if got, _, err := client.ask(t.Context(), to, request(s.refs...)); err != nil || len(got) != 3 {
			t.Errorf("the next request: %d chunks, %v", len(got), err)
		}
	})
}

// The server's context ends when the client gives up, and the client returns at
// once.
func TestCancel(t *testing.T) {
	s := newShelf(t, 10, 20)
	ended := make(chan struct{}, 1)
	h := handlerFunc(func(ctx context.Context, _ chunk.PeerID, q *wire.Request, w *Responder) error {
		// The client may be gone before the chunk has been sent.
		defer func() { ended <- struct{}{} }()
		if err := w.Bytes(0, 0, s.at[s.refs[0].ID]); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	eachWay(t, h, nil, func(t *testing.T, client, server *node, to Target) {
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(t.Context())
		err := client.Fetch(ctx, to, request(s.refs...), func(a *wire.Answer, body io.Reader) error {
			cancel(mine)
			return nil
		})
		if err != mine {
			t.Errorf("error %v, want the cause of the context", err)
		}
		<-ended
		until(t, "the connections are gone", func() bool {
			return server.Stats().Links == [NumWays]int{} && client.Stats().Links == [NumWays]int{}
		})
	})
}

// A request that takes long is kept alive; one whose deadline has passed ends.
func TestLongWait(t *testing.T) {
	s := newShelf(t, 10)
	h := handlerFunc(func(ctx context.Context, _ chunk.PeerID, q *wire.Request, w *Responder) error {
		select {
		case <-time.After(1500 * time.Millisecond):
			return w.Bytes(0, 0, s.at[s.refs[0].ID])
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	patient := func(c *Config) { c.Stall, c.alive = time.Second, 20*time.Millisecond }
	eachWay(t, h, patient, func(t *testing.T, client, server *node, to Target) {
		t.Parallel()
		q := request(s.refs...)
		if got, other, err := client.ask(t.Context(), to, q); err != nil || len(got) != 1 {
			t.Errorf("%d chunks, %v, %v", len(got), other, err)
		}
		q.Deadline = 10 * time.Millisecond
		_, other, err := client.ask(t.Context(), to, q)
		if err != nil || len(other) != 1 || other[0].Status != wire.Failed {
			t.Errorf("past the deadline: %v, %v", other, err)
		}
	})
}
