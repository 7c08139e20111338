package peer

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	p2ppeer "github.com/libp2p/go-libp2p/core/peer"

	"graze/chunk"
)

// plainMagic is what both ends of a plain connection send first. It is no record
// of TLS, so that a client that encrypts can tell.
const plainMagic = "GRZ1"

// A plain connection starts with a ticket that the client has got over libp2p,
// where both ends know each other and nobody listens: a number that says which
// it is, and a secret that the keys of the connection come from. A ticket is for
// one connection, of one client, to the listener of the Host that made it.
type ticket struct {
	number [16]byte
	secret [32]byte
}

// Answers to the wish for a ticket; a ticket follows ticketGiven.
const (
	ticketRefused = 0 // this node encrypts
	ticketGiven   = 1
	ticketFull    = 2
)

const (
	ticketLife     = 10 * time.Second
	maxTickets     = 4096
	maxPeerTickets = 64
)

// tickets are those that were given out and not used yet.
type tickets struct {
	mu   sync.Mutex
	open map[[16]byte]openTicket // guarded by mu
	peer map[p2ppeer.ID]int      // guarded by mu: how many of them are whose
}

type openTicket struct {
	secret  [32]byte
	peer    p2ppeer.ID
	expires time.Time
}

// give makes a ticket for peer, unless there are too many.
func (t *tickets) give(peer p2ppeer.ID, now time.Time) (ticket, bool) {
	var k ticket
	rand.Read(k.number[:])
	rand.Read(k.secret[:])
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) >= maxTickets || t.peer[peer] >= maxPeerTickets {
		for number, o := range t.open {
			if now.After(o.expires) {
				t.removeLocked(number, o.peer)
			}
		}
	}
	if len(t.open) >= maxTickets || t.peer[peer] >= maxPeerTickets {
		return ticket{}, false
	}
	t.open[k.number] = openTicket{k.secret, peer, now.Add(ticketLife)}
	t.peer[peer]++
	return k, true
}

// take returns the ticket of that number, once.
func (t *tickets) take(number [16]byte, now time.Time) (openTicket, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, ok := t.open[number]
	if !ok {
		return o, false
	}
	t.removeLocked(number, o.peer)
	return o, !now.After(o.expires)
}

func (t *tickets) removeLocked(number [16]byte, peer p2ppeer.ID) {
	delete(t.open, number)
	if t.peer[peer]--; t.peer[peer] == 0 {
		delete(t.peer, peer)
	}
}

// serveTicket answers a stream of the ticket protocol.
func (h *Host) serveTicket(s network.Stream) {
	defer s.Close()
	s.SetDeadline(time.Now().Add(h.cfg.Handshake))
	from := s.Conn().RemotePeer()
	if !h.cfg.Plain {
		h.reject(s.Conn().RemoteMultiaddr().String(), fmt.Errorf("%w: %s asks for plain bytes, this node encrypts", ErrMode, from))
		s.Write([]byte{ticketRefused})
		return
	}
	k, ok := h.tickets.give(from, time.Now())
	if !ok {
		s.Write([]byte{ticketFull})
		return
	}
	msg := append([]byte{ticketGiven}, k.number[:]...)
	s.Write(append(msg, k.secret[:]...))
}

// askTicket gets a ticket from the node to.
func (h *Host) askTicket(ctx context.Context, to p2ppeer.ID) (k ticket, err error) {
	s, err := h.p2p.NewStream(ctx, to, protoTicket)
	if err != nil {
		return k, fmt.Errorf("%w for a ticket by libp2p: %w", ErrUnreachable, err)
	}
	defer s.Reset()
	if t, ok := ctx.Deadline(); ok {
		s.SetDeadline(t)
	}
	if err := s.CloseWrite(); err != nil {
		return k, ioError(err)
	}
	var code [1]byte
	if _, err := io.ReadFull(s, code[:]); err != nil {
		return k, ioError(err)
	}
	switch code[0] {
	case ticketRefused:
		return k, fmt.Errorf("%w: it encrypts, this node is set to plain", ErrMode)
	case ticketFull:
		return k, fmt.Errorf("%w: it gives no more tickets now", ErrUnreachable)
	case ticketGiven:
	default:
		return k, fmt.Errorf("%w: answer %d to the wish for a ticket", ErrProtocol, code[0])
	}
	if _, err := io.ReadFull(s, k.number[:]); err != nil {
		return k, ioError(err)
	}
	if _, err := io.ReadFull(s, k.secret[:]); err != nil {
		return k, ioError(err)
	}
	return k, nil
}

// dialPlain turns tcp into a plain link to the node to.
func dialPlain(ctx context.Context, tcp *net.TCPConn, k ticket, self, to p2ppeer.ID) (*link, error) {
	setDeadline(ctx, tcp)
	client, server := k.proofs(self, to)
	hello := append([]byte(plainMagic), k.number[:]...)
	if _, err := tcp.Write(append(hello, client...)); err != nil {
		return nil, ioError(err)
	}
	got := make([]byte, len(plainMagic)+len(server))
	if _, err := io.ReadFull(tcp, got); err != nil {
		return nil, fmt.Errorf("%w: it does not take the ticket: %w", ErrIdentity, err)
	}
	if string(got[:len(plainMagic)]) != plainMagic || !hmac.Equal(got[len(plainMagic):], server) {
		return nil, fmt.Errorf("%w: the listener does not know the ticket", ErrIdentity)
	}
	return plainLink(tcp, k.secret, to, true), nil
}

// acceptPlain turns tcp into a plain link from the node that has the ticket.
func (h *Host) acceptPlain(ctx context.Context, tcp *net.TCPConn) (*link, error) {
	setDeadline(ctx, tcp)
	var magic [len(plainMagic)]byte
	if _, err := io.ReadFull(tcp, magic[:]); err != nil {
		return nil, ioError(err)
	}
	if string(magic[:]) != plainMagic {
		// To a client that starts TLS, this says why. What it has sent must be
		// read, or closing the connection would take the answer back.
		tcp.Write([]byte(plainMagic + "\n"))
		tcp.CloseWrite()
		io.CopyN(io.Discard, tcp, 64<<10)
		return nil, fmt.Errorf("%w: the client does not speak plain", ErrMode)
	}
	var number [16]byte
	var got [sha256.Size]byte
	_, err := io.ReadFull(tcp, number[:])
	if err == nil {
		_, err = io.ReadFull(tcp, got[:])
	}
	if err != nil {
		return nil, ioError(err)
	}
	o, ok := h.tickets.take(number, time.Now())
	if !ok {
		return nil, fmt.Errorf("%w: unknown or used ticket", ErrKey)
	}
	k := ticket{number, o.secret}
	client, server := k.proofs(o.peer, h.cfg.Identity.id)
	if !hmac.Equal(got[:], client) {
		return nil, fmt.Errorf("%w: the client does not have the ticket's secret", ErrKey)
	}
	if _, err := tcp.Write(append([]byte(plainMagic), server...)); err != nil {
		return nil, ioError(err)
	}
	return plainLink(tcp, k.secret, o.peer, false), nil
}

// proofs returns what client and server send to show that they have the secret.
func (k *ticket) proofs(clientID, serverID p2ppeer.ID) (client, server []byte) {
	prove := func(role string) []byte {
		key := derive(k.secret[:], "ticket "+role)
		mac := hmac.New(sha256.New, key[:])
		mac.Write(k.number[:])
		mac.Write([]byte(clientID))
		mac.Write([]byte(serverID))
		return mac.Sum(nil)
	}
	return prove("client"), prove("server")
}

func plainLink(tcp *net.TCPConn, secret [32]byte, peer p2ppeer.ID, client bool) *link {
	tcp.SetDeadline(time.Time{})
	requests := newCounter(derive(secret[:], "requests"))
	answers := newCounter(derive(secret[:], "answers"))
	l := newLink(tcp, Plain, chunk.PeerID(peer.String()))
	l.tcp = tcp
	if client {
		l.seal = &seal{in: answers, out: requests}
	} else {
		l.seal = &seal{in: requests, out: answers}
	}
	return l
}
