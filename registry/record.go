package registry

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// A Kind says what a request is about.
type Kind string

// The kinds of requests.
const (
	KindBase      Kind = "base"      // /v2/, the version check
	KindBlob      Kind = "blob"      // a blob's content
	KindManifest  Kind = "manifest"  // a manifest by tag or digest
	KindUpload    Kind = "upload"    // any step of a blob's upload
	KindReferrers Kind = "referrers" // manifests whose subject is a given one
	KindTags      Kind = "tags"      // the list of a repository's tags
	KindCatalog   Kind = "catalog"   // the list of repositories
	KindOther     Kind = "other"     // a path that is no endpoint
)

// An Event is what [Config].Trace learns about one request.
type Event struct {
	Method string
	Kind   Kind
	Repo   string // empty if the path names none, or an invalid one
	Digest string // of the blob, manifest or subject; of what a tag stands for; empty if unknown
	Status int    // of the answer; 0 if there was none
	Bytes  int64  // of the answer's body that were handed to the connection
	Range  string // the request's Range header
}

// Count is a number of requests and the bytes of their answers' bodies.
type Count struct {
	Requests int64
	Bytes    int64
}

// counters are a Count that grows.
type counters struct{ requests, bytes atomic.Int64 }

// newCounters returns counters for every kind; the map itself never changes.
func newCounters() map[Kind]*counters {
	m := make(map[Kind]*counters)
	for _, k := range []Kind{KindBase, KindBlob, KindManifest, KindUpload, KindReferrers, KindTags, KindCatalog, KindOther} {
		m[k] = new(counters)
	}
	return m
}

// Stats returns how many requests of each kind were answered since New, and the
// bytes they got. A request is counted when its handler ends, and a client can
// have read the whole answer an instant earlier: for exact figures call
// [Registry.Idle] first.
func (r *Registry) Stats() map[Kind]Count {
	m := make(map[Kind]Count, len(r.counts))
	for k, c := range r.counts {
		m[k] = Count{c.requests.Load(), c.bytes.Load()}
	}
	return m
}

// Idle waits until no request is being served, or ctx is done.
func (r *Registry) Idle(ctx context.Context) error { return r.flight.idle(ctx) }

// finish counts and traces a request whose handler has ended, also by a panic:
// a handler around this one may cut an answer short by http.ErrAbortHandler.
func (r *Registry) finish(x *exchange) {
	defer r.flight.leave()
	c := r.counts[x.kind]
	c.requests.Add(1)
	c.bytes.Add(x.w.bytes)
	if r.cfg.Trace != nil {
		r.cfg.Trace(Event{
			Method: x.req.Method,
			Kind:   x.kind,
			Repo:   x.repo,
			Digest: x.digest.String(),
			Status: x.w.status,
			Bytes:  x.w.bytes,
			Range:  x.req.Header.Get("Range"),
		})
	}
}

// A recorder counts what passes through it to an http.ResponseWriter.
type recorder struct {
	http.ResponseWriter
	head   bool // of a HEAD request; the server drops its body
	status int  // 0 until the answer has begun
	bytes  int64
}

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(p []byte) (int, error) {
	w.begin()
	n, err := w.ResponseWriter.Write(p)
	w.count(int64(n))
	return n, err
}

// ReadFrom implements io.ReaderFrom, by which the server's own writer gets to
// see a blob's file and can let the kernel send it.
func (w *recorder) ReadFrom(src io.Reader) (int64, error) {
	to, ok := w.ResponseWriter.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{w}, src)
	}
	w.begin()
	n, err := to.ReadFrom(src)
	w.count(n)
	return n, err
}

// Unwrap gives http.ResponseController access to the writer below.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) begin() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
}

func (w *recorder) count(n int64) {
	if !w.head {
		w.bytes += n
	}
}

// flight counts the requests being served.
type flight struct {
	mu    sync.Mutex
	n     int           // guarded by mu
	empty chan struct{} // guarded by mu; closed when n becomes 0; nil if nobody waits
}

func (f *flight) enter() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
}

func (f *flight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n--; f.n == 0 && f.empty != nil {
		close(f.empty)
		f.empty = nil
	}
}

func (f *flight) idle(ctx context.Context) error {
	f.mu.Lock()
	if f.n == 0 {
		f.mu.Unlock()
		return nil
	}
	if f.empty == nil {
		f.empty = make(chan struct{})
	}
	empty := f.empty
	f.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
