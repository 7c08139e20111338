package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"graze/chunk"
	"graze/wire"
)

func TestMain(m *testing.M) {
	if os.Getenv(benchEnv) != "" {
		benchServer()
		return
	}
	goleak.VerifyTestMain(m)
}

// handlerFunc is a Handler.
type handlerFunc func(ctx context.Context, from chunk.PeerID, q *wire.Request, w *Responder) error

func (f handlerFunc) ServeChunks(ctx context.Context, from chunk.PeerID, q *wire.Request, w *Responder) error {
	return f(ctx, from, q, w)
}

// A shelf is a file of chunks, and a Handler that serves them.
type shelf struct {
	file *os.File
	at   map[chunk.ID]section
	refs []chunk.Ref
}

type section struct {
	f      *os.File
	off, n int64
}

func (s section) File() *os.File { return s.f }
func (s section) Offset() int64  { return s.off }
func (s section) Len() int64     { return s.n }

// newShelf makes chunks of the given sizes with bytes that differ.
func newShelf(t testing.TB, sizes ...int) *shelf {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "chunks"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	s := &shelf{file: f, at: make(map[chunk.ID]section)}
	off := int64(0)
	for i, n := range sizes {
		p := shelfBytes(i, n)
		if _, err := f.Write(p); err != nil {
			t.Fatal(err)
		}
		ref := chunk.BLAKE3.Name(p).Ref()
		s.refs = append(s.refs, ref)
		s.at[ref.ID] = section{f, off, int64(n)}
		off += int64(n)
	}
	return s
}

// shelfBytes returns the bytes of the chunk number i of a shelf.
func shelfBytes(i, n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(p)
	return p
}

// request asks for chunks, one per item.
func request(refs ...chunk.Ref) *wire.Request {
	q := &wire.Request{Mode: wire.Held}
	for _, r := range refs {
		q.Items = append(q.Items, wire.Item{Span: chunk.Span{Parts: []chunk.Part{{Ref: r}}}})
	}
	return q
}

func (s *shelf) ServeChunks(_ context.Context, _ chunk.PeerID, q *wire.Request, w *Responder) error {
	for i, it := range q.Items {
		for p, part := range it.Span.Parts {
			if !it.Wants(p) {
				continue
			}
			sec, ok := s.at[part.ID]
			var err error
			if ok {
				err = w.Bytes(i, p, sec)
			} else {
				err = w.Status(i, p, wire.Answer{Status: wire.Absent})
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// A node is a Host that runs.
type node struct {
	*Host
	t    testing.TB
	stop func()
}

// start runs a Host on 127.0.0.1 until the test ends or stop is called.
func start(t testing.TB, key ClusterKey, h Handler, edit func(*Config)) *node {
	t.Helper()
	id, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Identity: id, Key: key, Bulk: "127.0.0.1:0", P2P: []string{"/ip4/127.0.0.1/tcp/0"}}
	if edit != nil {
		edit(&cfg)
	}
	host, err := New(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- host.Run(ctx) }()
	n := &node{Host: host, t: t}
	n.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run does not return")
		}
	})
	t.Cleanup(n.stop)
	return n
}

// knows tells n where the libp2p host of the other node is.
func (n *node) knows(other *node) {
	n.t.Helper()
	if err := n.Learn(other.ID(), other.Addrs()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) target() Target { return Target{n.ID(), n.BulkAddr()} }

// ask fetches and verifies, and returns the chunks and the other statuses.
func (n *node) ask(ctx context.Context, to Target, q *wire.Request) (chunks map[chunk.ID][]byte, other []wire.Answer, err error) {
	chunks = make(map[chunk.ID][]byte)
	err = n.Fetch(ctx, to, q, func(a *wire.Answer, body io.Reader) error {
		if a.Status != wire.Bytes {
			other = append(other, *a)
			return nil
		}
		p, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		ref := q.Items[a.Item].Span.Parts[a.Part].Ref
		if _, err := ref.Verify(p); err != nil {
			return err
		}
		chunks[ref.ID] = p
		return nil
	})
	return chunks, other, err
}

var ways = []struct {
	name   string
	way    Way
	target func(n *node) Target
}{
	{"encrypted", Encrypted, (*node).target},
	{"plain", Plain, (*node).target},
	{"stream", Stream, func(n *node) Target { return Target{ID: n.ID()} }},
}

// eachWay runs f with two nodes that talk in each of the ways.
func eachWay(t *testing.T, h Handler, edit func(*Config), f func(t *testing.T, client, server *node, to Target)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			key := NewClusterKey()
			set := func(c *Config) {
				c.Plain = w.way == Plain
				if edit != nil {
					edit(c)
				}
			}
			server := start(t, key, h, set)
			client := start(t, key, nobody, set)
			client.knows(server)
			f(t, client, server, w.target(server))
		})
	}
}

var nobody = handlerFunc(func(context.Context, chunk.PeerID, *wire.Request, *Responder) error {
	return errors.New("nobody asks this node")
})

// until waits for a condition that other goroutines bring about.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("it never came to this: %s", what)
		case <-tick.C:
		}
	}
}

func wantKind(t *testing.T, err error, kind Kind) {
	t.Helper()
	if err == nil || kindOf(err) != kind {
		t.Errorf("error %v is of kind %s, want %s", err, kindOf(err), kind)
	}
}

func equalChunks(s *shelf, refs []chunk.Ref, got map[chunk.ID][]byte) error {
	for _, r := range refs {
		want := make([]byte, r.Size)
		sec := s.at[r.ID]
		if _, err := sec.f.ReadAt(want, sec.off); err != nil {
			return err
		}
		if !bytes.Equal(got[r.ID], want) {
			return fmt.Errorf("chunk %s is missing or wrong", r)
		}
	}
	if len(got) != len(slices.CompactFunc(slices.Clone(refs), func(a, b chunk.Ref) bool { return a == b })) {
		return fmt.Errorf("%d chunks, want %d", len(got), len(refs))
	}
	return nil
}
