package materialize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/v2/core/content"
	contentproxy "github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	leasesproxy "github.com/containerd/containerd/v2/core/leases/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// A Source reads blobs of repositories.
type Source interface {
	// Read returns the bytes of a blob from an offset on.
	Read(ctx context.Context, repository string, blob digest.Digest, size, off int64) (io.ReadCloser, error)
}

// Options say what is wanted. The zero value is useful.
type Options struct {
	// Namespace is containerd's. Default: "default".
	Namespace string

	// Platforms are those of a multi-platform image whose blobs are wanted, beside
	// those whose manifests are there. Default: this machine's.
	Platforms []ocispec.Platform

	// Parallel is how many blobs are fetched at a time. Default: 3.
	Parallel int

	// Repository has the image's blobs. Default: that of the image's name, or the
	// one that containerd remembers.
	Repository string

	// Progress is told of each blob that is fetched: how many of its bytes are
	// there. It must not block. Default: nobody is.
	Progress func(blob digest.Digest, done, total int64)
}

// A Report says what was done.
type Report struct {
	Blobs   int   `json:"blobs"`   // of the image
	Fetched int   `json:"fetched"` // that were missing
	Bytes   int64 `json:"bytes"`   // that were fetched
}

// leaseLife is how long containerd keeps what a broken off run has left.
const leaseLife = 24 * time.Hour

// Image sees to it that containerd, which conn leads to, has all blobs of an image.
func Image(ctx context.Context, conn grpc.ClientConnInterface, name string, src Source, opts Options) (Report, error) {
	ctx = namespaces.WithNamespace(ctx, cmp.Or(opts.Namespace, namespaces.Default))
	r := &run{
		store: contentproxy.NewContentStore(conn), src: src, opts: opts, name: name,
	}
	if len(opts.Platforms) == 0 {
		r.opts.Platforms = []ocispec.Platform{platforms.DefaultSpec()}
	}
	got, err := imagesapi.NewImagesClient(conn).Get(ctx, &imagesapi.GetImageRequest{Name: name})
	if err != nil {
		err = errgrpc.ToNative(err)
		if errdefs.IsNotFound(err) {
			return Report{}, fmt.Errorf("containerd has no image %q in namespace %q: 'ctr -n NAMESPACE images ls' lists the names", name, cmp.Or(opts.Namespace, namespaces.Default))
		}
		return Report{}, fmt.Errorf("look up the image: %w", err)
	}
	ctx, done, err := r.lease(ctx, conn)
	if err != nil {
		return Report{}, err
	}
	target := got.GetImage().GetTarget()
	top := ocispec.Descriptor{MediaType: target.GetMediaType(), Digest: digest.Digest(target.GetDigest()), Size: target.GetSize()}
	if err = r.findRepository(ctx, top); err == nil {
		err = r.walk(ctx, top)
	}
	return Report{Blobs: r.blobs, Fetched: int(r.fetched.Load()), Bytes: r.bytes.Load()}, errors.Join(err, done(err == nil))
}

// A run gives containerd one image.
type run struct {
	store      content.Store
	src        Source
	opts       Options
	name       string
	repository string

	blobs          int
	fetched, bytes atomic.Int64
}

// lease keeps the garbage collection away from what is not labelled yet. done gives
// it up if all went well; else it ends by itself, so that the next run finds what
// this one has fetched.
func (r *run) lease(ctx context.Context, conn grpc.ClientConnInterface) (context.Context, func(bool) error, error) {
	manager := leasesproxy.NewLeaseManager(leasesapi.NewLeasesClient(conn))
	l, err := manager.Create(ctx, leases.WithRandomID(), leases.WithExpiration(leaseLife))
	if err != nil {
		return nil, nil, fmt.Errorf("take a lease: %w", err)
	}
	return leases.WithLease(ctx, l.ID), func(well bool) error {
		if !well {
			return nil
		}
		return manager.Delete(context.WithoutCancel(ctx), l)
	}, nil
}

// walk fetches a blob and what it names: indexes and manifests one after the other,
// then configs and layers some at a time.
func (r *run) walk(ctx context.Context, target ocispec.Descriptor) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(cmp.Or(r.opts.Parallel, 3))
	children := images.SetChildrenLabels(r.store, images.HandlerFunc(func(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		list, err := images.Children(ctx, r.store, d)
		if err == nil && images.IsIndexType(d.MediaType) {
			list, err = r.wanted(ctx, list)
		}
		return list, err
	}))
	err := images.Walk(gctx, images.HandlerFunc(func(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		r.blobs++
		if images.IsIndexType(d.MediaType) || images.IsManifestType(d.MediaType) {
			if err := r.ensure(ctx, d); err != nil {
				return nil, err
			}
			return children(ctx, d)
		}
		g.Go(func() error { return r.ensure(gctx, d) })
		return nil, nil
	}), target)
	if err != nil {
		cancel()
	}
	if late := g.Wait(); late != nil && !errors.Is(late, context.Canceled) {
		return late
	}
	return err
}

// wanted returns those manifests of an index that are there or whose platform is
// wanted.
func (r *run) wanted(ctx context.Context, list []ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	matcher := platforms.Any(r.opts.Platforms...)
	var kept []ocispec.Descriptor
	for _, d := range list {
		there, err := content.Exists(ctx, r.store, d)
		if err != nil {
			return nil, err
		}
		if there || d.Platform != nil && matcher.Match(*d.Platform) {
			kept = append(kept, d)
		}
	}
	if len(kept) == 0 {
		return nil, errors.New("the image is for none of the wanted platforms")
	}
	return kept, nil
}
