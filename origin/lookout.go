package origin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"graze/chunk"
)

// Several clients can share the work of finding out whether a registry is back:
// one probes it, and the others hold back until they hear of it. This is about the
// registry's own host; a mirror that fails is skipped.

// serve notes that the host is a registry's own.
func (h *host) serve(registry string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serves = registry
}

// ownEndpoint returns the registry's own endpoint.
func (c *Client) ownEndpoint(registry string) (*endpoint, error) {
	r, err := parseRepo(registry + "/x")
	if err == nil && r.registry != registry {
		err = fmt.Errorf("%.200q is no name of a registry", registry)
	}
	if err != nil {
		return nil, err
	}
	es, err := c.endpoints(registry, 0)
	if err != nil {
		return nil, err
	}
	return es[len(es)-1], nil
}

// Down reports whether a registry's own host is only probed, as it has failed.
func (c *Client) Down(registry string) bool {
	e, err := c.ownEndpoint(registry)
	if err != nil {
		return false
	}
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	return e.host.health.broken()
}

// Hold keeps the client from probing a registry that is down until then, or until
// Revive: somebody else does it.
func (c *Client) Hold(registry string, until time.Time) {
	if e, err := c.ownEndpoint(registry); err == nil {
		e.host.mu.Lock()
		defer e.host.mu.Unlock()
		e.host.health.held = until
	}
}

// Revive has the client ask a registry again that was down.
func (c *Client) Revive(registry string) {
	if e, err := c.ownEndpoint(registry); err == nil {
		e.host.mu.Lock()
		defer e.host.mu.Unlock()
		e.host.health.revive()
	}
}

// Probe asks a registry whether it is there, whatever the client knows of it. It
// shows no credentials.
func (c *Client) Probe(ctx context.Context, registry string) error {
	fail := func(err error) error { return &chunk.Error{Op: "probe", What: registry, Err: err} }
	e, err := c.ownEndpoint(registry)
	if err != nil {
		return fail(err)
	}
	select {
	case e.host.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	resp, err := c.exchange(newRequest(ctx, http.MethodGet, e.base.JoinPath("/")), e.host, e.rt)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if h := &e.host.health; h.broken() || time.Now().Before(h.closed) {
		return fail(unavailable(h.reason))
	}
	return nil
}
