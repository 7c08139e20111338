package origin

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// An endpoint is one host that answers for a registry: a mirror or its own.
type endpoint struct {
	base   *url.URL // up to and with "/v2"
	own    bool     // of the registry itself
	can    capability
	header http.Header
	ns     string // the registry's name, sent to mirrors so that they know whose repository is meant
	host   *host
	rt     *http.Transport
	auth   *authorizer

	redirects atomic.Bool // blobs have been found to be elsewhere
}

// url returns the URL of something in a repository: "blobs/sha256:…".
func (e *endpoint) url(r repo, rest string, query url.Values) *url.URL {
	u := *e.base
	u.Path += "/" + r.path + "/" + rest
	if e.ns != "" {
		q := url.Values{"ns": {e.ns}}
		for k, v := range query {
			q[k] = v
		}
		query = q
	}
	u.RawQuery = query.Encode()
	return &u
}

// A registry is a list of endpoints, kept in step with the files that it was
// made of.
type registry struct {
	name string

	mu        sync.Mutex
	endpoints []*endpoint       // guarded by mu
	print     [sha256.Size]byte // of the configuration files; guarded by mu
	checked   time.Time         // when the files were last looked at; guarded by mu
}

// recheckHosts is how long configuration files are taken as unchanged.
const recheckHosts = 30 * time.Second

// endpoints returns the endpoints of a registry that can do what is needed.
func (c *Client) endpoints(name string, need capability) ([]*endpoint, error) {
	r := c.registries.getOrAdd(name, func() *registry { return &registry{name: name} })
	all, err := r.load(c, time.Now())
	if err != nil {
		return nil, fmt.Errorf("configuration of registry %s: %w", name, err)
	}
	var able []*endpoint
	for _, e := range all {
		if e.can&need == need {
			able = append(able, e)
		}
	}
	if len(able) == 0 {
		return nil, fmt.Errorf("configuration of registry %s: no host has the capability that this needs", name)
	}
	return able, nil
}

// load returns all endpoints, new ones if the files have changed. Files are read
// under the lock: it is the registry's alone, and whoever comes next needs them.
func (r *registry) load(c *Client, now time.Time) ([]*endpoint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints != nil && now.Before(r.checked.Add(recheckHosts)) {
		return r.endpoints, nil
	}
	r.checked = now
	hosts, configs, print, err := readHosts(c.cfg.HostsDir, r.name)
	if err != nil {
		if r.endpoints != nil && c.cfg.Trace.ConfigRejected != nil {
			c.cfg.Trace.ConfigRejected(r.name, err)
		}
		if r.endpoints != nil {
			return r.endpoints, nil // what runs goes on with what it had
		}
		return nil, err
	}
	if r.endpoints == nil || print != r.print {
		r.closeIdleLocked()
		r.print, r.endpoints = print, nil
		for i := range hosts {
			r.endpoints = append(r.endpoints, c.newEndpoint(r.name, &hosts[i], configs[i]))
			if r.endpoints[i].own = i == len(hosts)-1; r.endpoints[i].own {
				r.endpoints[i].host.serve(r.name)
			}
		}
	}
	return r.endpoints, nil
}

// readHosts reads the configuration of a registry and all files it names. The
// print tells two configurations apart.
func readHosts(root, registry string) (hosts []hostConfig, configs []*tls.Config, print [sha256.Size]byte, err error) {
	if hosts, err = loadHosts(root, registry); err != nil {
		return nil, nil, print, err
	}
	sum := sha256.New()
	for i := range hosts {
		h := &hosts[i]
		conf, files, err := tlsConfig(h)
		if err != nil {
			return nil, nil, print, err
		}
		configs = append(configs, conf)
		fmt.Fprintf(sum, "%v %v %q %q %v %v %v %q\n", h.base, h.can, h.ca, h.client, h.skipVerify, h.header, h.dialTimeout, files)
	}
	return hosts, configs, [sha256.Size]byte(sum.Sum(nil)), nil
}

// closeIdle closes the connections that no request uses; the others close when
// they have been idle for long.
func (r *registry) closeIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeIdleLocked()
}

func (r *registry) closeIdleLocked() {
	for _, e := range r.endpoints {
		e.rt.CloseIdleConnections()
	}
}

func (c *Client) newEndpoint(registry string, h *hostConfig, conf *tls.Config) *endpoint {
	e := &endpoint{base: h.base, can: h.can, header: h.header}
	if e.base == nil {
		e.base = c.ownURL(registry, h)
	}
	credHost := e.base.Host
	if credHost == dockerHubHost {
		credHost = dockerHub
	}
	if credHost != registry {
		e.ns = registry
	}
	e.host = c.host(e.base)
	conf.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		// A server that doesn't like it ends the connection later, often without a
		// reason that gets through.
		for i := range conf.Certificates {
			if r.SupportsCertificate(&conf.Certificates[i]) == nil {
				e.host.certHint.Store("the server was shown the client certificate that hosts.toml names")
				return &conf.Certificates[i], nil
			}
		}
		e.host.certHint.Store("the server asks for a client certificate, and hosts.toml names none that it accepts")
		return new(tls.Certificate), nil
	}
	e.rt = c.newTransport(h.dialTimeout, conf)
	e.auth = &authorizer{c: c, e: e, host: credHost}
	return e
}

// ownURL returns where a registry is if the configuration doesn't say it.
func (c *Client) ownURL(registry string, h *hostConfig) *url.URL {
	if registry == dockerHub {
		return &url.URL{Scheme: "https", Host: dockerHubHost, Path: "/v2"}
	}
	scheme := "https"
	_, port, _ := net.SplitHostPort(registry)
	switch {
	case c.cfg.PlainHTTP || slices.Contains(c.cfg.PlainHTTPHosts, registry):
		scheme = "http"
	case isLoopback(registry) && port != "443" && !h.tls():
		scheme = "http"
	}
	return &url.URL{Scheme: scheme, Host: registry, Path: "/v2"}
}

func (c *Client) newTransport(dialTimeout time.Duration, conf *tls.Config) *http.Transport {
	if dialTimeout == 0 {
		dialTimeout = c.cfg.Timeouts.Connect
	}
	dial := c.cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
	return &http.Transport{
		Proxy: c.cfg.Proxy,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoConnection)
			defer cancel()
			conn, err := dial(ctx, network, addr)
			if err != nil && context.Cause(ctx) == errNoConnection {
				return nil, fmt.Errorf("connect to %s: %w", addr, errNoConnection)
			}
			return conn, err
		},
		TLSClientConfig:     conf,
		TLSHandshakeTimeout: c.cfg.Timeouts.Connect,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		MaxIdleConns:        2 * c.cfg.HostRequests,
		MaxIdleConnsPerHost: c.cfg.HostRequests,
		IdleConnTimeout:     90 * time.Second,
		// Offsets are those of the blob as it is.
		DisableCompression:     true,
		MaxResponseHeaderBytes: 256 << 10,
	}
}

// tlsConfig returns the TLS configuration of a host and the content of the files
// that it was made of.
func tlsConfig(h *hostConfig) (*tls.Config, [][]byte, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: h.skipVerify}
	var files [][]byte
	if len(h.ca) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			return nil, nil, fmt.Errorf("certificates of the system: %w", err)
		}
		for _, name := range h.ca {
			data, err := readLimited(name)
			if err != nil {
				return nil, nil, fmt.Errorf("ca: %w", err)
			}
			if !pool.AppendCertsFromPEM(data) {
				return nil, nil, fmt.Errorf("ca: %s has no certificate in PEM form", name)
			}
			files = append(files, data)
		}
		conf.RootCAs = pool
	}
	for _, pair := range h.client {
		cert, err := readLimited(pair[0])
		if err != nil {
			return nil, nil, fmt.Errorf("client: %w", err)
		}
		key := cert
		if pair[1] != "" {
			if key, err = readLimited(pair[1]); err != nil {
				return nil, nil, fmt.Errorf("client: %w", err)
			}
		}
		loaded, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, nil, fmt.Errorf("client: %s: %w", strings.TrimSpace(pair[0]+" "+pair[1]), err)
		}
		conf.Certificates = append(conf.Certificates, loaded)
		files = append(files, cert, key)
	}
	return conf, files, nil
}

// configHint returns what to change if err shows that a host is reached in the
// wrong way, or "".
func configHint(err error, host string) string {
	var record tls.RecordHeaderError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &record) && string(record.RecordHeader[:]) == "HTTP/":
		return "the registry speaks plain HTTP: use --plain-http, or an http:// server in hosts.toml"
	case errors.As(err, &unknown):
		return "its certificate is not trusted: name the authority's file as ca in hosts.toml"
	case errors.As(err, &name), errors.As(err, &invalid):
		return "its certificate is not valid for " + host
	}
	return ""
}
