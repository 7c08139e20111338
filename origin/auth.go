package origin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"graze/chunk"
)

// An authorizer knows how an endpoint wants to be shown credentials.
type authorizer struct {
	c    *Client
	e    *endpoint
	host string // as the keychain knows it

	mu    sync.Mutex
	offer challenge // the last one of the endpoint; guarded by mu
}

// A scope is what a token is good for.
type scope struct {
	repo    string // the path of the repository
	actions string // "pull", "pull,push"
}

// String returns the scope as token services write it.
func (s scope) String() string { return "repository:" + s.repo + ":" + s.actions }

// A grantKey names a grant.
type grantKey struct {
	origin string // of the endpoint: scheme and host
	scope  scope
}

func (a *authorizer) key(s scope) grantKey {
	return grantKey{a.e.base.Scheme + "://" + a.e.base.Host, s}
}

// A grant is a value for the Authorization header.
type grant struct {
	header string
	who    string // whose it is, for errors
	cred   Credential
	renew  time.Time // from when on a new one is fetched
	expiry time.Time
}

const (
	maxGrants     = 1024
	maxTokenBytes = 1 << 20
	basicLife     = 5 * time.Minute // how long a password is used before the keychain is asked again
	minTokenLife  = time.Minute     // what the specification says if a token service doesn't
	maxTokenLife  = 24 * time.Hour
)

// header returns what to send with a request: nothing, if the endpoint hasn't
// said yet that it wants something.
func (a *authorizer) header(ctx context.Context, s scope) (grant, error) {
	a.mu.Lock()
	offer := a.offer
	a.mu.Unlock()
	if offer.scheme == "" {
		return grant{}, nil
	}
	now := time.Now()
	g, ok := a.c.grants.get(a.key(s))
	if ok && now.Before(g.renew) {
		return g, nil
	}
	fresh, err := a.fetch(ctx, s, offer)
	if err == nil || ended(ctx) != nil {
		return fresh, err
	}
	if ok && now.Before(g.expiry) {
		return g, nil
	}
	// What the host has once asked for can't be had. It may ask for something
	// else by now, or for nothing: the next request finds out.
	a.forget(offer)
	if errors.Is(err, chunk.ErrUnavailable) {
		return grant{}, err
	}
	return grant{}, nil
}

// forget drops the endpoint's offer, unless there is another one by now.
func (a *authorizer) forget(offer challenge) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.offer.scheme == offer.scheme && maps.Equal(a.offer.params, offer.params) {
		a.offer = challenge{}
	}
}

// challenged returns what to send after used was answered with 401.
func (a *authorizer) challenged(ctx context.Context, s scope, used grant, h http.Header) (grant, error) {
	offer, ok := pickChallenge(h)
	if !ok {
		return grant{}, errors.New("the host offers neither bearer nor basic authorization")
	}
	general := challenge{offer.scheme, maps.Clone(offer.params)}
	delete(general.params, "scope") // that is this request's
	a.mu.Lock()
	a.offer = general
	a.mu.Unlock()
	// Another request may have been faster.
	if g, ok := a.c.grants.get(a.key(s)); ok && g.header != used.header && time.Now().Before(g.expiry) {
		return g, nil
	}
	a.c.grants.removeIf(a.key(s), func(g grant) bool { return g.header == used.header })
	return a.fetch(ctx, s, offer)
}

// fetch gets a new grant, once for all that ask for the same at the same time.
func (a *authorizer) fetch(ctx context.Context, s scope, offer challenge) (grant, error) {
	return a.c.fetches.do(ctx, a.key(s), func(ctx context.Context) (grant, error) {
		g, err := a.showEach(ctx, s, offer)
		if err == nil {
			a.c.grants.put(a.key(s), g)
		}
		return g, err
	})
}

// show gets a grant for one credential.
func (a *authorizer) show(ctx context.Context, s scope, offer challenge, cred Credential) (grant, error) {
	now := time.Now()
	g := grant{who: cred.describe(), cred: cred}
	g.renew, g.expiry = now.Add(basicLife), now.Add(basicLife)
	switch {
	case cred.RegistryToken != "":
		g.header = "Bearer " + cred.RegistryToken
	case offer.scheme == "basic" && (cred.anonymous() || cred.IdentityToken != ""):
		return grant{}, denied(fmt.Errorf("the host wants user and password: %s", cred.describe()))
	case offer.scheme == "basic":
		g.header = "Basic " + base64.StdEncoding.EncodeToString([]byte(cred.Username+":"+cred.Password))
	default:
		t, err := a.c.fetchToken(ctx, tokenRequest{a.e, offer, s, cred})
		if err != nil {
			return grant{}, err
		}
		g.header = "Bearer " + t.value
		g.expiry = now.Add(t.life)
		g.renew = now.Add(t.life * 8 / 10)
	}
	return g, nil
}

// A tokenRequest asks a token service for a token.
type tokenRequest struct {
	e     *endpoint // through which, and on whose behalf
	offer challenge
	scope scope
	cred  Credential
}

type bearerToken struct {
	value string
	life  time.Duration
}

// fetchToken asks the token service that an offer names (the protocol of
// distribution's token authentication).
func (c *Client) fetchToken(ctx context.Context, r tokenRequest) (bearerToken, error) {
	realm, err := checkRealm(r.offer.params["realm"], r.e)
	if err != nil {
		return bearerToken{}, err
	}
	var scopes []string
	if r.scope != (scope{}) {
		scopes = append(scopes, r.scope.String())
	}
	if s := r.offer.params["scope"]; s != "" && !slices.Contains(scopes, s) {
		scopes = append(scopes, s)
	}
	if r.cred.IdentityToken != "" {
		t, err := c.askToken(ctx, r, refreshRequest(ctx, realm, r, scopes))
		if status := statusOf(err); status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			return t, err
		}
		// Not all token services know the POST form.
	}
	return c.askToken(ctx, r, basicRequest(ctx, realm, r, scopes))
}

func basicRequest(ctx context.Context, realm *url.URL, r tokenRequest, scopes []string) *http.Request {
	u := *realm
	q := u.Query()
	q["scope"] = scopes
	if s := r.offer.params["service"]; s != "" {
		q.Set("service", s)
	}
	u.RawQuery = q.Encode()
	req := newRequest(ctx, http.MethodGet, &u)
	switch {
	case r.cred.IdentityToken != "":
		req.SetBasicAuth("<token>", r.cred.IdentityToken)
	case !r.cred.anonymous():
		req.SetBasicAuth(r.cred.Username, r.cred.Password)
	}
	return req
}

func refreshRequest(ctx context.Context, realm *url.URL, r tokenRequest, scopes []string) *http.Request {
	form := url.Values{
		"grant_type":    {"refresh_token"},
		"refresh_token": {r.cred.IdentityToken},
		"client_id":     {"graze"},
		"scope":         {strings.Join(scopes, " ")},
		"service":       {r.offer.params["service"]},
	}.Encode()
	req := newRequest(ctx, http.MethodPost, realm)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Body = io.NopCloser(strings.NewReader(form))
	req.ContentLength = int64(len(form))
	return req
}

// askToken sends a request to a token service and reads its answer.
func (c *Client) askToken(ctx context.Context, r tokenRequest, req *http.Request) (t bearerToken, err error) {
	h := c.host(req.URL)
	defer func() {
		if err != nil && ended(ctx) == nil {
			err = fmt.Errorf("token from %s (%s): %w", h.name, r.cred.describe(), err)
		}
	}()
	resp, err := c.send(req, h, r.e.rt)
	if err != nil {
		return t, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return t, newStatusError(resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenBytes))
	if err != nil {
		return t, err
	}
	var doc struct {
		Token       string  `json:"token"`
		AccessToken string  `json:"access_token"`
		ExpiresIn   float64 `json:"expires_in"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return t, errors.New("the answer is no JSON document with a token") // its text may be a secret
	}
	if t.value = doc.Token; t.value == "" {
		t.value = doc.AccessToken
	}
	if t.value == "" || strings.ContainsFunc(t.value, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return t, errors.New("the answer has no token")
	}
	t.life = minTokenLife
	if doc.ExpiresIn > 0 {
		t.life = time.Duration(min(doc.ExpiresIn, maxTokenLife.Seconds()) * float64(time.Second))
	}
	return t, nil
}

// checkRealm returns the URL of a token service, if credentials may be sent
// there: not in the clear, unless the registry itself is reached so, and not to
// a link-local address, where clouds have their metadata services.
func checkRealm(realm string, e *endpoint) (*url.URL, error) {
	u, err := url.Parse(realm)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("token service %.200q is no URL", realm)
	}
	if u.Scheme != "https" && (u.Scheme != "http" || e.base.Scheme != "http") {
		return nil, fmt.Errorf("token service %.200q is not https", realm)
	}
	if isLinkLocal(u) && u.Host != e.base.Host {
		return nil, fmt.Errorf("token service %.200q is at a link-local address", realm)
	}
	u.User, u.Fragment = nil, ""
	return u, nil
}

func isLinkLocal(u *url.URL) bool {
	addr, err := netip.ParseAddr(u.Hostname())
	return err == nil && addr.Unmap().IsLinkLocalUnicast()
}
