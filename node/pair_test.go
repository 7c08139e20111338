package node

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"graze/chunk"
	"graze/dht"
	"graze/origin"
)

// A countingRegistry has whole blobs, and counts the requests for each.
type countingRegistry struct {
	mu    sync.Mutex // guards what follows
	blobs map[string][]byte
	asked map[string]int
	down  bool
}

func (r *countingRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	p, ok := r.blobs[req.URL.Path]
	down := r.down
	r.asked[req.Method+" "+req.URL.Path]++
	r.mu.Unlock()
	switch {
	case down:
		w.WriteHeader(http.StatusBadGateway)
	case !ok:
		w.WriteHeader(http.StatusNotFound)
	default:
		if strings.Contains(req.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", string(blobDigest(p)))
		}
		http.ServeContent(w, req, "", time.Time{}, strings.NewReader(string(p)))
	}
}

// count returns how often nodes have made a request.
func (r *countingRegistry) count(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[what]
}

// openPair runs two nodes that know each other until the test ends. Freshness is
// their TagFreshness.
func openPair(t *testing.T, freshness time.Duration) [2]*Node {
	t.Helper()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte(NewClusterKey()), 0o600); err != nil {
		t.Fatal(err)
	}
	var nodes [2]*Node
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	var join []string
	for i := range nodes {
		cfg := Config{State: filepath.Join(dir, string(rune('a'+i))), StoreLimit: 64 << 20, Origin: origin.Config{Retry: origin.Retry{Attempts: 1}}}
		cfg.Cluster = &ClusterConfig{KeyFile: key, Bulk: "127.0.0.1:0", Gossip: "127.0.0.1:0", P2P: "127.0.0.1:0", Join: join, TagFreshness: freshness}
		n, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = n
		wg.Go(func() {
			if err := errors.Join(n.Run(ctx), n.Close()); err != nil {
				t.Error(err)
			}
		})
		awaitView(t, n, func(v *dht.View) bool {
			join = []string{v.Self().Gossip}
			return v.Self().Gossip != "" && len(v.Members()) == i+1
		})
	}
	awaitView(t, nodes[0], func(v *dht.View) bool { return len(v.Members()) == len(nodes) })
	return nodes
}

// awaitView waits until a node's view is good.
func awaitView(t *testing.T, n *Node, good func(*dht.View) bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		changed := n.members.dht.Changed()
		if good(n.members.dht.View()) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatal("the nodes do not meet")
		}
	}
}

// TestPair has two nodes ask for what they need of a registry: one of them asks it
// for both.
func TestPair(t *testing.T) {
	reg := &countingRegistry{blobs: make(map[string][]byte), asked: make(map[string]int)}
	srv := httptest.NewServer(reg)
	t.Cleanup(srv.Close)
	repository := strings.TrimPrefix(srv.URL, "http://") + "/a"
	nodes := openPair(t, 0)

	manifest := []byte(`{"schemaVersion":2,"config":{"size":2,"digest":"` + string(blobDigest([]byte("{}"))) + `"}}`)
	large := make([]byte, chunk.MaxSize+1)
	reg.mu.Lock()
	reg.blobs["/v2/a/manifests/1"], reg.blobs["/v2/a/manifests/"+string(blobDigest(manifest))] = manifest, manifest
	reg.blobs["/v2/a/blobs/"+string(blobDigest(large))] = large
	reg.mu.Unlock()

	q := lookup{manifestLookup, repository + ":1"}
	for i, n := range nodes {
		f, err := n.find(t.Context(), q)
		if err != nil || string(blobDigest(manifest)) != f.Manifests[0].Digest.String() || f.stale {
			t.Fatalf("node %d: %+v, %v", i, f, err)
		}
		if _, err := n.manifest(t.Context(), repository, f.Manifests[0], f.from); err != nil {
			t.Fatal(err)
		}
		p, err := n.document(t.Context(), blobSource{Repository: repository, Digest: blobDigest(large), Size: int64(len(large))}, maxTree)
		if err != nil || len(p) != len(large) {
			t.Fatalf("node %d: a large blob: %d bytes, %v", i, len(p), err)
		}
	}
	for _, what := range []string{
		"HEAD /v2/a/manifests/1", "GET /v2/a/manifests/" + string(blobDigest(manifest)), "GET /v2/a/blobs/" + string(blobDigest(large)),
	} {
		if n := reg.count(what); n != 1 {
			t.Errorf("%d times %s", n, what)
		}
	}

	// Nobody knows a tag, and the registry says so, to each who asks.
	for _, n := range nodes {
		if _, err := n.find(t.Context(), lookup{manifestLookup, repository + ":none"}); !errors.Is(err, chunk.ErrNotFound) {
			t.Errorf("a tag that is not there: %v", err)
		}
	}
}

// TestPairInOutage has a registry go away after one node has asked it what a tag
// stands for. The other one gets that from there, as stale, and the manifest.
func TestPairInOutage(t *testing.T) {
	reg := &countingRegistry{blobs: make(map[string][]byte), asked: make(map[string]int)}
	srv := httptest.NewServer(reg)
	t.Cleanup(srv.Close)
	repository := strings.TrimPrefix(srv.URL, "http://") + "/a"
	nodes := openPair(t, time.Nanosecond)
	manifest := []byte(`{"schemaVersion":2,"config":{"size":2,"digest":"` + string(blobDigest([]byte("{}"))) + `"}}`)
	reg.mu.Lock()
	for _, id := range []string{"1", "2", "3", "4", "5", "6", string(blobDigest(manifest))} {
		reg.blobs["/v2/a/manifests/"+id] = manifest
	}
	reg.mu.Unlock()
	// Of several tags, either node is the home of some.
	tags := []string{"1", "2", "3", "4", "5", "6"}
	for _, tag := range tags {
		f, err := nodes[0].find(t.Context(), lookup{manifestLookup, repository + ":" + tag})
		if err != nil || f.stale {
			t.Fatalf("%+v, %v", f, err)
		}
		if _, err := nodes[0].manifest(t.Context(), repository, f.Manifests[0], ""); err != nil {
			t.Fatal(err)
		}
	}
	reg.mu.Lock()
	reg.down = true
	reg.mu.Unlock()
	for _, tag := range tags {
		f, err := nodes[1].find(t.Context(), lookup{manifestLookup, repository + ":" + tag})
		if err != nil || !f.stale || f.Manifests[0].Digest.String() != string(blobDigest(manifest)) {
			t.Fatalf("tag %s in an outage: %+v, %v", tag, f, err)
		}
		if _, err := nodes[1].manifest(t.Context(), repository, f.Manifests[0], f.from); err != nil {
			t.Error(err)
		}
	}
	digest := lookup{manifestLookup, repository + "@" + string(blobDigest(manifest))}
	if f, err := nodes[1].find(t.Context(), digest); err != nil || f.stale || f.Manifests[0].Size != int64(len(manifest)) {
		t.Errorf("a digest in an outage: %+v, %v", f, err)
	}
	if _, err := nodes[1].find(t.Context(), lookup{manifestLookup, repository + ":none"}); !errors.Is(err, chunk.ErrUnavailable) {
		t.Errorf("a tag that nobody knows: %v", err)
	}
}
