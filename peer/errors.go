package peer

import (
	"context"
	"errors"
	"fmt"
	"net"

	"graze/chunk"
)

// What can go wrong with a peer. Test for them with errors.Is.
var (
	// ErrUnreachable: no connection could be made.
	ErrUnreachable = errors.New("unreachable")
	// ErrKey: the other end does not have the cluster key.
	ErrKey = errors.New("no proof of the cluster key")
	// ErrIdentity: the other end is not the node that it should be.
	ErrIdentity = errors.New("another node")
	// ErrMode: one end wants bulk bytes encrypted and the other in plain.
	ErrMode = errors.New("the nodes disagree about encryption")
	// ErrProtocol: the other end does not keep to the protocol.
	ErrProtocol = errors.New("protocol violated")
	// ErrStalled: the other end stopped, or became too slow.
	ErrStalled = errors.New("stalled")
	// ErrBroken: the connection ended in the middle of a request.
	ErrBroken = errors.New("connection broken")
	// ErrClosed: the Host doesn't run.
	ErrClosed = errors.New("host is closed")
)

// A Kind says in one word what went wrong; it is what is counted.
type Kind uint8

// The kinds of errors.
const (
	KindOther Kind = iota
	KindUnreachable
	KindKey
	KindIdentity
	KindMode
	KindProtocol
	KindStalled
	KindBroken
	KindCanceled
	KindLimit // the other end is over a limit
	NumKinds  = iota
)

var kindNames = [NumKinds]string{
	"other", "unreachable", "key", "identity", "mode", "protocol", "stalled", "broken", "canceled", "limit",
}

// String returns the kind's name.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// kinds are in the order in which they are looked for: what a node found out
// goes before what ended the connection for it.
var kinds = []struct {
	err  error
	kind Kind
}{
	{ErrMode, KindMode}, {ErrIdentity, KindIdentity}, {ErrKey, KindKey}, {ErrProtocol, KindProtocol},
	{ErrUnreachable, KindUnreachable}, {ErrStalled, KindStalled}, {ErrBroken, KindBroken},
	{context.Canceled, KindCanceled}, {context.DeadlineExceeded, KindCanceled},
}

// kindOf returns the kind of err.
func kindOf(err error) Kind {
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.kind
		}
	}
	return KindOther
}

// A FetchError reports a request that ended before all parts were answered. The
// chunks whose bodies had been given to the caller whole are good to use.
type FetchError struct {
	Peer   chunk.PeerID
	Chunks int   // whole bodies that came before
	Bytes  int64 // body bytes that came in all
	Err    error
}

// Error names the peer, the cause and what had come.
func (e *FetchError) Error() string {
	return fmt.Sprintf("fetch from peer %s: %v (after %d chunks, %d bytes)", e.Peer, e.Err, e.Chunks, e.Bytes)
}

// Unwrap returns the cause.
func (e *FetchError) Unwrap() error { return e.Err }

// Kind returns the kind of the cause.
func (e *FetchError) Kind() Kind { return kindOf(e.Err) }

// timedOut reports whether err is that of a deadline of a connection.
func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// ioError wraps the error of a connection in ErrStalled or ErrBroken.
func ioError(err error) error {
	if timedOut(err) {
		return fmt.Errorf("%w: %w", ErrStalled, err)
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}
