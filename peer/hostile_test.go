package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	p2ppeer "github.com/libp2p/go-libp2p/core/peer"

	"graze/chunk"
	"graze/wire"
)

// A tap passes TCP connections on and keeps what crosses it.
type tap struct {
	net.Listener
	mu       sync.Mutex
	up, down bytes.Buffer // guarded by mu; from and to the client
}

func newTap(t *testing.T, to string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{Listener: l}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			context.AfterFunc(ctx, func() { in.Close(); out.Close() })
			wg.Go(func() { p.pass(out, in, &p.up) })
			wg.Go(func() { p.pass(in, out, &p.down) })
		}
	})
	t.Cleanup(func() { l.Close(); cancel(); wg.Wait() })
	return p
}

func (p *tap) pass(to, from net.Conn, log *bytes.Buffer) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		log.Write(buf[:n])
		p.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *tap) captured() (up, down []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Clone(p.up.Bytes()), bytes.Clone(p.down.Bytes())
}

// names returns all that must not be seen of a chunk.
func (s *shelf) names(t *testing.T, r chunk.Ref) [][]byte {
	t.Helper()
	sum := r.ID.Sum()
	p := make([]byte, 32)
	sec := s.at[r.ID]
	if _, err := sec.f.ReadAt(p, sec.off); err != nil {
		t.Fatal(err)
	}
	return [][]byte{sum[:], []byte(r.ID.String()), p}
}

func wantNone(t *testing.T, where string, captured []byte, names [][]byte) {
	t.Helper()
	for _, name := range names {
		if bytes.Contains(captured, name) {
			t.Errorf("%s: %q was seen", where, name)
		}
	}
}

// Without the key, a node gets no byte and no name, and is counted.
func TestWithoutKey(t *testing.T) {
	s := newShelf(t, 100_000)
	for _, plain := range []bool{false, true} {
		t.Run(map[bool]string{false: "encrypted", true: "plain"}[plain], func(t *testing.T) {
			set := func(c *Config) { c.Plain, c.knock = plain, time.Second }
			served := handlerFunc(func(context.Context, chunk.PeerID, *wire.Request, *Responder) error {
				t.Error("a request was served")
				return nil
			})
			server := start(t, NewClusterKey(), served, set)
			client := start(t, NewClusterKey(), nobody, set)
			client.knows(server)
			tap := newTap(t, server.BulkAddr())
			for _, to := range []Target{{server.ID(), tap.Addr().String()}, {ID: server.ID()}} {
				got, other, err := client.ask(t.Context(), to, request(s.refs...))
				var fe *FetchError
				if !errors.As(err, &fe) || len(got)+len(other) > 0 {
					t.Errorf("Fetch from %v: %d chunks, %d statuses, %v", to, len(got), len(other), err)
				}
				if to.Addr != "" && !plain {
					wantKind(t, err, KindKey)
				} else {
					wantKind(t, err, KindUnreachable)
				}
			}
			up, down := tap.captured()
			wantNone(t, "sent", up, s.names(t, s.refs[0]))
			wantNone(t, "received", down, s.names(t, s.refs[0]))
			knocks := uint64(2) // at both listeners
			if plain {
				knocks = 1 // the ticket is asked for by libp2p, which does not try again at once
			}
			until(t, "the server has counted it", func() bool { return server.Stats().Rejected[KindKey] == knocks })
			if st := server.Stats(); st.RequestsIn > 0 || len(st.Peers) > 0 {
				t.Errorf("a stranger counts as a peer: %+v", st)
			}
		})
	}
}

// Whoever speaks to the listener without the start of a proof gets not one byte
// of plain, and nothing but a handshake of TLS.
func TestStrangers(t *testing.T) {
	forged := append([]byte(plainMagic), make([]byte, 16+32)...)
	tests := []struct {
		name  string
		plain bool
		send  string
		kind  Kind
	}{
		{"HTTP to encrypted", false, "GET / HTTP/1.1\r\n\r\n", KindProtocol},
		{"plain to encrypted", false, string(forged), KindMode},
		{"HTTP to plain", true, "GET / HTTP/1.1\r\n\r\n", KindMode},
		{"forged ticket", true, string(forged), KindKey},
		{"half a hello", true, plainMagic + "half", KindBroken},
		{"nothing", true, "", KindBroken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rejected := make(chan error, 1)
			server := start(t, NewClusterKey(), nobody, func(c *Config) {
				c.Plain = tt.plain
				c.Trace.Rejected = func(_ string, err error) { rejected <- err }
			})
			conn, err := net.Dial("tcp", server.BulkAddr())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, tt.send)
			conn.(*net.TCPConn).CloseWrite()
			got, _ := io.ReadAll(conn)
			if len(got) > 7 { // a TLS alert, or the note for clients that encrypt
				t.Errorf("the listener said %q", got)
			}
			wantKind(t, <-rejected, tt.kind)
			if n := server.Stats().Rejected[tt.kind]; n != 1 {
				t.Errorf("%d rejected, want 1", n)
			}
		})
	}
}

// On the encrypted way, nothing of a chunk can be seen, not even its name; in
// plain its bytes can, which shows that the tap works.
func TestWhatCrosses(t *testing.T) {
	s := newShelf(t, 100_000)
	for _, plain := range []bool{false, true} {
		t.Run(map[bool]string{false: "encrypted", true: "plain"}[plain], func(t *testing.T) {
			key := NewClusterKey()
			set := func(c *Config) { c.Plain = plain }
			server, client := start(t, key, s, set), start(t, key, nobody, set)
			client.knows(server)
			tap := newTap(t, server.BulkAddr())
			got, _, err := client.ask(t.Context(), Target{server.ID(), tap.Addr().String()}, request(s.refs...))
			if err != nil || equalChunks(s, s.refs, got) != nil {
				t.Fatalf("%d chunks, %v", len(got), err)
			}
			up, down := tap.captured()
			names := s.names(t, s.refs[0])
			if plain {
				if !bytes.Contains(down, names[2]) {
					t.Error("the bytes did not pass the tap")
				}
			} else {
				wantNone(t, "sent", up, names)
				wantNone(t, "received", down, names)
			}
			wantNone(t, "sent", up, [][]byte{key[:], []byte(key.Text())})
		})
	}
}

// In plain, what was recorded is of no use: neither the start of a connection
// nor a request on another one.
func TestReplay(t *testing.T) {
	s := newShelf(t, 1000)
	key := NewClusterKey()
	set := func(c *Config) { c.Plain = true }
	server, client := start(t, key, s, set), start(t, key, nobody, set)
	client.knows(server)
	tap := newTap(t, server.BulkAddr())
	if _, _, err := client.ask(t.Context(), Target{server.ID(), tap.Addr().String()}, request(s.refs...)); err != nil {
		t.Fatal(err)
	}
	up, _ := tap.captured()
	until(t, "the server has counted the request", func() bool { return server.Stats().RequestsIn == 1 })

	t.Run("whole connection", func(t *testing.T) {
		conn, err := net.Dial("tcp", server.BulkAddr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write(up)
		conn.(*net.TCPConn).CloseWrite()
		if got, _ := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("the server answered a replay: %q", got)
		}
		until(t, "it is counted", func() bool { return server.Stats().Rejected[KindKey] == 1 })
	})
	recorded := up[len(plainMagic)+16+32:] // behind the hello
	for _, tt := range []struct {
		name string
		send func(l *link, own []byte) []byte
	}{
		{"request of another connection", func(*link, []byte) []byte { return recorded }},
		{"request twice", func(l *link, own []byte) []byte {
			sealed := append(own, l.seal.out.next(own[4:])...)
			return append(bytes.Clone(sealed), sealed...)
		}},
		{"bit flipped", func(l *link, own []byte) []byte {
			sealed := append(own, l.seal.out.next(own[4:])...)
			sealed[10] ^= 1
			return sealed
		}},
		{"no MAC", func(_ *link, own []byte) []byte { return append(own, make([]byte, 32)...) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := server.Stats().Violations[KindProtocol]
			l, err := client.connect(t.Context(), server.target(), false)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var own bytes.Buffer
			if err := wire.WriteRequest(&own, request(s.refs...)); err != nil {
				t.Fatal(err)
			}
			l.Write(tt.send(l, own.Bytes()))
			l.SetReadDeadline(time.Now().Add(10 * time.Second))
			io.Copy(io.Discard, l)
			until(t, "it is counted", func() bool { return server.Stats().Violations[KindProtocol] == before+1 })
		})
	}
}

// Behind the address of a node there may be another one, with the key or
// without.
func TestWrongIdentity(t *testing.T) {
	s := newShelf(t, 1000)
	for _, plain := range []bool{false, true} {
		t.Run(map[bool]string{false: "encrypted", true: "plain"}[plain], func(t *testing.T) {
			key := NewClusterKey()
			set := func(c *Config) { c.Plain = plain }
			real, client := start(t, key, s, set), start(t, key, nobody, set)
			impostor := start(t, key, s, set)
			client.knows(real)
			_, _, err := client.ask(t.Context(), Target{real.ID(), impostor.BulkAddr()}, request(s.refs...))
			wantKind(t, err, KindIdentity)
			if n := impostor.Stats().RequestsIn; n > 0 {
				t.Errorf("the impostor was asked %d times", n)
			}
			if n := client.Stats().Peers[real.ID()].Errors[KindIdentity]; n != 1 {
				t.Errorf("counted %d times", n)
			}
		})
	}
}

func TestModesDiffer(t *testing.T) {
	s := newShelf(t, 1000)
	for _, plain := range []bool{false, true} {
		t.Run(map[bool]string{false: "client encrypts", true: "client is plain"}[plain], func(t *testing.T) {
			key := NewClusterKey()
			server := start(t, key, s, func(c *Config) { c.Plain = !plain })
			client := start(t, key, nobody, func(c *Config) { c.Plain = plain })
			client.knows(server)
			_, _, err := client.ask(t.Context(), server.target(), request(s.refs...))
			wantKind(t, err, KindMode)
			if err != nil && !strings.Contains(err.Error(), "encrypt") {
				t.Errorf("the error does not say what is wrong: %v", err)
			}
			until(t, "the server has counted it", func() bool { return server.Stats().Rejected[KindMode] == 1 })
		})
	}
}

// lie runs a server that proves who it is and then does as script says, and
// returns what a client gets from it that asks for two chunks.
func lie(t *testing.T, script func(l *link, book []chunk.Ref)) (got int, err error) {
	t.Helper()
	s := newShelf(t, 1000, 300_000)
	key := NewClusterKey()
	liar := start(t, key, nobody, nil)
	client := start(t, key, nobody, func(c *Config) {
		c.Stall, c.MinRate, c.alive = 200*time.Millisecond, 1<<20, 50*time.Millisecond
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		l, err := liar.acceptSecure(t.Context(), conn.(*net.TCPConn))
		if err != nil {
			t.Errorf("the client was not let in: %v", err)
			return
		}
		l.out = nil
		l.transport.(interface{ NetConn() net.Conn }).NetConn().(*batch).hold = false
		if _, err := l.readFrame(wire.MaxRequestHeader); err != nil {
			t.Errorf("no request: %v", err)
			return
		}
		script(l, s.refs)
	}()
	chunks, _, err := client.ask(t.Context(), Target{liar.ID(), listener.Addr().String()}, request(s.refs...))
	listener.Close()
	<-done
	var fe *FetchError
	if !errors.As(err, &fe) || fe.Peer != liar.ID() || fe.Chunks != len(chunks) || !strings.Contains(err.Error(), string(liar.ID())) {
		t.Errorf("the error does not name the peer and the %d chunks: %v", len(chunks), err)
	}
	if n := client.Stats().Peers[liar.ID()].Errors[kindOf(err)]; n != 1 {
		t.Errorf("counted %d times, want 1", n)
	}
	return len(chunks), err
}

func TestLyingServer(t *testing.T) {
	answer := func(l *link, item, part int, status wire.Status, size int) {
		wire.WriteAnswer(l, &wire.Answer{Item: item, Part: part, Status: status, Size: int32(size)})
	}
	good := func(l *link, refs []chunk.Ref) { // a chunk as it should be, of newShelf's bytes
		p := shelfBytes(0, int(refs[0].Size))
		answer(l, 0, 0, wire.Bytes, len(p))
		l.Write(p)
	}
	// gone waits until the client has given up.
	gone := func(l *link) { io.Copy(io.Discard, l) }
	tests := []struct {
		name   string
		script func(l *link, refs []chunk.Ref)
		kind   Kind
		chunks int
	}{
		{"item not asked for", func(l *link, _ []chunk.Ref) { answer(l, 2, 0, wire.Absent, 0) }, KindProtocol, 0},
		{"part not asked for", func(l *link, _ []chunk.Ref) { answer(l, 0, 1, wire.Absent, 0) }, KindProtocol, 0},
		{"size of the body", func(l *link, refs []chunk.Ref) { answer(l, 0, 0, wire.Bytes, int(refs[0].Size)+1) }, KindProtocol, 0},
		{"two answers", func(l *link, refs []chunk.Ref) { good(l, refs); good(l, refs) }, KindProtocol, 1},
		{"one answer too many for all", func(l *link, refs []chunk.Ref) {
			answer(l, wire.All, wire.All, wire.Absent, 0)
			answer(l, 1, wire.All, wire.Absent, 0)
		}, KindProtocol, 0},
		{"early end", func(l *link, refs []chunk.Ref) {
			good(l, refs)
			answer(l, wire.All, wire.All, wire.End, 0)
			gone(l)
		}, KindProtocol, 1},
		{"no frame", func(l *link, _ []chunk.Ref) { io.WriteString(l, "HTTP/1.1 200 OK\r\n\r\n"); gone(l) }, KindProtocol, 0},
		{"huge header", func(l *link, _ []chunk.Ref) {
			l.Write(binary.BigEndian.AppendUint32(nil, 1<<31))
			for _, err := l.Write(make([]byte, 1<<20)); err == nil; {
				_, err = l.Write(make([]byte, 1<<20))
			}
		}, KindProtocol, 0},
		{"body too long", func(l *link, refs []chunk.Ref) {
			good(l, refs)
			l.Write(bytes.Repeat([]byte{0xff}, 100))
			gone(l)
		}, KindProtocol, 1},
		{"only signs of life", func(l *link, _ []chunk.Ref) {
			for err := error(nil); err == nil; {
				err = wire.WriteAnswer(l, &wire.Answer{Item: wire.All, Part: wire.All, Status: wire.Alive})
			}
		}, KindProtocol, 0},
		{"silence", func(l *link, _ []chunk.Ref) { gone(l) }, KindStalled, 0},
		{"half a header", func(l *link, _ []chunk.Ref) { l.Write([]byte{0, 0, 0, 9, 1}); gone(l) }, KindStalled, 0},
		{"stalled body", func(l *link, refs []chunk.Ref) {
			good(l, refs)
			answer(l, 1, 0, wire.Bytes, int(refs[1].Size))
			l.Write(make([]byte, 1000))
			gone(l)
		}, KindStalled, 1},
		{"body that drips", func(l *link, refs []chunk.Ref) {
			answer(l, 1, 0, wire.Bytes, int(refs[1].Size))
			for err := error(nil); err == nil; <-time.After(20 * time.Millisecond) {
				_, err = l.Write(make([]byte, 10))
			}
		}, KindStalled, 0},
		{"cut body", func(l *link, refs []chunk.Ref) {
			good(l, refs)
			answer(l, 1, 0, wire.Bytes, int(refs[1].Size))
			l.Write(make([]byte, 1000))
		}, KindBroken, 1},
		{"hang-up", func(*link, []chunk.Ref) {}, KindBroken, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := lie(t, tt.script)
			wantKind(t, err, tt.kind)
			if got != tt.chunks {
				t.Errorf("%d chunks, want %d", got, tt.chunks)
			}
		})
	}
}

// Nothing that a member sends makes the server do more than disconnect it.
func TestLyingClient(t *testing.T) {
	s := newShelf(t, 1000)
	good := func() []byte {
		var buf bytes.Buffer
		if err := wire.WriteRequest(&buf, request(s.refs...)); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}()
	tests := []struct {
		name string
		send []byte
		kind Kind
	}{
		{"no frame", []byte("GET / HTTP/1.1\r\n\r\n"), KindProtocol},
		{"huge header", binary.BigEndian.AppendUint32(nil, 1<<31), KindProtocol},
		{"no request", []byte{0, 0, 0, 1, 0xff}, KindProtocol},
		{"half a request", good[:len(good)-1], KindStalled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachWay(t, s, func(c *Config) { c.Stall = 200 * time.Millisecond }, func(t *testing.T, client, server *node, to Target) {
				l, err := client.connect(t.Context(), to, false)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				send := bytes.Clone(tt.send)
				if l.seal != nil && tt.kind == KindProtocol {
					send = append(send, l.seal.out.next(send[4:])...)
				}
				l.Write(send)
				l.flush()
				l.SetReadDeadline(time.Now().Add(10 * time.Second))
				if n, _ := io.Copy(io.Discard, l); n > 0 {
					t.Errorf("the server answered with %d bytes", n)
				}
				until(t, "it is counted", func() bool {
					return server.Stats().Peers[client.ID()].Violations[tt.kind] == 1
				})
				if got, _, err := client.ask(t.Context(), to, request(s.refs...)); err != nil || len(got) != 1 {
					t.Errorf("the next request: %d chunks, %v", len(got), err)
				}
			})
		})
	}
}

// A request that has been here before is not served.
func TestLoop(t *testing.T) {
	s := newShelf(t, 1000)
	eachWay(t, s, nil, func(t *testing.T, client, server *node, to Target) {
		q := request(s.refs...)
		q.Via = []chunk.PeerID{server.ID(), client.ID()}
		_, other, err := client.ask(t.Context(), to, q)
		if err != nil || len(other) != 1 || other[0].Status != wire.Failed {
			t.Errorf("%v, %v", other, err)
		}
		if n := server.Stats().Violations[KindProtocol]; n != 1 {
			t.Errorf("counted %d times", n)
		}
	})
}

// A client that does not read is cut, and holds nobody up.
func TestSlowReader(t *testing.T) {
	s := newShelf(t, chunk.MaxSize, chunk.MaxSize-1, chunk.MaxSize-2, chunk.MaxSize-3, 1000)
	eachWay(t, s, func(c *Config) { c.Stall, c.MinRate = 300*time.Millisecond, 1<<30 }, func(t *testing.T, client, server *node, to Target) {
		l, err := client.connect(t.Context(), to, false)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var buf bytes.Buffer
		if err := wire.WriteRequest(&buf, request(s.refs[:4]...)); err != nil {
			t.Fatal(err)
		}
		if err := l.writeFrame(buf.Bytes()); err != nil {
			t.Fatal(err)
		}
		l.flush()
		until(t, "it is cut", func() bool { return server.Stats().Peers[client.ID()].Cut == 1 })
		if got, _, err := client.ask(t.Context(), to, request(s.refs[4])); err != nil || len(got) != 1 {
			t.Errorf("the next request: %d chunks, %v", len(got), err)
		}
	})
}

// An unparsable id is an error, not a panic.
func TestBadTarget(t *testing.T) {
	s := newShelf(t, 1)
	client := start(t, NewClusterKey(), nobody, nil)
	_, _, err := client.ask(t.Context(), Target{"no such id", "127.0.0.1:1"}, request(s.refs...))
	wantKind(t, err, KindUnreachable)
	if _, err := p2ppeer.Decode(string(client.ID())); err != nil {
		t.Errorf("the node's own id: %v", err)
	}
	if err := client.Fetch(t.Context(), Target{}, &wire.Request{}, nil); err == nil {
		t.Error("an empty request was sent")
	}
}
