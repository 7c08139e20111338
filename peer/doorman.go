package peer

import (
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	p2ppeer "github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
)

// libp2p ends connections that don't get into the private network without telling
// anybody. A doorman sees who knocks, and counts those that have not come in when
// libp2p's patience is over.
type doorman struct {
	patience time.Duration

	mu      sync.Mutex
	refused func(addr string, err error) // guarded by mu
	waiting map[string]*time.Timer       // guarded by mu; by the caller's address
}

// maxWaiting bounds the callers that are watched; libp2p lets in fewer at a time.
const maxWaiting = 1024

// InterceptAccept notes a caller. It turns nobody away.
func (d *doorman) InterceptAccept(c network.ConnMultiaddrs) bool {
	addr := c.RemoteMultiaddr().String()
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.waiting[addr]; old != nil || len(d.waiting) >= maxWaiting {
		return true
	}
	d.waiting[addr] = time.AfterFunc(d.patience, func() {
		d.mu.Lock()
		delete(d.waiting, addr)
		refused := d.refused
		d.mu.Unlock()
		refused(addr, fmt.Errorf("%w: it did not get into the private network of libp2p", ErrKey))
	})
	return true
}

// InterceptSecured notes that a caller has come in.
func (d *doorman) InterceptSecured(dir network.Direction, _ p2ppeer.ID, c network.ConnMultiaddrs) bool {
	if dir != network.DirInbound {
		return true
	}
	addr := c.RemoteMultiaddr().String()
	d.mu.Lock()
	defer d.mu.Unlock()
	if timer := d.waiting[addr]; timer != nil {
		timer.Stop()
		delete(d.waiting, addr)
	}
	return true
}

// InterceptPeerDial lets every call out pass.
func (*doorman) InterceptPeerDial(p2ppeer.ID) bool { return true }

// InterceptAddrDial lets every call out pass.
func (*doorman) InterceptAddrDial(p2ppeer.ID, multiaddr.Multiaddr) bool { return true }

// InterceptUpgraded lets every connection pass.
func (*doorman) InterceptUpgraded(network.Conn) (bool, control.DisconnectReason) { return true, 0 }

// close forgets those who still wait.
func (d *doorman) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for addr, timer := range d.waiting {
		timer.Stop()
		delete(d.waiting, addr)
	}
}
