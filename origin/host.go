package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"graze/chunk"
)

// A host is a server that requests go to: of a registry, a mirror, a token
// service or a redirect's target. What is known of its state is shared by all
// requests to it.
type host struct {
	name  string        // host and, if given, port
	slots chan struct{} // holds a value for each request that is under way

	requests, bytes, errors, retries, throttled, reresolved atomic.Int64

	certHint atomic.Value // a string, about the last handshake if it was not followed by an answer

	mu      sync.Mutex
	serves  string    // the registry whose own host it is, or ""; guarded by mu
	health  health    // guarded by mu
	noRange time.Time // until when it is taken to ignore Range headers; guarded by mu
}

// rememberNoRange is how long a host that ignored a Range header is taken to
// ignore the others.
const rememberNoRange = 10 * time.Minute

// host returns the state of the server that u points to.
func (c *Client) host(u *url.URL) *host {
	return c.hosts.getOrAdd(u.Scheme+"://"+u.Host, func() *host {
		return &host{name: u.Host, slots: make(chan struct{}, c.cfg.HostRequests)}
	})
}

func (h *host) ignoresRanges(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.noRange)
}

func (h *host) setIgnoresRanges(ignores bool, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noRange = time.Time{}
	if ignores {
		h.noRange = now.Add(rememberNoRange)
	}
}

// failed records that a request broke off.
func (c *Client) failed(h *host, err error) {
	h.errors.Add(1)
	h.mu.Lock()
	down := h.health.fail(time.Now(), err, jitter())
	until, registry := h.health.nextTry, h.serves
	h.mu.Unlock()
	if down && c.cfg.Trace.HostDown != nil {
		c.cfg.Trace.HostDown(h.name, until, err)
	}
	if down && registry != "" && c.cfg.Trace.RegistryDown != nil {
		c.cfg.Trace.RegistryDown(registry)
	}
}

// skipMirror keeps requests away from a mirror that has answered with an error
// that isn't about what was asked for.
func (c *Client) skipMirror(h *host, err error) {
	h.mu.Lock()
	was := h.health.broken()
	h.health.skip(time.Now(), err, jitter())
	until := h.health.nextTry
	h.mu.Unlock()
	if !was && c.cfg.Trace.HostDown != nil {
		c.cfg.Trace.HostDown(h.name, until, err)
	}
}

// answered records what an answer's status says about the host.
func (c *Client) answered(h *host, resp *http.Response) {
	now := time.Now()
	status := resp.StatusCode
	err := &statusError{status: status}
	wait, wants := time.Duration(0), false
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		wait, wants = retryAfter(resp.Header, now, c.cfg.Retry.MaxRetryAfter)
	}
	if status == http.StatusTooManyRequests {
		h.throttled.Add(1)
	}
	if wants {
		h.mu.Lock()
		h.health.close(now.Add(wait), err)
		h.mu.Unlock()
		if c.cfg.Trace.HostDown != nil {
			c.cfg.Trace.HostDown(h.name, now.Add(wait), err)
		}
		return
	}
	if status >= 500 && status != http.StatusNotImplemented {
		c.failed(h, err)
		return
	}
	h.mu.Lock()
	up := h.health.succeed()
	h.mu.Unlock()
	if up && c.cfg.Trace.HostUp != nil {
		c.cfg.Trace.HostUp(h.name)
	}
}

// send makes one HTTP request to one host, if the host's health admits it. The
// body of the answer must be closed; it fails when it stalls. Errors are those
// of the transport, as ErrUnavailable where asking again may help, or the cause
// of ctx.
func (c *Client) send(req *http.Request, h *host, rt http.RoundTripper) (*http.Response, error) {
	ctx := req.Context()
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	h.mu.Lock()
	down := h.health.admit(time.Now())
	h.mu.Unlock()
	if down != nil {
		<-h.slots
		return nil, down
	}
	return c.exchange(req, h, rt)
}

// exchange is send for who has a slot of the host, which the answer's end frees.
func (c *Client) exchange(req *http.Request, h *host, rt http.RoundTripper) (*http.Response, error) {
	ctx := req.Context()
	h.requests.Add(1)
	rctx, cancel := context.WithCancelCause(ctx)
	e := &exchange{
		c: c, h: h, ctx: ctx, rctx: rctx, cancel: cancel, start: time.Now(),
		info: RequestInfo{Host: h.name, Method: req.Method},
	}
	req = req.WithContext(rctx)
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", c.cfg.UserAgent)
	}
	if req.Body != nil && req.Body != http.NoBody {
		// A server may take its time with what was uploaded.
		e.watch = newWatch(max(c.cfg.Timeouts.Stall, 4*c.cfg.Timeouts.Header), cancel, errNoAnswer)
		req.Body = &sentBody{req.Body, e.watch}
	} else {
		e.watch = newWatch(c.cfg.Timeouts.Connect+c.cfg.Timeouts.Header, cancel, errNoAnswer)
	}
	resp, err := rt.RoundTrip(req)
	e.watch.end()
	if err != nil {
		if hint, _ := h.certHint.Load().(string); hint != "" {
			err = fmt.Errorf("%w (%s)", err, hint)
		}
		err = e.fail(err)
		e.done(err)
		return nil, err
	}
	h.certHint.Store("")
	e.info.Status = resp.StatusCode
	c.answered(h, resp)
	e.watch = newWatch(c.cfg.Timeouts.Stall, cancel, errStalled)
	e.watch.stop()
	e.body = resp.Body
	resp.Body = e
	return resp, nil
}

// An exchange is a request that has a slot of its host, and the body of its
// answer.
type exchange struct {
	c      *Client
	h      *host
	ctx    context.Context // the caller's
	rctx   context.Context // the request's, which the watch cancels
	cancel context.CancelCauseFunc
	watch  *watch
	start  time.Time
	info   RequestInfo
	body   io.ReadCloser
	closed atomic.Bool
}

// Read implements io.Reader. It fails when no byte comes in time, and counts
// that, and broken connections, as a failure of the host.
func (e *exchange) Read(p []byte) (int, error) {
	e.watch.restart()
	n, err := e.body.Read(p)
	e.watch.stop()
	e.info.Bytes += int64(n)
	e.h.bytes.Add(int64(n))
	if err != nil && err != io.EOF {
		err = e.fail(err)
		e.info.Err = err
	}
	return n, err
}

// Close implements io.Closer and frees the slot.
func (e *exchange) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	err := e.body.Close()
	e.done(nil)
	return err
}

// fail sorts out what a transport's error means: the caller has gone, or the
// host has failed.
func (e *exchange) fail(err error) error {
	if cause := ended(e.ctx); cause != nil {
		if errors.Is(cause, chunk.ErrUnavailable) {
			e.c.failed(e.h, cause) // the caller has waited for as long as a host may take
		}
		return cause
	}
	if e.rctx.Err() != nil {
		err = context.Cause(e.rctx)
	}
	if hint := configHint(err, e.h.name); hint != "" {
		return fmt.Errorf("%w (%s)", err, hint)
	}
	e.c.failed(e.h, err)
	return unavailable(err)
}

func (e *exchange) done(err error) {
	e.cancel(nil)
	<-e.h.slots
	if err != nil {
		e.info.Err = err
	}
	e.info.Dur = time.Since(e.start)
	if f := e.c.cfg.Trace.RequestDone; f != nil {
		f(e.info)
	}
}

// A watch cancels a request that makes no progress. It runs from newWatch and
// restart until stop.
type watch struct {
	d time.Duration

	mu    sync.Mutex
	t     *time.Timer // guarded by mu
	ended bool        // guarded by mu
}

func newWatch(d time.Duration, cancel context.CancelCauseFunc, cause error) *watch {
	return &watch{d: d, t: time.AfterFunc(d, func() { cancel(cause) })}
}

func (w *watch) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.t.Reset(w.d)
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t.Stop()
}

// end is stop for good: a transport may go on reading a request's body after it
// has returned the answer.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.t.Stop()
	w.ended = true
}

// A sentBody is the body of a request; whenever the transport reads on, there
// is progress.
type sentBody struct {
	io.ReadCloser
	w *watch
}

// Read implements io.Reader.
func (b *sentBody) Read(p []byte) (int, error) {
	b.w.restart()
	return b.ReadCloser.Read(p)
}
