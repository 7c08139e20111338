package dht

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// A memNet is a network in memory for nodes in a synctest bubble.
type memNet struct {
	mu    sync.Mutex
	nodes map[string]*memTransport
	cut   func(a, b string) bool // whether nothing passes between a and b
}

func newMemNet() *memNet { return &memNet{nodes: make(map[string]*memTransport)} }

// setCut cuts connections from now on; nil heals them.
func (n *memNet) setCut(f func(a, b string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = f
}

// to returns the node at addr if from reaches it.
func (n *memNet) to(from, addr string) *memTransport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut != nil && n.cut(from, addr) || n.nodes[from] == nil {
		return nil
	}
	return n.nodes[addr]
}

// kill takes the node at addr off the network, as a crash does.
func (n *memNet) kill(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.nodes, addr)
}

// memAddr returns the address of node i.
func memAddr(i int) string { return fmt.Sprintf("10.0.%d.%d:7946", i/250, i%250+1) }

// A memTransport is one node's end of a memNet.
type memTransport struct {
	net           *memNet
	addr          netip.AddrPort
	packets       chan *memberlist.Packet
	streams       chan net.Conn
	sent, written atomic.Uint64 // bytes and packets sent
	dials         atomic.Uint64
}

func (n *memNet) transport(addr string) *memTransport {
	t := &memTransport{
		net:     n,
		addr:    netip.MustParseAddrPort(addr),
		packets: make(chan *memberlist.Packet, 4096),
		streams: make(chan net.Conn, 256),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[addr] = t
	return t
}

func (t *memTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
}

func (t *memTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	t.sent.Add(uint64(len(b)))
	t.written.Add(1)
	if to := t.net.to(t.addr.String(), addr); to != nil {
		select {
		case to.packets <- &memberlist.Packet{Buf: append([]byte(nil), b...), From: net.UDPAddrFromAddrPort(t.addr), Timestamp: now}:
		default:
		}
	}
	return now, nil
}

func (t *memTransport) DialTimeout(addr string, d time.Duration) (net.Conn, error) {
	t.dials.Add(1)
	to := t.net.to(t.addr.String(), addr)
	if to == nil {
		return nil, errors.New("no route to host")
	}
	here, there := net.Pipe()
	select {
	case to.streams <- there:
		return &memConn{here, t}, nil
	default:
		return nil, errors.New("connection refused")
	}
}

// A memConn counts what the node that dialled it writes.
type memConn struct {
	net.Conn
	t *memTransport
}

func (c *memConn) Write(p []byte) (int, error) {
	c.t.sent.Add(uint64(len(p)))
	return c.Conn.Write(p)
}

func (t *memTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *memTransport) StreamCh() <-chan net.Conn           { return t.streams }

func (t *memTransport) Shutdown() error {
	t.net.kill(t.addr.String())
	return nil
}
