package origin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"graze/chunk"
)

const (
	maxHosts      = 256
	maxRegistries = 256
	maxTargets    = 4096
	maxRedirects  = 5
)

// A Client talks to registries. It is safe for concurrent use.
type Client struct {
	cfg        Config
	hosts      *lru[string, *host]
	registries *lru[string, *registry]
	targets    *lru[targetKey, target]
	resolves   flight[targetKey, target]
	grants     *lru[grantKey, grant]
	fetches    flight[grantKey, grant]
	refusals   *lru[refusalKey, time.Time]
	anonymous  *lru[anonKey, grant] // for hosts that endpoints redirect to
	tagTurn    chan struct{}        // holds a value while an index of referrers is changed
}

// New returns a Client. It does no I/O: the files in cfg.HostsDir are read when
// a registry is first used.
func New(cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("origin: %w", err)
	}
	c := &Client{
		cfg:        cfg,
		hosts:      newLRU[string, *host](maxHosts),
		registries: newLRU[string, *registry](maxRegistries),
		targets:    newLRU[targetKey, target](maxTargets),
		grants:     newLRU[grantKey, grant](maxGrants),
		refusals:   newLRU[refusalKey, time.Time](maxRefusals),
		anonymous:  newLRU[anonKey, grant](maxGrants),
	}
	c.tagTurn = make(chan struct{}, 1)
	c.registries.onCut = (*registry).closeIdle
	return c, nil
}

// Close ends what the client does in the background and closes its idle
// connections. Readers stay open until they are closed. It can be called twice.
func (c *Client) Close() error {
	c.fetches.close()
	c.resolves.close()
	for _, r := range c.registries.values() {
		r.closeIdle()
	}
	return nil
}

// A try is one round trip with an endpoint, through to what the answer is good
// for. Its errors decide what happens next: see each.
type try func(ctx context.Context, e *endpoint) error

// each calls f for one endpoint after the other until one succeeds, and after a
// wait again for all if the error may pass. What the registry's own endpoint
// says counts; if it wasn't asked, the last one's. op and what are for the error.
func (c *Client) each(ctx context.Context, es []*endpoint, op, what string, f try) error {
	for attempt := 1; ; attempt++ {
		asked := false
		var wait time.Duration // until an endpoint that asked to be left alone is open again
		var verdict *chunk.Error
		var own bool // verdict is the registry's own
		var others []string
		for _, e := range es {
			if attempt > 1 {
				e.host.retries.Add(1)
			}
			err := f(ctx, e)
			if err == nil {
				return nil
			}
			if cause := ended(ctx); cause != nil {
				return cause
			}
			var down *downError
			if !errors.As(err, &down) {
				asked = true
				if !e.own && (errors.Is(err, chunk.ErrUnavailable) || errors.Is(err, chunk.ErrCorrupt)) {
					c.skipMirror(e.host, err)
				}
			} else if d := time.Until(down.until); down.asked && (wait == 0 || d < wait) {
				wait = max(d, 1)
			}
			other := newError(op, what, e, err)
			if !own {
				verdict, other, own = other, verdict, e.own
			}
			if other != nil {
				others = append(others, other.From+": "+other.Err.Error())
			}
		}
		if len(others) > 0 {
			verdict.Err = fmt.Errorf("%w (also %s)", verdict.Err, strings.Join(others, "; "))
		}
		if attempt >= c.cfg.Retry.Attempts || !errors.Is(verdict, chunk.ErrUnavailable) {
			return verdict
		}
		// If nobody was asked because of failures, there is somebody who probes;
		// this one need not wait for it.
		if !asked && (wait == 0 || wait > c.cfg.Retry.MaxBackoff) {
			return verdict
		}
		if err := sleep(ctx, max(wait, c.cfg.Retry.backoff(attempt, jitter()))); err != nil {
			return err
		}
	}
}

// newError reports what e, or a host that it led to, has answered.
func newError(op, what string, e *endpoint, err error) *chunk.Error {
	var from *fromError
	if errors.As(err, &from) {
		return &chunk.Error{Op: op, What: what, From: e.host.name + " (by " + from.host + ")", Err: err}
	}
	return &chunk.Error{Op: op, What: what, From: e.host.name, Err: err}
}

// A fromError is an error of another host than the endpoint.
type fromError struct {
	host string
	err  error
}

func (e *fromError) Error() string { return e.err.Error() }
func (e *fromError) Unwrap() error { return e.err }

// from marks err as h's, if h is another host than e's.
func from(e *endpoint, h *host, err error) error {
	if h == e.host || err == nil {
		return err
	}
	return &fromError{h.name, err}
}

// A request is an HTTP request to an endpoint.
type request struct {
	method string
	url    *url.URL
	header http.Header
	scope  scope
	body   func() io.ReadCloser // nil if there is none; called for each time it is sent
	size   int64                // of the body

	// noRedirect makes an answer that redirects the result.
	noRedirect bool
}

// An answer is a response and the host that gave it.
type answer struct {
	*http.Response
	host *host
	url  *url.URL // where the answer came from, after redirects
}

// do makes a request with the endpoint's headers and authorization, and follows
// redirects. Neither headers nor authorization go to other hosts. An answer with
// 401 or 403 from the endpoint is an error; others are for the caller to judge.
func (c *Client) do(ctx context.Context, e *endpoint, r request) (*answer, error) {
	h, own := e.host, sameOrigin(r.url, e.base)
	if !own {
		h = c.host(r.url) // of an upload that the endpoint wants elsewhere
	}
	g, err := e.auth.header(ctx, r.scope)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(r.to(ctx, e, r.url, g.header, c.cfg.UserAgent), h, e.rt)
	if err != nil {
		return nil, from(e, h, err)
	}
	if resp.StatusCode == http.StatusUnauthorized && own {
		refusal := newStatusError(resp)
		resp.Body.Close()
		if g, err = e.auth.challenged(ctx, r.scope, g, resp.Header); err != nil {
			return nil, refused(refusal, err)
		}
		if resp, err = c.send(r.to(ctx, e, r.url, g.header, c.cfg.UserAgent), h, e.rt); err != nil {
			return nil, err
		}
	}
	var shown []Credential
	for refuses(resp) {
		refusal := newStatusError(resp)
		resp.Body.Close()
		next, ok := grant{}, false
		if shown = append(shown, g.cred); own && len(shown) < maxShown {
			next, ok = e.auth.another(ctx, r.scope, g, shown)
		}
		if !ok {
			refusal.hint = cmp.Or(g.who, "no credentials were asked for")
			return nil, from(e, h, refusal)
		}
		g = next
		if resp, err = c.send(r.to(ctx, e, r.url, g.header, c.cfg.UserAgent), h, e.rt); err != nil {
			return nil, err
		}
	}
	a := &answer{Response: resp, host: h, url: r.url}
	if r.noRedirect || !isRedirect(resp) {
		return a, nil
	}
	return c.follow(ctx, e, r, a)
}

// refuses reports whether an answer wants other credentials.
func refuses(resp *http.Response) bool {
	return resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
}

// refused joins a refusal with the reason why no better credentials are there.
func refused(refusal *statusError, err error) error {
	if errors.Is(err, chunk.ErrUnavailable) || errors.Is(err, context.Canceled) {
		return err
	}
	return denied(fmt.Errorf("%w: %w", refusal, err))
}

// to returns the HTTP request for a URL, with what the endpoint wants if the URL
// is of its origin.
func (r request) to(ctx context.Context, e *endpoint, u *url.URL, authorization, agent string) *http.Request {
	req := newRequest(ctx, r.method, u)
	for k, v := range r.header {
		req.Header[k] = v
	}
	if sameOrigin(u, e.base) {
		for k, v := range e.header {
			req.Header[k] = v
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", agent)
	}
	if r.body != nil {
		req.ContentLength = r.size
		req.Body = r.body()
	}
	return req
}

// newRequest is http.NewRequest for a URL that is parsed already.
func newRequest(ctx context.Context, method string, u *url.URL) *http.Request {
	return (&http.Request{
		Method: method, URL: u, Host: u.Host, Header: make(http.Header),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
}

func sameOrigin(a, b *url.URL) bool { return a.Scheme == b.Scheme && a.Host == b.Host }

func isRedirect(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return resp.Header.Get("Location") != ""
	}
	return false
}

// location returns where an answer redirects to.
func location(resp *http.Response, base *url.URL) (*url.URL, error) {
	u, err := base.Parse(resp.Header.Get("Location"))
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, corruptf("redirect to %.100q, which is no HTTP URL", resp.Header.Get("Location"))
	}
	if isLinkLocal(u) && u.Hostname() != base.Hostname() {
		return nil, corruptf("redirect to %s, a link-local address", u.Host)
	}
	u.User, u.Fragment = nil, ""
	return u, nil
}

// follow goes from an answer that redirects to the one that does not.
func (c *Client) follow(ctx context.Context, e *endpoint, r request, a *answer) (*answer, error) {
	for range maxRedirects {
		status := a.StatusCode
		a.Body.Close()
		u, err := location(a.Response, a.url)
		if err != nil {
			return nil, from(e, a.host, err)
		}
		if r.method != http.MethodGet && r.method != http.MethodHead && status != http.StatusTemporaryRedirect && status != http.StatusPermanentRedirect {
			return nil, from(e, a.host, fmt.Errorf("status %d redirects a %s", status, r.method))
		}
		if a, err = c.hop(ctx, e, r, u); err != nil {
			return nil, err
		}
		if !isRedirect(a.Response) {
			return a, nil
		}
	}
	a.Body.Close()
	return nil, from(e, a.host, corruptf("more than %d redirects", maxRedirects))
}

// An anonKey names an anonymous token.
type anonKey struct{ host, scope string }

// hop makes a request to the target of a redirect. A target that is a registry
// itself, and wants a token, gets an anonymous one.
func (c *Client) hop(ctx context.Context, e *endpoint, r request, u *url.URL) (*answer, error) {
	own := sameOrigin(u, e.base)
	h, authorization := c.host(u), ""
	if own {
		g, err := e.auth.header(ctx, r.scope)
		if err != nil {
			return nil, err
		}
		authorization = g.header
	}
	resp, err := c.send(r.to(ctx, e, u, authorization, c.cfg.UserAgent), h, e.rt)
	if err != nil {
		return nil, from(e, h, err)
	}
	offer, ok := pickChallenge(resp.Header)
	if own || resp.StatusCode != http.StatusUnauthorized || !ok || offer.scheme != "bearer" {
		return &answer{resp, h, u}, nil
	}
	resp.Body.Close()
	return c.hopAnonymous(ctx, e, r, u, offer)
}

// hopAnonymous is hop with the token that the target's offer leads to.
func (c *Client) hopAnonymous(ctx context.Context, e *endpoint, r request, u *url.URL, offer challenge) (*answer, error) {
	h := c.host(u)
	key := anonKey{h.name, offer.params["scope"]}
	g, ok := c.anonymous.get(key)
	if now := time.Now(); !ok || now.After(g.renew) {
		t, err := c.fetchToken(ctx, tokenRequest{e, offer, scope{}, Credential{}})
		if err != nil {
			return nil, from(e, h, err)
		}
		g = grant{header: "Bearer " + t.value, renew: now.Add(t.life * 8 / 10)}
		c.anonymous.put(key, g)
	}
	req := r.to(ctx, e, u, "", c.cfg.UserAgent)
	req.Header.Set("Authorization", g.header)
	resp, err := c.send(req, h, e.rt)
	if err != nil {
		return nil, from(e, h, err)
	}
	return &answer{resp, h, u}, nil
}

// get makes a GET request and hands the answer, which must have status 200, to
// read.
func (c *Client) get(ctx context.Context, e *endpoint, r request, read func(*answer) error) error {
	r.method = http.MethodGet
	a, err := c.do(ctx, e, r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return from(e, a.host, newStatusError(a.Response))
	}
	return from(e, a.host, read(a))
}
