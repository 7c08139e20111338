package chaos

import (
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// expiringPath is where blobs are redirected to; the rest of the path is the
	// blob's own, and the query has what makes the URL good.
	expiringPath = "/chaos/expiring"
	// tokenPath gives out tokens.
	tokenPath = "/chaos/token"
)

// grants are tokens and signatures of URLs, with the time until which they are
// good.
type grants map[string]time.Time

// grant makes a token or signature that is good for a while.
func (r *Registry) grant(lifetime time.Duration) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for name, until := range r.issued {
		if now.After(until) {
			delete(r.issued, name)
		}
	}
	name := strconv.FormatUint(r.rng.Uint64(), 36)
	r.issued[name] = now.Add(lifetime)
	return name
}

// granted reports whether a token or signature is still good.
func (r *Registry) granted(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.issued[name])
}

// answerToken gives out a token, to anybody.
func (r *Registry) answerToken(w http.ResponseWriter) {
	r.mu.Lock()
	lifetime := r.fault.Lifetime
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct {
		Token     string `json:"token"`
		ExpiresIn int    `json:"expires_in"`
	}{r.grant(lifetime), max(60, int(lifetime/time.Second))}) // less than 60 is not allowed, so it may be a lie
}

// authorized reports whether a request has a good token.
func (r *Registry) authorized(req *http.Request) bool {
	token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	return ok && r.granted(token)
}

// challenge answers a request that has no good token.
func challenge(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=\"chaos\"", baseURL(req)+tokenPath))
	refuse(w, http.StatusUnauthorized, 0)
}

// redirect sends the client to a URL of the blob that expires.
func (r *Registry) redirect(w http.ResponseWriter, req *http.Request, lifetime time.Duration) {
	query := url.Values{"grant": {r.grant(lifetime)}}
	w.Header().Set("Location", baseURL(req)+expiringPath+req.URL.EscapedPath()+"?"+query.Encode())
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// answerExpiring answers a request for a URL that was given by redirect.
func (r *Registry) answerExpiring(w http.ResponseWriter, req *http.Request, path string) {
	if !r.granted(req.URL.Query().Get("grant")) {
		refuse(w, http.StatusForbidden, 0)
		return
	}
	req = req.Clone(req.Context())
	req.URL.Path, req.URL.RawPath, req.URL.RawQuery = path, "", ""
	r.next.ServeHTTP(w, req)
}

// baseURL returns the scheme and host by which a client reaches the registry.
func baseURL(req *http.Request) string {
	scheme := "http"
	if req.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + req.Host
}

// answerMultipart answers a request for one range as if it were for several.
func (r *Registry) answerMultipart(w http.ResponseWriter, req *http.Request) {
	rec := httptest.NewRecorder()
	r.next.ServeHTTP(rec, req)
	if rec.Code != http.StatusPartialContent {
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
		return
	}
	parts := multipart.NewWriter(w)
	w.Header().Set("Content-Type", "multipart/byteranges; boundary="+parts.Boundary())
	w.WriteHeader(http.StatusPartialContent)
	part, err := parts.CreatePart(textproto.MIMEHeader{
		"Content-Type":  {"application/octet-stream"},
		"Content-Range": {rec.Header().Get("Content-Range")},
	})
	if err == nil {
		_, err = part.Write(rec.Body.Bytes())
	}
	if err == nil {
		_ = parts.Close() // the client is gone if it fails
	}
}
