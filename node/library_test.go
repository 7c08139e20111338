package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
	"graze/image/imagetest"
	"graze/origin"
)

// A pipeListener is a registry's listener whose connections are pipes, so that a
// test's time can be fake.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// dial connects to the listener, whatever the address.
func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *pipeListener) Close() error { close(l.closed); return nil }

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// serveRegistry serves an image as r.test/a:1 until the test ends. Each request
// passes through before, which answers it if it returns true.
func serveRegistry(t *testing.T, before func(w http.ResponseWriter, r *http.Request) bool) *pipeListener {
	t.Helper()
	img, err := imagetest.Build([]imagetest.Layer{{Name: "one", Members: imagetest.Members(imagetest.File("a", []byte("x")))}}, imagetest.Gzip(6))
	if err != nil {
		t.Fatal(err)
	}
	blobs := map[string][]byte{"/v2/a/manifests/1": img.Manifest}
	blobs["/v2/a/manifests/"+string(blobDigest(img.Manifest))] = img.Manifest
	blobs["/v2/a/blobs/"+string(blobDigest(img.Config))] = img.Config
	blobs["/v2/a/blobs/"+img.Layers[0].Digest] = img.Layers[0].Data
	ln := newPipeListener()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := blobs[r.URL.Path]
		switch {
		case before(w, r):
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		default:
			if strings.Contains(r.URL.Path, "/manifests/") {
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			}
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(p)))
		}
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return ln
}

// openLibrary opens a library in a new folder that reads from ln.
func openLibrary(t *testing.T, ln *pipeListener) *Library {
	t.Helper()
	lib, err := OpenLibrary(Config{State: t.TempDir(), Origin: origin.Config{PlainHTTP: true, Dial: ln.dial}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lib.Close(); err != nil {
			t.Error(err)
		}
	})
	return lib
}

// TestSilentRegistry has a registry accept requests and never answer. An image
// that is known is used after seconds, not after all the client's tries.
func TestSilentRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		lib := openLibrary(t, serveRegistry(t, func(_ http.ResponseWriter, r *http.Request) bool {
			if silent.Load() {
				<-r.Context().Done()
			}
			return silent.Load()
		}))
		first, err := lib.Resolve(t.Context(), "r.test/a:1")
		if err != nil {
			t.Fatal(err)
		}
		silent.Store(true)
		start := time.Now()
		img, err := lib.Resolve(t.Context(), "r.test/a:1")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != resolvePatience || !img.Stale || img.Digest != first.Digest {
			t.Errorf("after %v: stale %v, digest %s; want the last known image after %v", took, img.Stale, img.Digest, resolvePatience)
		}
		// Who gives up earlier gets no image.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := lib.Resolve(ctx, "r.test/a:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("caller's deadline: %v", err)
		}
		// When it has been silent some times, nobody waits for it any more.
		for range 2 {
			if _, err := lib.Resolve(t.Context(), "r.test/a:1"); err != nil {
				t.Fatal(err)
			}
		}
		start = time.Now()
		if img, err := lib.Resolve(t.Context(), "r.test/a:1"); err != nil || !img.Stale || time.Since(start) > time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// TestRefusedReferrers has a registry refuse to list referrers: that an index
// can't be looked for is no reason not to make one.
func TestRefusedReferrers(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusForbidden, http.StatusMethodNotAllowed} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			lib := openLibrary(t, serveRegistry(t, func(w http.ResponseWriter, r *http.Request) bool {
				refused := strings.Contains(r.URL.Path, "/referrers/") || strings.Contains(r.URL.Path, "/manifests/sha256-")
				if refused {
					w.WriteHeader(status)
				}
				return refused
			}))
			img, err := lib.Resolve(t.Context(), "r.test/a:1")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lib.OpenView(t.Context(), img, IndexOptions{}); !errors.Is(err, ErrNoIndex) || !strings.Contains(err.Error(), "referrers") {
				t.Errorf("without leave to build: %v", err)
			}
			view, err := lib.OpenView(t.Context(), img, IndexOptions{Build: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := view.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStalePolicy has a registry go away. What a tag stood for last is used as far
// as that is allowed; what a digest stands for always is.
func TestStalePolicy(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy StalePolicy
		later  time.Duration
		err    string
	}{
		{"allowed", StalePolicy{}, 1000 * time.Hour, ""},
		{"denied", StalePolicy{Deny: true}, 0, "registry.stale is deny"},
		{"young enough", StalePolicy{MaxAge: time.Hour}, 59 * time.Minute, ""},
		{"too old", StalePolicy{MaxAge: time.Hour}, 61 * time.Minute, "registry.stale-max-age is 1h0m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var down atomic.Bool
				lib := openLibrary(t, serveRegistry(t, func(w http.ResponseWriter, _ *http.Request) bool {
					if down.Load() {
						w.WriteHeader(http.StatusBadGateway)
					}
					return down.Load()
				}))
				lib.stale = tt.policy
				first, err := lib.Resolve(t.Context(), "r.test/a:1")
				if err != nil || first.Stale {
					t.Fatalf("stale %v, %v", first.Stale, err)
				}
				down.Store(true)
				time.Sleep(tt.later)
				img, err := lib.Resolve(t.Context(), "r.test/a:1")
				switch {
				case tt.err == "" && (err != nil || !img.Stale || img.Digest != first.Digest):
					t.Errorf("stale %+v, %v", img, err)
				case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, chunk.ErrUnavailable)):
					t.Errorf("got %v, want %s", err, tt.err)
				}
				if img, err := lib.Resolve(t.Context(), first.byDigest()); err != nil || img.Stale {
					t.Errorf("by digest: %+v, %v", img, err)
				}
			})
		})
	}
}
