package peer

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	p2ppeer "github.com/libp2p/go-libp2p/core/peer"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"

	"graze/chunk"
)

// A Host is this node among the nodes of the cluster.
type Host struct {
	cfg      Config
	handler  Handler
	p2p      host.Host
	door     *doorman
	tls      *libp2ptls.Identity
	proofKey [32]byte
	listener *net.TCPListener

	pool       pool
	detours    detours
	tickets    tickets
	gate       gate
	window     *window
	pacer      *pacer
	precedence precedence
	tally      tally
	handshakes chan struct{} // holds one for each connection that has proven nothing

	tasks sync.WaitGroup

	mu      sync.Mutex
	closed  bool                 // guarded by mu
	links   map[*link]struct{}   // guarded by mu; all that are open
	callers map[chunk.PeerID]int // guarded by mu; how many of them a peer has opened
}

// New returns a Host that listens, so that its addresses are known, but serves
// nobody until Run. A Host that is not run must be closed.
func New(cfg Config, h Handler) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if h == nil {
		return nil, errors.New("peer: no handler")
	}
	identity, err := newTLS(cfg.Identity, cfg.Aging)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.Bulk)
	if err != nil {
		return nil, fmt.Errorf("bulk listener: %w", err)
	}
	door := &doorman{patience: cfg.knock, waiting: make(map[string]*time.Timer)}
	p2p, err := newP2P(&cfg, door)
	if err != nil {
		listener.Close()
		return nil, err
	}
	host := &Host{
		cfg: cfg, handler: h, p2p: p2p, door: door, tls: identity,
		proofKey:   cfg.Key.Derive("bulk proof"),
		listener:   listener.(*net.TCPListener),
		pool:       pool{conns: cfg.Conns, peers: make(map[chunk.PeerID]*portion)},
		detours:    detours{until: make(map[Target]time.Time)},
		tickets:    tickets{open: make(map[[16]byte]openTicket), peer: make(map[p2ppeer.ID]int)},
		gate:       gate{most: cfg.Limits.Requests, mostOfPeer: cfg.Limits.PeerRequests, peers: make(map[chunk.PeerID]*[numLanes]int)},
		window:     newWindow(cfg.Limits.Bytes),
		pacer:      newPacer(cfg.Limits.Upload),
		tally:      tally{peers: make(map[chunk.PeerID]*list.Element)},
		handshakes: make(chan struct{}, cfg.Limits.Handshakes),
		links:      make(map[*link]struct{}),
		callers:    make(map[chunk.PeerID]int),
	}
	door.mu.Lock() // libp2p listens already
	door.refused = host.reject
	door.mu.Unlock()
	return host, nil
}

// ID returns the name of the node.
func (h *Host) ID() chunk.PeerID { return h.cfg.Identity.ID() }

// BulkAddr returns the host:port that other nodes reach the bulk listener by.
func (h *Host) BulkAddr() string {
	if h.cfg.Advertise != "" {
		return h.cfg.Advertise
	}
	return h.listener.Addr().String()
}

// Run serves other nodes until ctx is done, then closes h and waits for all that
// it has started. Call it once.
func (h *Host) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h.p2p.SetStreamHandler(protoChunks, h.task(func(s network.Stream) { h.serveStream(ctx, s) }))
	h.p2p.SetStreamHandler(protoTicket, h.task(h.serveTicket))
	h.tasks.Go(func() { h.accept(ctx) })
	h.tasks.Go(func() { h.reap(ctx) })
	<-ctx.Done()
	err := h.Close()
	h.tasks.Wait()
	return err
}

// task makes f a handler of streams that Run waits for.
func (h *Host) task(f func(network.Stream)) network.StreamHandler {
	return func(s network.Stream) {
		h.mu.Lock()
		if h.closed {
			h.mu.Unlock()
			s.Reset()
			return
		}
		h.tasks.Add(1)
		h.mu.Unlock()
		defer h.tasks.Done()
		f(s)
	}
}

// reap closes connections that have not been used for a while.
func (h *Host) reap(ctx context.Context) {
	t := time.NewTicker(h.cfg.Idle / 2)
	defer t.Stop()
	for {
		select {
		case now := <-t.C:
			h.pool.reap(now.Add(-h.cfg.Idle))
		case <-ctx.Done():
			return
		}
	}
}

// Close ends all connections; requests on them fail. It may be called more than
// once.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	links := make([]*link, 0, len(h.links))
	for l := range h.links {
		links = append(links, l)
	}
	h.mu.Unlock()
	h.pool.close()
	h.door.close()
	err := h.listener.Close()
	for _, l := range links {
		l.Close()
	}
	return errors.Join(err, h.p2p.Close())
}

// enter notes a new link, which leaves by its Close. It reports whether h is
// still open.
func (h *Host) enter(l *link) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.links[l] = struct{}{}
	h.tally.change(func(s *Stats) { s.Links[l.way]++ })
	l.ended = func() {
		h.mu.Lock()
		delete(h.links, l)
		h.mu.Unlock()
		h.tally.change(func(s *Stats) { s.Links[l.way]-- })
	}
	return true
}

// admit enters a link that another node has opened, if that node and all
// together have not too many.
func (h *Host) admit(l *link) error {
	h.mu.Lock()
	n, all := h.callers[l.peer], len(h.links)
	if n >= h.cfg.Limits.PeerConns || all >= h.cfg.Limits.Conns {
		h.mu.Unlock()
		return fmt.Errorf("too many connections: %d of this peer, %d in all", n, all)
	}
	h.callers[l.peer]++
	h.mu.Unlock()
	if !h.enter(l) {
		h.uncount(l.peer)
		return ErrClosed
	}
	return nil
}

// dismiss ends a link that was admitted.
func (h *Host) dismiss(l *link) {
	l.Close()
	h.uncount(l.peer)
}

func (h *Host) uncount(id chunk.PeerID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.callers[id]--; h.callers[id] == 0 {
		delete(h.callers, id)
	}
}
