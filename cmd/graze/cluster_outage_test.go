package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"graze/image/imagetest"
	"graze/node"
)

// publishMulti gives an image a second tag, that of an index of one platform.
func (r *clusterRegistry) publishMulti(t testing.TB, img *testImage) *testImage {
	t.Helper()
	repository, _, _ := strings.Cut(strings.TrimPrefix(img.ref, registryAddr+":5000/"), ":")
	pushMulti(t, r.addr, repository)
	multi := *img
	multi.ref = registryAddr + ":5000/" + repository + ":multi"
	return &multi
}

// pushMulti gives the tag "multi" to an index whose only image is that with the tag
// "1".
func pushMulti(t testing.TB, addr, repository string) {
	t.Helper()
	base := "http://" + addr + "/v2/" + repository + "/manifests/"
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
}

// TestClusterAsksOnce is about what a cluster asks a registry that is there, and one
// that is away.
func TestClusterAsksOnce(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 8, racks: 2, rate: "400mbit", origin: "400mbit", encrypt: true})
	c.startAll(t, waiting(t))
	t.Run("metadata", c.metadata)
	t.Run("outage", c.waits)
}

// metadata has all nodes start an image at the same moment. The registry is asked
// once what the tag stands for and which indexes there are, and once for each
// manifest, config and tree.
func (c *testCluster) metadata(t *testing.T) {
	ctx := waiting(t)
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

	// A table of contents in a layer takes one request or two.
	c.unmountAll(t, ctx)
	stargz, _ := c.reg.pushAs(t, "stargz", clusterLayers("stargz", 2<<20), imagetest.EStargz("estargz"))
	c.reg.forget(t)
	mountAll(t, ctx, c.nodes, stargz)
	for what, n := range c.reg.asked(t, nil) {
		if most := 1 + strings.Count(what, " blobs/"); n > most {
			t.Errorf("the registry was asked %d times for %s", n, what)
		}
	}
	c.unmountAll(t, ctx)
}

// TestClusterJoinsInOutage has nodes join that have nothing while the registry is
// away. They start an image that others have, by its tag, which is marked as
// stale, and by its digest; one that has no index but that of a member; and one
// with tables of contents in its layers.
func TestClusterJoinsInOutage(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 6, racks: 2, rate: "400mbit", origin: "400mbit", encrypt: true, settings: `tag-freshness = "1ms"`})
	ctx := waiting(t)
	first, late := c.nodes[:4], c.nodes[4:]
	each(t, first, func(n *clusterNode) error { return n.start(ctx) })
	c.settle(t, ctx)
	img := c.reg.publishMulti(t, c.reg.publish(t, "outage", clusterLayers("outage", 4<<20)))
	mountAll(t, ctx, first, img)
	readAll(t, ctx, first, img)
	each(t, first, func(n *clusterNode) error { return n.unmount(ctx) })
	bare, _ := c.reg.pushBare(t, "bare", clusterLayers("bare", 2<<20))
	each(t, first, func(n *clusterNode) error { return n.mountBy(ctx, bare.ref, node.IndexOptions{Build: true}) })
	readAll(t, ctx, first, bare)
	each(t, first, func(n *clusterNode) error { return n.unmount(ctx) })
	stargz, _ := c.reg.pushAs(t, "stargz", clusterLayers("stargz", 2<<20), imagetest.EStargz("estargz"))
	mountAll(t, ctx, first, stargz)
	readAll(t, ctx, first, stargz)
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
			for _, other := range []*testImage{bare, stargz} {
				n.startImage(t, ctx, other)
				if err := n.unmount(ctx); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if attempts := c.reg.set(works); attempts > 0 {
		t.Logf("%d connections were tried during the second outage", attempts)
	}
	// It takes a moment until all have heard that the registry is back.
	for n := late[0]; n.startImage(t, ctx, img).Stale; {
		if err := n.unmount(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// startImage mounts an image on the node, and reads all of it.
func (n *clusterNode) startImage(t testing.TB, ctx context.Context, img *testImage) node.MountStats {
	t.Helper()
	begin := time.Now()
	if err := n.mountBy(ctx, img.ref, node.IndexOptions{Build: true}); err != nil {
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

// TestClusterOutlastsRegistry has each node read another part of an image, and the
// registry end when the cluster says that it is safe without. Then one node more
// is lost. The others read all of the image.
func TestClusterOutlastsRegistry(t *testing.T) {
	shape := clusterShape{nodes: 8, racks: 2, rate: "400mbit", origin: "400mbit", encrypt: true}
	t.Run("copies", func(t *testing.T) {
		shape := shape
		shape.copies = 2
		newCluster(t, shape).outlast(t, func(ctx context.Context, n *clusterNode) error {
			s, err := n.stats(ctx)
			if err != nil || len(s.Mounts) != 1 {
				return fmt.Errorf("%d mounts, %w", len(s.Mounts), err)
			}
			if safety := s.Mounts[0].Safety; !safety.Safe {
				return errors.New(safety.Why)
			}
			return nil
		})
	})
	t.Run("seeds", func(t *testing.T) {
		shape := shape
		shape.seeds = true
		newCluster(t, shape).outlast(t, func(ctx context.Context, n *clusterNode) error {
			if n.name != "node-0" && n.name != "node-1" {
				return nil
			}
			remote, err := node.Dial(node.Socket(n.state))
			if err != nil {
				return err
			}
			defer remote.Close()
			list, err := remote.SeedList(ctx)
			if err != nil || len(list) != 1 || list[0].Spans == 0 || list[0].Have < list[0].Spans {
				return fmt.Errorf("the seed holds %+v, %w", list, err)
			}
			return nil
		})
	})
}

// outlast does the test on one cluster. safe says whether a node thinks that the
// registry is not needed any more.
func (c *testCluster) outlast(t *testing.T, safe func(context.Context, *clusterNode) error) {
	ctx := waiting(t)
	c.startAll(t, ctx)
	img := c.reg.publish(t, "outlast", clusterLayers("outlast", sized(16<<20)))
	c.reg.forget(t)
	mountAll(t, ctx, c.nodes, img)
	each(t, c.nodes, func(n *clusterNode) error {
		var part []wantedFile
		for i, f := range img.files {
			if i%10 == slices.Index(c.nodes, n) {
				part = append(part, f)
			}
		}
		return n.read(ctx, part)
	})
	before, begin := c.reg.egress(t, img.layers, false), time.Now()
	each(t, c.nodes, func(n *clusterNode) error { return poll(ctx, func() error { return safe(ctx, n) }) })
	after := c.reg.egress(t, img.layers, false)
	t.Logf("the readers took %d bytes from the registry; %.1f s later all is safe, and the registry has sent %d, each byte %.3f times",
		before.bytes, time.Since(begin).Seconds(), after.bytes, after.ratio())
	t.Log("\n" + graze(t, "ps", "--state", c.nodes[3].state))

	c.reg.set(refuses)
	lost := c.nodes[len(c.nodes)-1]
	lost.kill()
	left := c.nodes[:len(c.nodes)-1]
	took := readAll(t, ctx, left, img)
	t.Logf("%d nodes have read all in %.2f s, without the registry and without %s", len(left), took.Seconds(), lost.name)
	each(t, left, func(n *clusterNode) error {
		s, err := n.stats(ctx)
		if err == nil && (len(s.Mounts) != 1 || s.Mounts[0].Errors > 0) {
			err = fmt.Errorf("it has seen errors: %+v", s.Mounts)
		}
		return err
	})
}

// waits has readers on all nodes wait for a registry that is away for a while. The
// cluster asks about once a second whether it is back, and then all readers get
// what they wait for.
func (c *testCluster) waits(t *testing.T) {
	ctx := waiting(t)
	img := c.reg.publish(t, "waiting", clusterLayers("waiting", 8<<20))
	mountAll(t, ctx, c.nodes, img)
	c.reg.set(refuses)
	// Each begins elsewhere, so that all homes are asked.
	var reading errgroup.Group
	for i, n := range c.nodes {
		for part := range slices.Chunk(img.files, (len(img.files)+7)/8) {
			at := i % len(part)
			reading.Go(func() error { return n.read(ctx, slices.Concat(part[at:], part[:at])) })
		}
	}
	done := make(chan error, 1)
	go func() { done <- reading.Wait() }()

	// A node needs some failures to know that the registry is down, and several
	// requests of it may be under way.
	settled, outage := 5*time.Second, 15*time.Second
	if os.Getenv(wholeClusterEnv) != "" {
		outage = time.Minute
	}
	pass(ctx, nil, settled)
	first := c.reg.set(refuses)
	pass(ctx, nil, outage-settled)
	select {
	case err := <-done:
		t.Fatal("reading ended without the registry: ", err)
	default:
	}
	then := c.reg.set(works)
	back := time.Now()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d connections were tried in the first %v, and %d in the %v after; all was read %.1f s after the registry was back",
		first, settled, then, outage-settled, time.Since(back).Seconds())
	if most := len(c.nodes) * 12; first > most {
		t.Errorf("%d connections were tried in the first %v, more than %d", first, settled, most)
	}
	if most := 2 * int((outage - settled).Seconds()); then > most || then == 0 {
		t.Errorf("%d connections were tried in %v of the outage, not 1 to %d", then, outage-settled, most)
	}
	each(t, c.nodes, func(n *clusterNode) error {
		s, err := n.stats(ctx)
		if err == nil && (len(s.Mounts) != 1 || s.Mounts[0].Errors > 0) {
			err = fmt.Errorf("it has seen errors: %+v", s.Mounts)
		}
		return err
	})
}
