package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"graze/chunk"
	"graze/wire"
)

// accept serves the bulk listener until it is closed.
func (h *Host) accept(ctx context.Context) error {
	for {
		tcp, err := h.listener.AcceptTCP()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			var ne net.Error
			if !errors.As(err, &ne) || !ne.Timeout() {
				// Out of descriptors, most likely: those in use will be freed.
				h.reject(h.listener.Addr().String(), err)
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
			continue
		}
		select {
		case h.handshakes <- struct{}{}:
		default:
			h.tally.change(func(s *Stats) { s.Rejected[KindLimit]++ })
			tcp.Close()
			continue
		}
		h.tasks.Go(func() { h.greet(ctx, tcp) })
	}
}

// greet makes a link of a new connection and serves it.
func (h *Host) greet(ctx context.Context, tcp *net.TCPConn) {
	l, err := h.shake(ctx, tcp)
	<-h.handshakes
	if err != nil {
		tcp.Close()
		if ctx.Err() == nil {
			h.reject(tcp.RemoteAddr().String(), err)
		}
		return
	}
	h.serve(ctx, l)
}

func (h *Host) shake(ctx context.Context, tcp *net.TCPConn) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Handshake)
	defer cancel()
	defer context.AfterFunc(ctx, func() { tcp.Close() })()
	if err := tcp.SetKeepAliveConfig(keepAlive); err != nil {
		return nil, err
	}
	if h.cfg.Plain {
		return h.acceptPlain(ctx, tcp)
	}
	return h.acceptSecure(ctx, tcp)
}

// serveStream serves a libp2p stream of the chunk protocol.
func (h *Host) serveStream(ctx context.Context, s network.Stream) {
	from := chunk.PeerID(s.Conn().RemotePeer().String())
	h.serve(ctx, newLink(streamTransport{s}, Stream, from))
}

// serve answers the requests on l until either end closes it.
func (h *Host) serve(ctx context.Context, l *link) {
	if err := h.admit(l); err != nil {
		h.violation(l.peer, KindLimit, err)
		l.Close()
		return
	}
	defer h.dismiss(l)
	l.limitUnsent()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	s := session{host: h, link: l, requests: make(chan []byte)}
	defer s.settle()
	h.tasks.Go(func() {
		defer cancel()
		defer close(s.requests)
		err := s.read(ctx)
		if kind := kindOf(err); kind == KindProtocol || kind == KindStalled {
			h.violation(l.peer, kind, err)
		}
	})
	for header := range s.requests {
		if err := s.answer(ctx, header); err != nil {
			if errors.Is(err, ErrProtocol) {
				h.violation(l.peer, KindProtocol, err)
			}
			cancel()
		}
	}
}

// A session is a link from the server's side. One goroutine reads, so that the
// end of the connection is noticed while the other serves a request.
type session struct {
	host     *Host
	link     *link
	requests chan []byte
	busy     atomic.Bool // a request is being served

	last  int64 // body bytes of the last request, until the client is known to have them
	taken bool  // the client has ended the connection in a way that says so; set before requests is closed
}

// settle counts the bytes of the last request as abandoned, unless the client has
// taken them.
func (s *session) settle() {
	if s.last > 0 && !s.taken {
		s.host.tally.add(s.link.peer, func(t *Traffic) { t.AbandonedOut += uint64(s.last) })
	}
}

// read hands over the headers of requests as they come.
func (s *session) read(ctx context.Context) error {
	cfg := &s.host.cfg
	for {
		// A client closes what it has not used for Idle, this end a bit later.
		s.link.SetReadDeadline(time.Now().Add(2 * cfg.Idle))
		if _, err := s.link.r.Peek(1); err != nil {
			if timedOut(err) && s.busy.Load() {
				continue
			}
			s.taken = s.link.drained(err)
			return nil
		}
		s.link.SetReadDeadline(time.Now().Add(cfg.Stall))
		header, err := s.link.readFrame(wire.MaxRequestHeader)
		switch {
		case errors.Is(err, wire.ErrFrame):
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		case err == io.EOF:
			return nil
		case errors.Is(err, ErrProtocol):
			return err
		case err != nil:
			return ioError(err)
		}
		select {
		case s.requests <- header:
		case <-ctx.Done():
			return nil
		}
	}
}

// answer serves one request. Its error is one after which the link is of no use.
func (s *session) answer(ctx context.Context, header []byte) error {
	s.busy.Store(true)
	defer s.busy.Store(false)
	s.last = 0 // the client asks for more: it has what it was sent
	h, from := s.host, s.link.peer
	q, err := wire.DecodeRequest(header)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	limit := h.cfg.Request
	if q.Deadline > 0 {
		limit = min(limit, q.Deadline)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w := newResponder(ctx, h, s.link, q)
	err = h.handle(ctx, from, q, w)
	err = w.finish(err)
	if err == nil {
		s.last = w.bytes
	}
	h.tally.add(from, func(t *Traffic) {
		if err != nil {
			t.AbandonedOut += uint64(w.bytes)
		}
		t.RequestsIn++
		t.ChunksOut += uint64(w.sent)
		t.BytesOut += uint64(w.bytes)
	})
	return err
}

// handle gives a request to the handler, unless it goes round in a circle or is
// one too many.
func (h *Host) handle(ctx context.Context, from chunk.PeerID, q *wire.Request, w *Responder) error {
	if slices.Contains(q.Via, h.ID()) {
		err := fmt.Errorf("%w: the request has come back to %s", ErrProtocol, h.ID())
		h.violation(from, KindProtocol, err)
		return err
	}
	lane := laneOf(q)
	if !h.gate.enter(from, lane) {
		h.tally.add(from, func(t *Traffic) { t.BusyOut++ })
		return w.Status(wire.All, wire.All, wire.Answer{Status: wire.Busy, Wait: h.cfg.Limits.Retry})
	}
	defer h.gate.leave(from, lane)
	return h.handler.ServeChunks(ctx, from, q, w)
}
