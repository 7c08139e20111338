package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/node"
)

// publishMulti gives an image a second tag, that of an index of one platform.
func (r *clusterRegistry) publishMulti(t testing.TB, img *testImage) *testImage {
	t.Helper()
	repository, _, _ := strings.Cut(strings.TrimPrefix(img.ref, registryAddr+":5000/"), ":")
	base := "http://" + r.addr + "/v2/" + repository + "/manifests/"
	resp, err := http.Head(base + "1")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	digest, err := v1.NewHash(resp.Header.Get("Docker-Content-Digest"))
	if err != nil {
		t.Fatal(err)
	}
	platform, err := v1.ParsePlatform("linux/" + runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{{
		MediaType: types.OCIManifestSchema1, Digest: digest, Size: resp.ContentLength, Platform: platform,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, base+"multi", bytes.NewReader(index))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", string(types.OCIImageIndex))
	if resp, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatal(resp.Status)
	}
	multi := *img
	multi.ref = registryAddr + ":5000/" + repository + ":multi"
	return &multi
}

// TestClusterMetadata has all nodes start an image at the same moment. The registry
// is asked once what the tag stands for and which indexes there are, and once for
// each manifest, config and tree.
func TestClusterMetadata(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 8, racks: 2, rate: "400mbit", origin: "400mbit", encrypt: true})
	ctx := waiting(t)
	c.startAll(t, ctx)
	img := c.reg.publishMulti(t, c.reg.publish(t, "rollout", clusterLayers("rollout", 2<<20)))
	c.reg.forget(t)
	mountAll(t, ctx, c.nodes, img)
	asked := c.reg.asked(t, img.layers)
	heads, gets := 0, 0
	for what, n := range asked {
		t.Logf("%d times %s", n, what)
		if n > 1 {
			t.Errorf("the registry was asked %d times for %s", n, what)
		}
		if strings.HasPrefix(what, http.MethodHead) {
			heads += n
		} else {
			gets += n
		}
	}
	// The index, the manifest, the config; the list of referrers, the index's
	// manifest; and three trees.
	if heads != 1 || gets != 8 {
		t.Errorf("the registry has answered %d HEAD and %d GET requests for metadata, want 1 and 8", heads, gets)
	}
}

// TestClusterJoinsInOutage has nodes join that have nothing while the registry is
// away. They start an image that others have, by its tag, which is marked as
// stale, and by its digest.
func TestClusterJoinsInOutage(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 6, racks: 2, rate: "400mbit", origin: "400mbit", encrypt: true, settings: `tag-freshness = "1ms"`})
	ctx := waiting(t)
	first, late := c.nodes[:4], c.nodes[4:]
	each(t, first, func(n *clusterNode) error { return n.start(ctx) })
	c.settle(t, ctx)
	img := c.reg.publishMulti(t, c.reg.publish(t, "outage", clusterLayers("outage", 4<<20)))
	mountAll(t, ctx, first, img)
	readAll(t, ctx, first, img)
	for i, row := range []struct {
		name string
		mode outageMode
	}{{"refused", refuses}, {"silent", silent}} {
		t.Run(row.name, func(t *testing.T) {
			c.reg.set(row.mode)
			n := late[i]
			if err := n.start(ctx); err != nil {
				t.Fatal(err)
			}
			c.settle(t, ctx)
			info := n.startImage(t, ctx, img)
			if !info.Stale {
				t.Error("a tag is not marked as stale")
			}
			ps, stats := graze(t, "ps", "--state", n.state), graze(t, "stats", "--state", n.state)
			if !strings.Contains(ps, img.ref+" (stale)") || !strings.Contains(stats, img.ref+" (stale)") {
				t.Errorf("the mount is not shown as stale:\n%s%s", ps, stats)
			}
			if err := n.unmount(ctx); err != nil {
				t.Fatal(err)
			}
			byDigest := *img
			byDigest.ref = strings.TrimSuffix(img.ref, ":multi") + "@" + string(info.Digest)
			if info := n.startImage(t, ctx, &byDigest); info.Stale {
				t.Error("a digest is marked as stale")
			}
			if err := n.unmount(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
	if attempts := c.reg.set(works); attempts > 0 {
		t.Logf("%d connections were tried during the second outage", attempts)
	}
	if info := late[0].startImage(t, ctx, img); info.Stale {
		t.Error("a tag is marked as stale with the registry back")
	}
}

// startImage mounts an image on the node, and reads all of it.
func (n *clusterNode) startImage(t testing.TB, ctx context.Context, img *testImage) node.MountStats {
	t.Helper()
	begin := time.Now()
	if err := n.mount(ctx, img.ref); err != nil {
		t.Fatal(err)
	}
	s, err := n.stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Mounts) != 1 {
		t.Fatalf("%d mounts", len(s.Mounts))
	}
	mounted := time.Since(begin)
	if err := n.read(ctx, img.files); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s mounted after %.2f s, all read after %.2f s", n.name, img.ref, mounted.Seconds(), time.Since(begin).Seconds())
	return s.Mounts[0]
}
