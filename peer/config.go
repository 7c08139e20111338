package peer

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// A Config says who a Host is and what it lets others do. Identity and Key are
// required, the zero value of all else is useful.
type Config struct {
	Identity *Identity
	Key      ClusterKey

	// Bulk is the host:port at which chunks are served. Default: any address,
	// a free port.
	Bulk string

	// Advertise is the host:port that other nodes reach Bulk by. Default: the
	// address of the listener, which is of use only if Bulk names a host.
	Advertise string

	// P2P are the multiaddrs at which libp2p listens.
	// Default: "/ip4/0.0.0.0/tcp/0".
	P2P []string

	// Plain sends and takes bulk bytes unencrypted. All nodes of a cluster must
	// agree on it. It is for a network whose every machine is trusted.
	Plain bool

	// Aging has the certificate hold from an hour before it is made, as libp2p has
	// it: who has a clock that is behind refuses it. It is for drills.
	Aging bool

	// Conns is the most connections to one peer in each lane. Default: 4.
	Conns int

	Dial      time.Duration // to connect; default 2s
	Handshake time.Duration // from then on to a proven identity; default 5s
	Idle      time.Duration // that an unused connection is kept; default 1m
	Stall     time.Duration // without a byte while some are due; default 5s, below 2s long waits look dead
	Request   time.Duration // that a request may take if its deadline allows; default 5m
	Fallback  time.Duration // that libp2p streams are used before the bulk listener is tried again; default 30s

	// MinRate is the slowest that a body may come or go, in bytes/s, once Stall
	// has passed. Default: 128 KiB/s.
	MinRate int64

	Limits Limits
	Trace  Trace

	alive time.Duration // aliveEvery; shorter in tests
	knock time.Duration // knockTime; shorter in tests
}

// Limits bound what other nodes can take from this one.
type Limits struct {
	Conns        int // connections in all; default 4096
	PeerConns    int // connections of one peer; default 32
	Handshakes   int // connections that have proven nothing yet; default 256
	Requests     int // requests being served, in each lane; default 1024
	PeerRequests int // the same of one peer; default 16

	// Bytes of bodies being sent. Classes that nobody waits for leave a quarter
	// to the others. Default: 64 MiB, the least is 32 MiB.
	Bytes int64

	// Upload is the rate of bodies in bytes/s; urgent classes go first.
	// Default: no limit.
	Upload int64

	// Retry is the wait that a Busy answer asks for. Default: 50ms.
	Retry time.Duration
}

const minBytesInFlight = 32 << 20 // two chunks of the largest size

// withDefaults returns c with every field set, or an error that names the one
// that is wrong.
func (c Config) withDefaults() (Config, error) {
	if c.Identity == nil {
		return c, errors.New("peer: no identity")
	}
	if c.Key == (ClusterKey{}) {
		return c, errors.New("peer: no cluster key")
	}
	c.Bulk = cmp.Or(c.Bulk, ":0")
	if len(c.P2P) == 0 {
		c.P2P = []string{"/ip4/0.0.0.0/tcp/0"}
	}
	l := &c.Limits
	for _, f := range []struct {
		name  string
		field *int
		def   int
	}{
		{"Conns", &c.Conns, 4},
		{"Limits.Conns", &l.Conns, 4096},
		{"Limits.PeerConns", &l.PeerConns, 32},
		{"Limits.Handshakes", &l.Handshakes, 256},
		{"Limits.Requests", &l.Requests, 1024},
		{"Limits.PeerRequests", &l.PeerRequests, 16},
	} {
		if *f.field = cmp.Or(*f.field, f.def); *f.field < 0 {
			return c, fmt.Errorf("peer: %s is %d", f.name, *f.field)
		}
	}
	for _, f := range []struct {
		name  string
		field *time.Duration
		def   time.Duration
	}{
		{"Dial", &c.Dial, 2 * time.Second},
		{"Handshake", &c.Handshake, 5 * time.Second},
		{"Idle", &c.Idle, time.Minute},
		{"Stall", &c.Stall, 5 * time.Second},
		{"Request", &c.Request, 5 * time.Minute},
		{"Fallback", &c.Fallback, 30 * time.Second},
		{"alive", &c.alive, aliveEvery},
		{"knock", &c.knock, knockTime},
		{"Limits.Retry", &l.Retry, 50 * time.Millisecond},
	} {
		if *f.field = cmp.Or(*f.field, f.def); *f.field < 0 {
			return c, fmt.Errorf("peer: %s is %v", f.name, *f.field)
		}
	}
	c.MinRate = cmp.Or(c.MinRate, 128<<10)
	l.Bytes = cmp.Or(l.Bytes, 64<<20)
	if c.MinRate < 0 || l.Upload < 0 || l.Bytes < minBytesInFlight {
		return c, fmt.Errorf("peer: MinRate %d, Limits.Upload %d or Limits.Bytes %d is too small", c.MinRate, l.Upload, l.Bytes)
	}
	return c, nil
}

// patience returns how long n bytes of a body may take.
func (c *Config) patience(n int64) time.Duration {
	return c.Stall + time.Duration(float64(n)/float64(c.MinRate)*float64(time.Second))
}
