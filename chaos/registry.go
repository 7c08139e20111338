package chaos

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A Registry spoils the answers of a registry.
type Registry struct {
	next http.Handler

	mu       sync.Mutex
	rng      *rand.Rand         // guarded by mu
	fault    Fault              // guarded by mu
	limit    *rate.Limiter      // guarded by mu; of bytes or requests, as the fault has it
	ended    context.Context    // guarded by mu; done when the fault is replaced
	end      context.CancelFunc // guarded by mu
	issued   grants             // guarded by mu; tokens and URLs that are good
	counters counters           // guarded by mu
}

// NewRegistry returns a Registry without a fault in front of next, which is the
// handler of a registry or a reverse proxy to one.
func NewRegistry(next http.Handler, seed uint64) *Registry {
	r := &Registry{next: next, rng: rand.New(rand.NewPCG(seed, 0)), issued: make(grants)}
	r.ended, r.end = context.WithCancel(context.Background())
	return r
}

// Set replaces the fault. Bodies that the last one stalls or slows down go on as
// if there had been none.
func (r *Registry) Set(f Fault) error {
	if err := f.Check(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end()
	r.ended, r.end = context.WithCancel(context.Background())
	r.fault, r.limit = f, nil
	switch f.Kind {
	case Bandwidth:
		r.limit = rate.NewLimiter(rate.Limit(f.Rate), pieceSize)
	case RateLimit:
		r.limit = rate.NewLimiter(rate.Limit(f.Requests), max(1, int(f.Requests)))
	}
	return nil
}

// strike returns the fault that a request meets, and what ends it.
func (r *Registry) strike(req *http.Request) (Fault, *rate.Limiter, context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.fault
	if f.Of != Everything && f.Of != subjectOf(req.URL.Path) {
		return Fault{}, nil, r.ended
	}
	if f.Share > 0 && r.rng.Float64() >= f.Share {
		return Fault{}, nil, r.ended
	}
	return f, r.limit, r.ended
}

// subjectOf returns what a request's path is about.
func subjectOf(path string) Subject {
	for _, s := range []Subject{Manifests, Blobs, Referrers} {
		if strings.Contains(path, "/"+string(s)+"/") {
			return s
		}
	}
	return Everything
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	counted := &CountedWriter{ResponseWriter: w}
	defer func() { r.count(req, counted) }()
	r.answer(counted, req)
}

// answer answers a request as the fault has it.
func (r *Registry) answer(w http.ResponseWriter, req *http.Request) {
	f, limit, ended := r.strike(req)
	if path, ok := strings.CutPrefix(req.URL.Path, expiringPath); ok {
		r.answerExpiring(w, req, path)
		return
	}
	if req.URL.Path == tokenPath {
		r.answerToken(w)
		return
	}
	switch f.Kind {
	case Slow:
		wait(req.Context(), ended, f.Delay)
	case Status:
		refuse(w, f.Status, f.RetryAfter)
		return
	case RateLimit:
		if !limit.Allow() {
			refuse(w, http.StatusTooManyRequests, f.RetryAfter)
			return
		}
	case Token:
		if !r.authorized(req) {
			challenge(w, req)
			return
		}
	case Redirect:
		if req.Method == http.MethodGet && subjectOf(req.URL.Path) == Blobs {
			r.redirect(w, req, f.Lifetime)
			return
		}
	case WholeBody:
		req = withoutRange(req)
	case Multipart:
		if req.Header.Get("Range") != "" {
			r.answerMultipart(w, req)
			return
		}
	case Stall, Cut, Bandwidth, Flip, NoLength, Excess:
		spoiled := &spoiledWriter{ResponseWriter: w, req: req, fault: f, limit: limit, ended: ended, bit: r.bit}
		r.next.ServeHTTP(spoiled, req)
		spoiled.finish()
		return
	}
	r.next.ServeHTTP(w, req)
}

// bit returns the number of a random bit among n bytes.
func (r *Registry) bit(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.Int64N(8 * n)
}

// wait returns after d, or when the request or the fault has ended.
func wait(ctx, ended context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-ended.Done():
	}
}

// refuse answers with an error, in the form that registries use.
func refuse(w http.ResponseWriter, status int, retryAfter time.Duration) {
	if retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((retryAfter+time.Second-1)/time.Second)))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{"errors":[{"code":"CHAOS","message":"` + http.StatusText(status) + `"}]}`))
}

// withoutRange returns req without its Range header.
func withoutRange(req *http.Request) *http.Request {
	whole := req.Clone(req.Context())
	whole.Header.Del("Range")
	return whole
}
