package origin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

// newRegistry returns a complete registry, with or without the referrers API.
func newRegistry(referrers bool) http.Handler {
	return ggcr.New(ggcr.Logger(discardLog()), ggcr.WithReferrersSupport(referrers))
}

// pushImage pushes an image with one layer and returns its descriptor.
func pushImage(t *testing.T, c *Client, repository, tag string) v1.Descriptor {
	t.Helper()
	f := newFake()
	d := f.addImage("a", platform("linux/amd64"))
	for _, p := range f.blobs {
		if err := c.PushBlob(t.Context(), repository, descriptor(p), bytes.NewReader(p)); err != nil {
			t.Fatal(err)
		}
	}
	digest, err := c.PushManifest(t.Context(), repository, tag, string(types.OCIManifestSchema1), f.manifests["a"])
	if err != nil {
		t.Fatal(err)
	}
	if digest != chunk.Blob(d.Digest.String()) {
		t.Fatalf("pushed %s, not %s", digest, d.Digest)
	}
	return d
}

func TestPushArtifact(t *testing.T) {
	for _, api := range []bool{true, false} {
		t.Run(fmt.Sprintf("referrers=%v", api), func(t *testing.T) {
			tokens := newTokenServer()
			host := serve(t, tokens.protect(newRegistry(api)))
			tokens.realm = "http://" + host + "/token"
			c := newClient(t, Config{})
			repository := host + "/app"
			subject := pushImage(t, c, repository, "v1")
			if _, err := resolve(t.Context(), c, repository+":v1", platform("linux/amd64")); err != nil {
				t.Fatal(err)
			}

			var pushed []v1.Descriptor
			for _, name := range []string{"one", "two"} {
				tree := []byte("tree of " + name)
				d := descriptor(tree)
				d.MediaType = "application/vnd.graze.tree"
				a := &Artifact{
					Type: indexType, Subject: subject, Annotations: map[string]string{"name": name},
					Blobs: []ArtifactBlob{{d, bytes.NewReader(tree)}},
				}
				for range 2 { // again changes nothing
					got, err := c.PushArtifact(t.Context(), repository, a)
					if err != nil {
						t.Fatal(err)
					}
					pushed = append(pushed, got)
				}
			}
			list, err := c.Referrers(t.Context(), repository, chunk.Blob(subject.Digest.String()), indexType)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) != 2 || pushed[0].Digest != pushed[1].Digest || pushed[2].Digest != pushed[3].Digest {
				t.Fatalf("%d referrers: %q", len(list), names(list))
			}
			for _, d := range list {
				m, err := c.FetchManifest(t.Context(), repository, d.Digest.String())
				if err != nil {
					t.Fatal(err)
				}
				if m.Image.ArtifactType != indexType || m.Image.Subject.Digest != subject.Digest {
					t.Errorf("manifest %s", m.Raw)
				}
				p, err := c.FetchBlob(t.Context(), repository, m.Image.Layers[0])
				if err != nil || string(p) != "tree of "+m.Image.Annotations["name"] {
					t.Errorf("%q, %v", p, err)
				}
			}
			if _, err := resolve(t.Context(), c, repository+"@"+pushed[0].Digest.String(), platform("")); err == nil || !strings.Contains(err.Error(), "this is an artifact") {
				t.Errorf("an artifact as image: %v", err)
			}
		})
	}
}

// Referrers that are pushed at the same time are all listed, without an API too.
func TestPushArtifactsAtOnce(t *testing.T) {
	host := serve(t, newRegistry(false))
	c := newClient(t, Config{})
	subject := pushImage(t, c, host+"/app", "v1")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			a := &Artifact{Type: indexType, Subject: subject, Annotations: map[string]string{"name": fmt.Sprint(i)}}
			if _, err := c.PushArtifact(t.Context(), host+"/app", a); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := c.Referrers(t.Context(), host+"/app", chunk.Blob(subject.Digest.String()), "")
	if err != nil || len(list) != 8 {
		t.Errorf("%d referrers, error %v", len(list), err)
	}
}

func TestPushBlob(t *testing.T) {
	data := random(1 << 20)
	once := func(method string, answer http.HandlerFunc) func(http.Handler) http.Handler {
		var done atomic.Bool
		return func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == method && !done.Swap(true) {
					answer(w, r)
					return
				}
				h.ServeHTTP(w, r)
			})
		}
	}
	always := func(method string, answer http.HandlerFunc) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == method {
					answer(w, r)
					return
				}
				h.ServeHTTP(w, r)
			})
		}
	}
	plain := func(h http.Handler) http.Handler { return h }
	abort := func(w http.ResponseWriter, r *http.Request) {
		io.CopyN(io.Discard, r.Body, 1000)
		panic(http.ErrAbortHandler)
	}
	tests := []struct {
		name  string
		wrap  func(http.Handler) http.Handler
		d     v1.Descriptor
		err   string
		class error
	}{
		{"plain", plain, descriptor(data), "", nil},
		{"start fails once", once(http.MethodPost, answerWith(503)), descriptor(data), "", nil},
		{"upload fails once", once(http.MethodPut, answerWith(500)), descriptor(data), "", nil},
		{"upload breaks off once", once(http.MethodPut, abort), descriptor(data), "", nil},
		{"upload breaks off each time", always(http.MethodPut, abort), descriptor(data), "", chunk.ErrUnavailable},
		{"refused", always(http.MethodPost, answerWith(403)), descriptor(data), "status 403", chunk.ErrDenied},
		{"no location", always(http.MethodPost, answerWith(202)), descriptor(data), "doesn't say where", nil},
		{"other bytes", plain, descriptor(random(len(data) - 1)), "digest does not match", nil},
		{"HEAD redirects to the blob", always(http.MethodHead, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}), descriptor(data), "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newClient(t, Config{})
			err := c.PushBlob(t.Context(), serve(t, tt.wrap(newRegistry(true)))+"/app", tt.d, bytes.NewReader(data))
			if tt.err != "" || tt.class == nil {
				checkError(t, err, tt.err)
			}
			if tt.class != nil && !errors.Is(err, tt.class) {
				t.Errorf("error %v is no %v", err, tt.class)
			}
		})
	}
}

// What the repository has is not sent again.
func TestPushBlobTwice(t *testing.T) {
	var uploads atomic.Int32
	reg := newRegistry(true)
	host := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			uploads.Add(1)
		}
		reg.ServeHTTP(w, r)
	}))
	c := newClient(t, Config{})
	data := random(1000)
	for range 3 {
		if err := c.PushBlob(t.Context(), host+"/app", descriptor(data), bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
	if n := uploads.Load(); n != 1 {
		t.Errorf("%d uploads", n)
	}
}

// A push goes to the registry, whatever its mirrors can do.
func TestPushWithMirror(t *testing.T) {
	mirror := newFake()
	c, host := mirrored(t, newRegistry(true), mirror)
	pushImage(t, c, host+"/app", "v1")
	if reqs := mirror.requests(""); len(reqs) > 0 {
		t.Errorf("mirror got %q", reqs)
	}
}

func TestPushRejects(t *testing.T) {
	c := newClient(t, Config{})
	if _, err := c.PushManifest(t.Context(), "localhost:1/a", "bad tag", "x", nil); err == nil {
		t.Error("bad tag was accepted")
	}
	if _, err := c.PushArtifact(t.Context(), "localhost:1/a", &Artifact{Type: indexType}); err == nil {
		t.Error("artifact without subject was accepted")
	}
	if _, err := c.PushArtifact(t.Context(), "localhost:1/a", &Artifact{Subject: descriptor(nil)}); err == nil {
		t.Error("artifact without type was accepted")
	}
	if err := c.PushBlob(t.Context(), "localhost:1/a", v1.Descriptor{Size: -1}, nil); err == nil {
		t.Error("blob without digest was accepted")
	}
}
