package peer

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"graze/chunk"
	"graze/wire"
)

// Both ends agree about the bytes of requests that came to their end, and a server
// names those of the others.
func TestAbandoned(t *testing.T) {
	s := newShelf(t, 3_000_000, 3_000_000, 3_000_000)
	enough := errors.New("enough")
	for _, tt := range []struct {
		name string
		stop func(answers int, body io.Reader) error // of the client's, for each answer
	}{
		{"nothing", func(_ int, body io.Reader) error {
			_, err := io.Copy(io.Discard, body)
			return err
		}},
		{"at once", func(int, io.Reader) error { return enough }},
		{"within a body", func(n int, body io.Reader) error {
			if n == 1 {
				io.CopyN(io.Discard, body, 1000)
				return enough
			}
			_, err := io.Copy(io.Discard, body)
			return err
		}},
		{"when all may have come", func(int, io.Reader) error {
			<-time.After(100 * time.Millisecond)
			return enough
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachWay(t, s, nil, func(t *testing.T, client, server *node, to Target) {
				if to.Addr == "" && tt.name == "when all may have come" {
					t.Skip("how a libp2p stream ends says nothing of what was sent before")
				}
				q := request(s.refs...)
				answers := 0
				err := client.Fetch(t.Context(), to, q, func(_ *wire.Answer, body io.Reader) error {
					answers++
					return tt.stop(answers-1, body)
				})
				whole := err == nil
				if !whole && err != enough {
					t.Fatal(err)
				}
				client.stop()
				total := int64(0)
				for _, r := range s.refs {
					total += int64(r.Size)
				}
				until(t, "the server has served it", func() bool { return server.Stats().RequestsIn == 1 && server.Stats().Serving == 0 })
				server.stop() // which waits for what it does
				in, out := client.Stats(), server.Stats()
				switch {
				case whole && (out.AbandonedOut != 0 || int64(out.BytesOut) != total || in.BytesIn != out.BytesOut):
					t.Errorf("%d bytes in, %d out, %d of them abandoned; want all of %d", in.BytesIn, out.BytesOut, out.AbandonedOut, total)
				case !whole && out.AbandonedOut != out.BytesOut:
					t.Errorf("%d bytes out, %d of them abandoned", out.BytesOut, out.AbandonedOut)
				case in.BytesIn > out.BytesOut:
					t.Errorf("%d bytes have come, more than the %d that were sent", in.BytesIn, out.BytesOut)
				}
			})
		})
	}
}

// A request after another one tells that the first was taken.
func TestTakenByTheNext(t *testing.T) {
	s := newShelf(t, 200_000)
	eachWay(t, handlerFunc(func(ctx context.Context, id chunk.PeerID, q *wire.Request, w *Responder) error {
		return s.ServeChunks(ctx, id, q, w)
	}), nil, func(t *testing.T, client, server *node, to Target) {
		for range 3 {
			if _, _, err := client.ask(t.Context(), to, request(s.refs...)); err != nil {
				t.Fatal(err)
			}
		}
		client.stop()
		until(t, "the link is gone", func() bool {
			st := server.Stats()
			return st.Links[Encrypted]+st.Links[Plain]+st.Links[Stream] == 0
		})
		server.stop()
		if st := server.Stats(); st.AbandonedOut != 0 || st.BytesOut != 600_000 {
			t.Errorf("%d bytes out, %d of them abandoned", st.BytesOut, st.AbandonedOut)
		}
	})
}
