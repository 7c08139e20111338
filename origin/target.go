package origin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"graze/chunk"
)

// A target is where an endpoint redirects the requests for a blob: mostly a
// signed URL of an object store. The zero target stands for an endpoint that
// answers itself.
type target struct {
	url    *url.URL
	expiry time.Time
}

// A targetKey names a target. The URL itself is no key: it differs each time.
type targetKey struct {
	origin string // of the endpoint: scheme and host
	repo   repo
	digest chunk.Blob
}

const (
	maxTargetLife = 10 * time.Minute
	targetSlack   = 30 * time.Second // how long before its expiry a target is given up; at most a quarter of its life
)

// targetExpiry returns until when a signed URL is to be used, by the parameters
// of the usual object stores.
func targetExpiry(u *url.URL, now time.Time) time.Time {
	q := u.Query()
	end := now.Add(maxTargetLife)
	earlier := func(t time.Time) {
		if t.Before(end) {
			end = t
		}
	}
	for _, p := range []string{"X-Amz-", "X-Goog-"} {
		life, ok := parseSize(q.Get(p + "Expires"))
		if !ok || life > int64(maxTargetLife/time.Second) {
			continue // the date can't make it shorter than it says by much
		}
		signed, err := time.Parse("20060102T150405Z", q.Get(p+"Date"))
		if err != nil || signed.After(now) {
			signed = now
		}
		earlier(signed.Add(time.Duration(life) * time.Second))
	}
	if s, err := strconv.ParseInt(q.Get("Expires"), 10, 64); err == nil {
		earlier(time.Unix(s, 0))
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z", time.DateOnly} {
		if t, err := time.Parse(layout, q.Get("se")); err == nil {
			earlier(t)
			break
		}
	}
	return end.Add(-min(targetSlack, max(end.Sub(now), 0)/4))
}

// isStale reports whether a target's answer says that its URL holds no longer.
func isStale(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return true
	}
	return false
}

// askBlob asks an endpoint for bytes of a blob, or the target that it has
// redirected to. The answer's status is 200 or 206.
func (b *Blob) askBlob(ctx context.Context, e *endpoint, header http.Header) (*answer, error) {
	c := b.c
	key := targetKey{e.base.Scheme + "://" + e.base.Host, b.repo, b.digest}
	r := b.request(e, header)
	t, known := c.targets.get(key)
	known = known && time.Now().Before(t.expiry)
	if !known && e.redirects.Load() {
		var err error
		if t, err = b.resolve(ctx, e, key, t.url); err != nil {
			return nil, err
		}
	}
	if t.url != nil {
		a, err := b.askTarget(ctx, e, key, r, t.url)
		if !known || !isStale(statusOf(err)) {
			return a, err
		}
		// The URL may have expired: get a new one, and ask there.
		e.host.reresolved.Add(1)
		if t, err = b.resolve(ctx, e, key, t.url); err != nil {
			return nil, err
		}
		if t.url != nil {
			return b.askTarget(ctx, e, key, r, t.url)
		}
	}
	a, err := c.do(ctx, e, r)
	if err != nil {
		return nil, err
	}
	if !isRedirect(a.Response) {
		return checkStatus(e, a)
	}
	a.Body.Close()
	if t, err = b.learn(e, key, a); err != nil {
		return nil, err
	}
	return b.askTarget(ctx, e, key, r, t.url)
}

func (b *Blob) request(e *endpoint, header http.Header) request {
	return request{
		method:     http.MethodGet,
		url:        e.url(b.repo, "blobs/"+string(b.digest), nil),
		header:     header,
		scope:      scope{b.repo.path, "pull"},
		noRedirect: true,
	}
}

// learn keeps the target that an answer redirects to.
func (b *Blob) learn(e *endpoint, key targetKey, a *answer) (target, error) {
	u, err := location(a.Response, a.url)
	if err != nil {
		return target{}, err
	}
	t := target{u, targetExpiry(u, time.Now())}
	e.redirects.Store(true)
	b.c.targets.put(key, t)
	return t, nil
}

// resolve asks an endpoint where a blob is, once for all that want to know it at
// the same time. stale is the target that is no good any more.
func (b *Blob) resolve(ctx context.Context, e *endpoint, key targetKey, stale *url.URL) (target, error) {
	c := b.c
	c.targets.removeIf(key, func(t target) bool { return t.url == stale })
	if t, ok := c.targets.get(key); ok && time.Now().Before(t.expiry) {
		return t, nil // somebody else was faster
	}
	return c.resolves.do(ctx, key, func(ctx context.Context) (target, error) {
		// Should there be no redirect, one byte is little to throw away.
		a, err := c.do(ctx, e, b.request(e, http.Header{"Range": {"bytes=0-0"}}))
		if err != nil {
			return target{}, err
		}
		defer a.Body.Close()
		if isRedirect(a.Response) {
			return b.learn(e, key, a)
		}
		if _, err := checkStatus(e, a); err != nil {
			return target{}, err
		}
		e.redirects.Store(false)
		return target{}, nil
	})
}

// askTarget makes a request to a target. A target that fails is forgotten.
func (b *Blob) askTarget(ctx context.Context, e *endpoint, key targetKey, r request, u *url.URL) (*answer, error) {
	a, err := b.c.hop(ctx, e, r, u)
	if err == nil && isRedirect(a.Response) {
		a, err = b.c.follow(ctx, e, r, a)
	}
	if err == nil {
		a, err = checkStatus(e, a)
	}
	var down *downError
	if err != nil && ended(ctx) == nil && !errors.As(err, &down) {
		b.c.targets.removeIf(key, func(t target) bool { return t.url == u })
	}
	return a, err
}

// checkStatus returns a if it has bytes of a blob.
func checkStatus(e *endpoint, a *answer) (*answer, error) {
	if a.StatusCode == http.StatusOK || a.StatusCode == http.StatusPartialContent {
		return a, nil
	}
	defer a.Body.Close()
	return nil, from(e, a.host, newStatusError(a.Response))
}
