package dht

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"
)

// A Config says how a node takes part in the cluster. Only Key has no default.
type Config struct {
	// Key is the cluster's key. Nodes with different keys know nothing of each
	// other.
	Key [32]byte

	// Bind is the ip:port at which the node gossips, by TCP and UDP; default
	// 0.0.0.0:7946. Port 0 takes a free one.
	Bind string

	// Advertise is the ip:port at which the others reach the node; default: what
	// it binds, or the host's first private address.
	Advertise string

	// Join names first contacts: host:port, or host for the port that this node
	// binds. A name may have several addresses.
	Join []string

	// JoinFile is a file with more contacts, one a line; it is read again each
	// time contacts are asked.
	JoinFile string

	// Lookup resolves the names of contacts; default: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// Jitter is the longest time to wait before contacts are asked first, so that
	// nodes that start together don't ask together; default 2s, negative: none.
	Jitter time.Duration

	// Heal is how often a contact that is not a member is asked while the node is
	// not alone; default 1m.
	Heal time.Duration

	// Leave bounds the time that the node takes to say good-bye; default 2s. It
	// takes less than a second, unless all leave together and nobody is left to
	// be told.
	Leave time.Duration

	// ViewFile is where the last view is kept; default: nowhere.
	ViewFile string

	// Transport carries gossip; default: TCP and UDP at Bind. The cluster shuts it
	// down.
	Transport memberlist.Transport

	// Log gets the few events that people act on; default: discard.
	Log *slog.Logger
}

// complete returns c with its defaults.
func (c Config) complete() (Config, error) {
	if c.Key == ([32]byte{}) {
		return c, errors.New("cluster has no key")
	}
	if c.Bind == "" {
		c.Bind = "0.0.0.0:7946"
	}
	if _, _, err := splitAddr(c.Bind); err != nil {
		return c, fmt.Errorf("bind address: %w", err)
	}
	if c.Advertise != "" {
		if _, port, err := splitAddr(c.Advertise); err != nil {
			return c, fmt.Errorf("advertised address: %w", err)
		} else if port == 0 {
			return c, errors.New("advertised address has port 0")
		}
	}
	if c.Lookup == nil {
		c.Lookup = systemLookup
	}
	if c.Jitter == 0 {
		c.Jitter = 2 * time.Second
	}
	if c.Heal <= 0 {
		c.Heal = time.Minute
	}
	if c.Leave <= 0 {
		c.Leave = 2 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// systemLookup resolves the name of a host as the system does.
func systemLookup(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// splitAddr splits ip:port.
func splitAddr(s string) (ip string, port int, err error) {
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port %.20q is not a number from 0 to 65535", p)
	}
	return host, int(n), nil
}

// gossipLabel marks the packets of graze, so that other users of memberlist are
// told apart before anything is decrypted.
const gossipLabel = "graze"

// gossip returns memberlist's configuration.
func (c *Config) gossip(self *Member, d memberlist.Delegate, e memberlist.EventDelegate, log *gossipLog) (*memberlist.Config, error) {
	secret, err := hkdf.Key(sha256.New, c.Key[:], nil, "graze gossip v1", 32)
	if err != nil {
		return nil, err
	}
	m := memberlist.DefaultLANConfig()
	m.Name = string(self.ID)
	m.Label = gossipLabel
	m.SecretKey = secret
	m.BindAddr, m.BindPort, err = splitAddr(c.Bind)
	if err != nil {
		return nil, err
	}
	m.AdvertisePort = m.BindPort
	if c.Advertise != "" {
		if m.AdvertiseAddr, m.AdvertisePort, err = splitAddr(c.Advertise); err != nil {
			return nil, err
		}
	}
	// Compression costs ten times the CPU of all the rest when many nodes join,
	// and encrypted metadata hardly shrinks.
	m.EnableCompression = false
	// A burst of joins must not be taken for loss.
	m.HandoffQueueDepth = 8192
	// Whole states are exchanged more often than by default: they are what ends
	// the tail of a convergence. memberlist stretches this in large clusters.
	m.PushPullInterval = 15 * time.Second
	m.TCPTimeout = dialTimeout
	// A node that comes back with another address may have its name as soon as
	// the old one is known to be dead.
	m.DeadNodeReclaimTime = time.Second
	m.Transport = c.Transport
	m.Delegate, m.Events = d, e
	m.Logger = log.logger()
	return m, nil
}
