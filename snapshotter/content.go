package snapshotter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"graze/chunk"
)

// What containerd's labels of a manifest say.
const (
	configLabel = "containerd.io/gc.ref.content.config"
	layerLabel  = "containerd.io/gc.ref.content.l."
)

const (
	maxConfig = 16 << 20 // bytes of an image's config
	maxKnown  = 10_000   // configs that are remembered
)

// A Content is a Finder that looks where containerd keeps manifests and configs:
// both are there before the first layer is asked for. It is for clients that don't
// name images, such as nerdctl, and containerd's transfer service where it is not
// set up to.
type Content struct {
	conn  *grpc.ClientConn
	store content.Store
	hosts []string

	mu    sync.Mutex // guards known
	known map[digest.Digest][]digest.Digest
}

// NewContent returns a Content that asks containerd on its socket. containerd
// remembers of a registry only the name, so hosts names those that have a port
// ("registry:5000").
func NewContent(socket string, hosts []string) (*Content, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &Content{conn: conn, store: proxy.NewContentStore(conn), hosts: hosts, known: map[digest.Digest][]digest.Digest{}}, nil
}

// Close ends the connection.
func (c *Content) Close() error { return c.conn.Close() }

// Find implements Finder. Of several images it takes the one that was pulled last.
func (c *Content) Find(ctx context.Context, chain chunk.Blob) (Found, error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return Found{}, err
	}
	ctx = namespaces.WithNamespace(ctx, ns) // for the call that is made, too
	var manifests []content.Info
	err = c.store.Walk(ctx, func(info content.Info) error {
		manifests = append(manifests, info)
		return nil
	}, fmt.Sprintf("labels.%q", configLabel))
	if err != nil {
		return Found{}, err
	}
	slices.SortFunc(manifests, func(a, b content.Info) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.Digest, b.Digest))
	})
	for _, m := range manifests {
		chains, err := c.chains(ctx, digest.Digest(m.Labels[configLabel]))
		if errdefs.IsNotFound(err) {
			continue // of another platform, or being removed
		}
		if err != nil {
			return Found{}, err
		}
		n := slices.Index(chains, digest.Digest(chain))
		name := c.name(m)
		if n < 0 || name == "" {
			continue
		}
		_, err = c.store.Info(ctx, digest.Digest(m.Labels[fmt.Sprint(layerLabel, n)]))
		return Found{Image: name, Fetched: err == nil}, nil
	}
	return Found{}, chunk.ErrNotFound
}

// chains returns the chain IDs of an image by its config.
func (c *Content) chains(ctx context.Context, config digest.Digest) ([]digest.Digest, error) {
	c.mu.Lock()
	chains, ok := c.known[config]
	c.mu.Unlock()
	if ok {
		return chains, nil
	}
	info, err := c.store.Info(ctx, config)
	if err != nil {
		return nil, err
	}
	if info.Size > maxConfig {
		return nil, fmt.Errorf("config %s has %d bytes: %w", config, info.Size, errdefs.ErrNotFound)
	}
	p, err := content.ReadBlob(ctx, c.store, ocispec.Descriptor{Digest: config, Size: info.Size})
	if err != nil {
		return nil, err
	}
	var image struct {
		RootFS ocispec.RootFS `json:"rootfs"`
	}
	// What is no config of an image has no layers.
	if err := json.Unmarshal(p, &image); err == nil {
		chains = identity.ChainIDs(image.RootFS.DiffIDs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxKnown {
		clear(c.known)
	}
	c.known[config] = chains
	return chains, nil
}

// name returns the complete name of a manifest by where containerd says that it
// came from, or "" if it does not say.
func (c *Content) name(m content.Info) string {
	for key, repositories := range m.Labels {
		host, ok := strings.CutPrefix(key, labels.LabelDistributionSource+".")
		repository, _, _ := strings.Cut(repositories, ",")
		if !ok || repository == "" {
			continue
		}
		for _, h := range c.hosts {
			if name, _, err := net.SplitHostPort(h); err == nil && name == host {
				host = h
				break
			}
		}
		return host + "/" + repository + "@" + m.Digest.String()
	}
	return ""
}
