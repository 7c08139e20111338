package origin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

// A fake is a registry that reads well and whose answers a test can replace.
type fake struct {
	mu        sync.Mutex
	blobs     map[string][]byte // by digest; guarded by mu
	manifests map[string][]byte // by tag and digest; guarded by mu
	log       []string          // requests, "GET /v2/…"; guarded by mu

	// before handles a request if it returns true. It is set before the first
	// request, or under mu.
	before func(w http.ResponseWriter, r *http.Request) bool
}

func newFake() *fake {
	return &fake{blobs: make(map[string][]byte), manifests: make(map[string][]byte)}
}

func (f *fake) addBlob(p []byte) v1.Descriptor {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := descriptor(p)
	f.blobs[d.Digest.String()] = p
	return d
}

func (f *fake) addManifest(tag string, doc any) v1.Descriptor {
	raw, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d := descriptor(raw)
	f.manifests[d.Digest.String()] = raw
	if tag != "" {
		f.manifests[tag] = raw
	}
	return d
}

// addImage adds an image with one layer.
func (f *fake) addImage(tag string, p v1.Platform) v1.Descriptor {
	layer := f.addBlob([]byte("layer for " + p.String()))
	layer.MediaType = types.OCILayer
	config := f.addBlob(fmt.Appendf(nil, `{"architecture":%q,"os":%q,"variant":%q,"rootfs":{"type":"layers","diff_ids":[%q]}}`,
		p.Architecture, p.OS, p.Variant, layer.Digest))
	config.MediaType = types.OCIConfigJSON
	d := f.addManifest(tag, v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: config, Layers: []v1.Descriptor{layer},
	})
	d.MediaType = types.OCIManifestSchema1
	d.Platform = &p
	return d
}

func descriptor(p []byte) v1.Descriptor {
	h, err := v1.NewHash(string(digestOf(p)))
	if err != nil {
		panic(err)
	}
	return v1.Descriptor{MediaType: "application/octet-stream", Digest: h, Size: int64(len(p))}
}

// requests returns the requests whose log line contains s.
func (f *fake) requests(s string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []string
	for _, line := range f.log {
		if strings.Contains(line, s) {
			found = append(found, line)
		}
	}
	return found
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.log = append(f.log, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Range"))
	before := f.before
	f.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	parts := strings.Split(r.URL.Path, "/")
	kind, id := parts[max(len(parts)-2, 0)], parts[len(parts)-1]
	f.mu.Lock()
	blob, isBlob := f.blobs[id]
	manifest, isManifest := f.manifests[id]
	f.mu.Unlock()
	switch {
	case kind == "blobs" && isBlob:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(blob))
	case kind == "manifests" && isManifest:
		var doc struct{ MediaType string }
		if json.Unmarshal(manifest, &doc) == nil {
			w.Header().Set("Content-Type", doc.MediaType)
		}
		w.Header().Set("Docker-Content-Digest", string(digestOf(manifest)))
		w.Write(manifest)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"errors":[{"code":"UNKNOWN","message":"no such thing"}]}`)
	}
}

// serve runs a handler on loopback and returns host and port.
func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// serveMem runs a handler on a network in memory.
func serveMem(t testing.TB, n *memNet, host string, h http.Handler) {
	t.Helper()
	s := &http.Server{Handler: h}
	l := n.listen(host + ":80")
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
}

// newClient returns a client that waits little. It is closed before the servers
// that were started before it.
func newClient(t testing.TB, cfg Config) *Client {
	t.Helper()
	if cfg.Retry == (Retry{}) {
		cfg.Retry = Retry{MinBackoff: time.Microsecond, MaxBackoff: time.Millisecond}
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// random returns n bytes that are the same in each run.
func random(n int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// blobOf returns the blob that d describes.
func blobOf(c *Client, host string, d v1.Descriptor) *Blob {
	return c.Blob(host+"/app", chunk.Blob(d.Digest.String()), d.Size)
}

// resolve finds an image by what the registry says, without keeping anything.
func resolve(ctx context.Context, c *Client, ref string, p v1.Platform) (*Image, error) {
	root, err := c.Head(ctx, ref)
	if err != nil {
		return nil, err
	}
	return OpenImage(ctx, ref, root, p, live{c})
}

// live are the documents of a registry.
type live struct{ c *Client }

func (l live) Manifest(ctx context.Context, repository string, d v1.Descriptor) ([]byte, error) {
	m, err := l.c.FetchManifest(ctx, repository, d.Digest.String())
	if err != nil {
		return nil, err
	}
	return m.Raw, nil
}

func (l live) Config(ctx context.Context, repository string, d v1.Descriptor) ([]byte, error) {
	return l.c.FetchBlob(ctx, repository, d)
}

// kept are a manifest and a config, whatever is asked for.
type kept struct{ manifest, config []byte }

func (k kept) Manifest(context.Context, string, v1.Descriptor) ([]byte, error) {
	return k.manifest, nil
}
func (k kept) Config(context.Context, string, v1.Descriptor) ([]byte, error) { return k.config, nil }

// openKept opens an image of the two.
func openKept(ref string, manifest, config []byte, p v1.Platform) (*Image, error) {
	return OpenImage(context.Background(), ref, descriptor(manifest), p, kept{manifest, config})
}
