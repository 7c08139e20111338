package peer

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"graze/chunk"
	"graze/wire"
)

// A Way is how frames travel between two nodes.
type Way uint8

// The ways.
const (
	Encrypted Way = iota // TLS to the bulk listener
	Plain                // TCP to the bulk listener
	Stream               // a libp2p stream
	NumWays   = iota
)

// String returns the way's name.
func (w Way) String() string {
	switch w {
	case Encrypted:
		return "encrypted"
	case Plain:
		return "plain"
	case Stream:
		return "stream"
	}
	return fmt.Sprintf("way(%d)", uint8(w))
}

// A transport is the part of net.Conn that a link needs.
type transport interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// streamTransport is a libp2p stream whose Close ends both directions at once,
// as that of a TCP connection does.
type streamTransport struct{ network.Stream }

func (s streamTransport) Close() error { return s.Reset() }

// A link is a connection to a node that has proven who it is. One request at a
// time is on it. Reading and writing may happen at the same time, each by one
// goroutine.
type link struct {
	transport
	r     *bufio.Reader
	tcp   *net.TCPConn // in plain: what bodies are sent to by sendfile
	out   *batch       // encrypted: what gathers records
	seal  *seal        // in plain: nil elsewhere, where the way protects frames
	peer  chunk.PeerID
	way   Way
	lower bool   // client: it receives by a short buffer
	addr  string // client: where it was dialled; the bulk address of the peer

	idleSince time.Time // client: guarded by pool.mu
	ended     func()    // called once, by the first Close
	once      sync.Once
}

// Close ends both directions at once. TLS is not told: its farewell would wait
// for a client that does not read.
func (l *link) Close() error {
	l.once.Do(l.ended)
	if l.out != nil {
		return l.out.TCPConn.Close()
	}
	return l.transport.Close()
}

// readBuffer is small: it is for headers, and what is in it of a body must be
// copied once more.
const readBuffer = 4 << 10

func newLink(t transport, way Way, peer chunk.PeerID) *link {
	return &link{transport: t, r: bufio.NewReaderSize(t, readBuffer), way: way, peer: peer, ended: func() {}}
}

// readFrame reads a header and, in plain, checks its MAC before anything looks
// at it.
func (l *link) readFrame(limit int) ([]byte, error) {
	header, err := wire.ReadFrame(l.r, limit)
	if err != nil || l.seal == nil {
		return header, err
	}
	var mac [sha256.Size]byte
	if _, err := io.ReadFull(l.r, mac[:]); err != nil {
		return nil, err
	}
	if !hmac.Equal(mac[:], l.seal.in.next(header)) {
		return nil, fmt.Errorf("%w: a header has a wrong MAC", ErrProtocol)
	}
	return header, nil
}

// writeFrame writes a frame made by package wire. It may change frame.
func (l *link) writeFrame(frame []byte) error {
	if l.seal != nil {
		frame = append(frame, l.seal.out.next(frame[4:])...)
	}
	_, err := l.Write(frame)
	return err
}

// flush sends what was written.
func (l *link) flush() error {
	if l.out == nil {
		return nil
	}
	return l.out.flush()
}

// A seal makes and checks the MACs of the headers on a plain connection.
type seal struct{ in, out *counter }

// A counter makes the MACs of one direction. Each covers the number of the
// header, so that none can be left out, moved or repeated.
type counter struct {
	mac hash.Hash
	n   uint64
}

func newCounter(key [32]byte) *counter { return &counter{mac: hmac.New(sha256.New, key[:])} }

func (c *counter) next(header []byte) []byte {
	c.mac.Reset()
	c.mac.Write(binary.BigEndian.AppendUint64(nil, c.n))
	c.mac.Write(header)
	c.n++
	return c.mac.Sum(nil)
}

// A batch gathers the records that TLS would write one by one, 16 KiB each, into
// fewer and larger writes. It holds a buffer only between a write and a flush.
type batch struct {
	*net.TCPConn
	mu   sync.Mutex
	hold bool    // guarded by mu; set once the handshake is over
	buf  *[]byte // guarded by mu
}

const batchSize = 128 << 10

var batches = sync.Pool{New: func() any { b := make([]byte, 0, batchSize); return &b }}

func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.hold {
		return b.TCPConn.Write(p)
	}
	if b.buf != nil && len(*b.buf)+len(p) > batchSize {
		if err := b.flushLocked(); err != nil {
			return 0, err
		}
	}
	if len(p) > batchSize {
		return b.TCPConn.Write(p)
	}
	if b.buf == nil {
		b.buf = batches.Get().(*[]byte)
	}
	*b.buf = append(*b.buf, p...)
	return len(p), nil
}

func (b *batch) flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flushLocked()
}

func (b *batch) flushLocked() error {
	if b.buf == nil {
		return nil
	}
	_, err := b.TCPConn.Write(*b.buf)
	*b.buf = (*b.buf)[:0]
	batches.Put(b.buf)
	b.buf = nil
	return err
}

func (b *batch) startHolding() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold = true
}
