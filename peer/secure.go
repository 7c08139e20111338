package peer

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	p2ppeer "github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"

	"graze/chunk"
)

// alpn names the protocol, and its version, in the TLS handshake.
const alpn = "graze-bulk/1"

// dialSecure turns tcp into an encrypted link to the node to.
func (h *Host) dialSecure(ctx context.Context, tcp *net.TCPConn, to p2ppeer.ID) (*link, error) {
	out := &batch{TCPConn: tcp}
	conf, _ := h.tls.ConfigForPeer(to)
	conn := tls.Client(out, tlsConfig(conf))
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, tlsError(err)
	}
	client, server, err := h.proofs(conn, h.cfg.Identity.id, to)
	if err != nil {
		return nil, err
	}
	setDeadline(ctx, tcp)
	if _, err := conn.Write(client); err != nil {
		return nil, ioError(err)
	}
	got := make([]byte, len(server))
	if _, err := io.ReadFull(conn, got); err != nil {
		return nil, fmt.Errorf("%w: it ended the connection when asked for one, so that its key may be another: %w", ErrKey, err)
	}
	if !hmac.Equal(got, server) {
		return nil, ErrKey
	}
	return secureLink(conn, out, to), nil
}

// acceptSecure turns tcp into an encrypted link from the node that called.
func (h *Host) acceptSecure(ctx context.Context, tcp *net.TCPConn) (*link, error) {
	out := &batch{TCPConn: tcp}
	conf, keys := h.tls.ConfigForPeer("")
	conn := tls.Server(out, tlsConfig(conf))
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, tlsError(err)
	}
	from, err := peerOf(keys)
	if err != nil {
		return nil, err
	}
	client, server, err := h.proofs(conn, from, h.cfg.Identity.id)
	if err != nil {
		return nil, err
	}
	setDeadline(ctx, tcp)
	got := make([]byte, len(client))
	if _, err := io.ReadFull(conn, got); err != nil {
		return nil, fmt.Errorf("%w before %s has proven that it has the cluster key", ioError(err), from)
	}
	if !hmac.Equal(got, client) {
		return nil, fmt.Errorf("%w from %s", ErrKey, from)
	}
	if _, err := conn.Write(server); err != nil {
		return nil, ioError(err)
	}
	return secureLink(conn, out, from), nil
}

func secureLink(conn *tls.Conn, out *batch, peer p2ppeer.ID) *link {
	out.SetDeadline(time.Time{})
	out.startHolding()
	l := newLink(conn, Encrypted, chunk.PeerID(peer.String()))
	l.out = out
	return l
}

func tlsConfig(conf *tls.Config) *tls.Config {
	conf.NextProtos = []string{alpn}
	conf.DynamicRecordSizingDisabled = true // bodies are large
	return conf
}

// peerOf returns the node whose key the handshake has found.
func peerOf(keys <-chan crypto.PubKey) (p2ppeer.ID, error) {
	key := <-keys // filled before the handshake ended
	if key == nil {
		return "", fmt.Errorf("%w: no certificate", ErrIdentity)
	}
	return p2ppeer.IDFromPublicKey(key)
}

// proofs returns what the client and the server must send to show that they have
// the cluster key. They hold for this session, these two nodes and these roles
// alone, so they are of no use to whoever receives them.
func (h *Host) proofs(conn *tls.Conn, clientID, serverID p2ppeer.ID) (client, server []byte, err error) {
	state := conn.ConnectionState()
	session, err := state.ExportKeyingMaterial("EXPORTER-graze-cluster-key", nil, sha256.Size)
	if err != nil {
		return nil, nil, err
	}
	prove := func(role string) []byte {
		mac := hmac.New(sha256.New, h.proofKey[:])
		mac.Write([]byte(role))
		mac.Write(session)
		// The ids of ed25519 keys are all of one length.
		mac.Write([]byte(clientID))
		mac.Write([]byte(serverID))
		return mac.Sum(nil)
	}
	return prove("client"), prove("server"), nil
}

// tlsError sorts the errors of a handshake.
func tlsError(err error) error {
	var mismatch sec.ErrPeerIDMismatch
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &mismatch):
		return fmt.Errorf("%w: %s in place of %s", ErrIdentity, mismatch.Actual, mismatch.Expected)
	case errors.As(err, &record) && string(record.RecordHeader[:len(plainMagic)]) == plainMagic:
		return fmt.Errorf("%w: one end speaks plain and the other encrypts", ErrMode)
	case errors.Is(err, context.DeadlineExceeded) || timedOut(err):
		return fmt.Errorf("%w in the TLS handshake: %w", ErrStalled, err)
	case errors.Is(err, io.EOF) || errors.As(err, new(*net.OpError)):
		return fmt.Errorf("%w in the TLS handshake: %w", ErrBroken, err)
	}
	return fmt.Errorf("%w: TLS handshake: %w", ErrProtocol, err)
}

// setDeadline gives tcp the deadline of ctx.
func setDeadline(ctx context.Context, tcp *net.TCPConn) {
	if t, ok := ctx.Deadline(); ok {
		tcp.SetDeadline(t)
	}
}
