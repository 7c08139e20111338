package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"graze/chaos/lab"
	"graze/registry"
)

// A clusterRegistry is a registry that is at a machine of a test's network, and
// on this host's loopback too, by which the test itself pushes to it. It notes
// which parts of which blobs were sent.
type clusterRegistry struct {
	*testRegistry // addr is that on the loopback

	mu   sync.Mutex
	born time.Time           // guarded by mu; when counting began
	sent map[string][]extent // guarded by mu; by digest
	all  int64               // guarded by mu; bytes of bodies
	asks map[string]int      // guarded by mu; requests by method and the last two parts of the path

	*outage
}

// An extent is a part of a blob that was sent to a node.
type extent struct {
	from, to int64
	node     string // its address
	at       time.Duration
}

// String implements fmt.Stringer.
func (x extent) String() string {
	return fmt.Sprintf("%d-%d to %s after %.3f s", x.from, x.to, x.node, x.at.Seconds())
}

// startClusterRegistry starts an empty registry that ends with the test.
func startClusterRegistry(t testing.TB, m *lab.Machine) *clusterRegistry {
	t.Helper()
	reg, err := registry.New(t.TempDir(), registry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &clusterRegistry{testRegistry: &testRegistry{Registry: reg}, born: time.Now(), sent: make(map[string][]extent), asks: make(map[string]int)}
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = outside.Addr().String()
	var inside net.Listener
	err = m.Do(func() (err error) {
		inside, err = net.Listen("tcp", net.JoinHostPort(registryAddr, "5000"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 2)
	go func() { served <- registry.Serve(ctx, outside, reg, registry.Config{}) }()
	r.outage = &outage{Listener: inside}
	inside = r.outage
	go func() { served <- registry.Serve(ctx, inside, http.HandlerFunc(r.serve), registry.Config{}) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-served, <-served, reg.Close()); err != nil {
			t.Error("registry: ", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// serve answers a request of a node.
func (r *clusterRegistry) serve(w http.ResponseWriter, req *http.Request) {
	counted := &countedResponse{ResponseWriter: w}
	r.ServeHTTP(counted, req)
	r.mu.Lock()
	r.all += counted.n
	r.asks[req.Method+" "+path.Join(path.Base(path.Dir(req.URL.Path)), path.Base(req.URL.Path))]++
	r.mu.Unlock()
	if req.Method != http.MethodGet || counted.n == 0 || !strings.Contains(req.URL.Path, "/blobs/") {
		return
	}
	var from int64
	if h := w.Header().Get("Content-Range"); h != "" {
		if _, err := fmt.Sscanf(h, "bytes %d-", &from); err != nil {
			panic(fmt.Sprintf("registry: Content-Range %q: %v", h, err))
		}
	}
	digest := path.Base(req.URL.Path)
	node, _, _ := net.SplitHostPort(req.RemoteAddr)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent[digest] = append(r.sent[digest], extent{from, from + counted.n, node, time.Since(r.born)})
}

// A countedResponse counts the bytes of a body.
type countedResponse struct {
	http.ResponseWriter
	n int64
}

func (c *countedResponse) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (c *countedResponse) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// egress is what a registry has sent of some blobs.
type egress struct {
	bytes int64
	once  int64    // without those bytes that were sent before
	again []extent // that begin where another does, and that one before each
}

// ratio is how often each byte that was needed was sent.
func (e egress) ratio() float64 { return float64(e.bytes) / float64(max(e.once, 1)) }

// egress returns what was sent of the given blobs, or of all others.
func (r *clusterRegistry) egress(t testing.TB, digests []string, others bool) (e egress) {
	t.Helper()
	r.stats(t) // which waits until all is answered
	r.mu.Lock()
	defer r.mu.Unlock()
	for digest, sent := range r.sent {
		if slices.Contains(digests, digest) == others {
			continue
		}
		slices.SortFunc(sent, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
		end := int64(0)
		for i, x := range sent {
			e.bytes += x.to - x.from
			e.once += max(0, x.to-max(x.from, end))
			if i > 0 && x.from == sent[i-1].from {
				e.again = append(e.again, sent[i-1], x)
			}
			end = max(end, x.to)
		}
	}
	return e
}

// total returns the number of bytes that nodes were sent, of all content.
func (r *clusterRegistry) total(t testing.TB) int64 {
	t.Helper()
	r.stats(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// forget starts the counts anew.
func (r *clusterRegistry) forget(t testing.TB) {
	t.Helper()
	r.stats(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.sent)
	clear(r.asks)
	r.all = 0
	r.born = time.Now()
}

// asked returns how often nodes have made each request for a manifest or a list of
// referrers, and for those blobs that are no layers.
func (r *clusterRegistry) asked(t testing.TB, layers []string) map[string]int {
	t.Helper()
	r.stats(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	asks := maps.Clone(r.asks)
	for _, digest := range layers {
		delete(asks, http.MethodGet+" blobs/"+digest)
	}
	return asks
}

// An outage is a registry's listener that can be made to fail.
type outage struct {
	net.Listener

	mu       sync.Mutex // guards what follows
	mode     outageMode
	attempts int        // connections while the registry was down
	open     []net.Conn // accepted, and perhaps closed since
}

type outageMode int

const (
	works   outageMode = iota
	refuses            // connections are reset
	silent             // connections are made, and nothing is ever answered
)

// set makes the registry fail in a way, or work again. Connections that are open
// break. It returns how many were made since it failed.
func (o *outage) set(mode outageMode) (attempts int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	attempts = o.attempts
	o.mode, o.attempts = mode, 0
	for _, c := range o.open {
		_ = c.Close()
	}
	o.open = nil
	return attempts
}

// Accept implements net.Listener.
func (o *outage) Accept() (net.Conn, error) {
	for {
		c, err := o.Listener.Accept()
		if err != nil || o.admit(c) {
			return c, err
		}
	}
}

// admit reports whether a connection is served.
func (o *outage) admit(c net.Conn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mode != works {
		o.attempts++
	}
	if o.mode == refuses {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
		return false
	}
	o.open = slices.DeleteFunc(o.open, func(c net.Conn) bool { return c.(*net.TCPConn).SetDeadline(time.Time{}) != nil }) // those that were closed
	o.open = append(o.open, c)
	return o.mode == works
}
