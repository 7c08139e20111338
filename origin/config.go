package origin

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// A Config says how registries are reached. The zero value is useful: HTTPS
// (plain HTTP for loopback hosts), no mirrors and no credentials.
type Config struct {
	// HostsDir is a directory in containerd's certs.d layout, with a hosts.toml
	// or Docker's certificate files for each registry. Empty: none. A change of
	// these files is noticed within half a minute.
	HostsDir string

	// PlainHTTP makes HTTP the scheme of all registries for which HostsDir says
	// nothing else, PlainHTTPHosts of those listed ("localhost:5000").
	PlainHTTP      bool
	PlainHTTPHosts []string

	// Keychain has the credentials. Default: none.
	Keychain Keychain

	Timeouts Timeouts
	Retry    Retry

	// UserAgent is sent with every request. Default: "graze".
	UserAgent string

	// HostRequests is the most requests to one host at a time; an open reader
	// counts as one. Default: 32.
	HostRequests int

	// Dial opens connections. Default: that of a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Proxy picks the proxy for a request. Default: http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)

	Trace Trace
}

// Timeouts bound how long a host may take. There is none for a whole transfer.
type Timeouts struct {
	Connect time.Duration // to connect, and for the TLS handshake; default 10s
	Header  time.Duration // from the request to the answer's header; default 30s
	Stall   time.Duration // without a single byte of the answer's body; default 30s
}

// Retry says how often and when a failed request is made again. Waits have full
// jitter: they are spread evenly from zero to the back-off.
type Retry struct {
	Attempts      int           // rounds over all hosts; default 4
	MinBackoff    time.Duration // bound of the first wait, doubled for each further one; default 100ms
	MaxBackoff    time.Duration // largest bound, also of the waits for Retry-After; default 5s
	MaxRetryAfter time.Duration // longest time that a host's Retry-After can close it for; default 5m
}

// Trace holds optional hooks. They are called by the goroutine that makes the
// request and must not block.
type Trace struct {
	// RequestDone is called when an answer has been read or given up.
	RequestDone func(RequestInfo)
	// HostDown is called when a host is left alone until the given time.
	HostDown func(host string, until time.Time, err error)
	// HostUp is called when a host that was down has answered.
	HostUp func(host string)
	// RegistryDown is called when the own host of a registry is down, again for each
	// probe that fails. See Client.Hold.
	RegistryDown func(registry string)
	// ConfigRejected is called when changed files in HostsDir are not valid; the
	// registry stays as it was.
	ConfigRejected func(registry string, err error)
}

// RequestInfo describes one HTTP request.
type RequestInfo struct {
	Host   string
	Method string
	Status int   // 0 if there was no answer
	Bytes  int64 // of the answer's body that were read
	Dur    time.Duration
	Err    error // what ended it early
}

// withDefaults returns c with defaults in place of zeros, or what is wrong with
// it.
func (c Config) withDefaults() (Config, error) {
	t, r := &c.Timeouts, &c.Retry
	t.Connect = cmp.Or(t.Connect, 10*time.Second)
	t.Header = cmp.Or(t.Header, 30*time.Second)
	t.Stall = cmp.Or(t.Stall, 30*time.Second)
	r.Attempts = cmp.Or(r.Attempts, 4)
	r.MinBackoff = cmp.Or(r.MinBackoff, 100*time.Millisecond)
	r.MaxBackoff = cmp.Or(r.MaxBackoff, max(5*time.Second, r.MinBackoff))
	r.MaxRetryAfter = cmp.Or(r.MaxRetryAfter, 5*time.Minute)
	c.UserAgent = cmp.Or(c.UserAgent, "graze")
	c.HostRequests = cmp.Or(c.HostRequests, 32)
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"Timeouts.Connect", t.Connect}, {"Timeouts.Header", t.Header}, {"Timeouts.Stall", t.Stall},
		{"Retry.MinBackoff", r.MinBackoff}, {"Retry.MaxBackoff", r.MaxBackoff}, {"Retry.MaxRetryAfter", r.MaxRetryAfter},
	} {
		if d.d < 0 {
			return c, fmt.Errorf("%s is negative: %v", d.name, d.d)
		}
	}
	if r.MinBackoff > r.MaxBackoff {
		return c, fmt.Errorf("Retry.MinBackoff %v is over Retry.MaxBackoff %v", r.MinBackoff, r.MaxBackoff)
	}
	if r.Attempts < 0 {
		return c, fmt.Errorf("Retry.Attempts is negative: %d", r.Attempts)
	}
	if c.HostRequests < 0 {
		return c, fmt.Errorf("HostRequests is negative: %d", c.HostRequests)
	}
	if c.Proxy == nil {
		c.Proxy = http.ProxyFromEnvironment
	}
	return c, nil
}
