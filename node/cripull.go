package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"graze/chunk"
	"graze/origin"
)

const (
	// snapshotterName is what containerd calls graze.
	snapshotterName = "graze"

	// documentPatience is how long the cluster may take for a document of an image
	// that containerd shall have without its registry.
	documentPatience = 20 * time.Second

	// criNamespace is where containerd keeps what CRI pulls.
	criNamespace = "k8s.io"
)

// managed marks an image as one of CRI's.
var managed = map[string]string{"io.cri-containerd.image": "managed"}

// A puller gives containerd images whose registry does not answer. It implements
// cri.Puller.
type puller struct {
	node    *Node
	address string // containerd's socket
}

// Pull implements cri.Puller. containerd gets what CRI's own pull would give it:
// manifests, config, snapshots, and the image by its name, its digest and its ID.
func (p puller) Pull(ctx context.Context, image string) error {
	name, err := origin.ParseName(image)
	if err != nil {
		return err
	}
	ref := name.String()
	ctd, err := p.containerd()
	if err != nil {
		return err
	}
	defer ctd.Close()
	ctx = namespaces.WithNamespace(ctx, criNamespace)
	img, err := ctd.Pull(ctx, ref,
		client.WithPullUnpack,
		client.WithPullSnapshotter(snapshotterName),
		client.WithPullLabels(managed),
		client.WithResolver(resolver{p.node.Library}),
		client.WithImageHandlerWrapper(snapshotters.AppendInfoHandlerWrapper(ref)),
	)
	if err != nil {
		return err
	}
	config, err := img.Config(ctx)
	if err != nil {
		return err
	}
	for _, alias := range []string{config.Digest.String(), name.Repository + "@" + img.Target().Digest.String()} {
		if err := setImage(ctx, ctd.ImageService(), images.Image{Name: alias, Target: img.Target(), Labels: managed}); err != nil {
			return err
		}
	}
	return nil
}

// Pulled implements cri.Puller. It keeps what the registry has just told containerd:
// what the image's name stands for, and the document that it stands for. The rest
// of the image is kept when the snapshotter asks for it.
func (p puller) Pulled(ctx context.Context, image string) error {
	name, err := origin.ParseName(image)
	if err != nil {
		return err
	}
	ctd, err := p.containerd()
	if err != nil {
		return err
	}
	defer ctd.Close()
	ctx = namespaces.WithNamespace(ctx, criNamespace)
	img, err := ctd.ImageService().Get(ctx, name.String())
	if err != nil {
		return err
	}
	root := img.Target
	h, err := v1.NewHash(root.Digest.String())
	if err != nil {
		return err
	}
	q := lookup{manifestLookup, name.String()}
	f := newFinding(q, []v1.Descriptor{{MediaType: types.MediaType(root.MediaType), Digest: h, Size: root.Size}})
	if err := f.check(q); err != nil {
		return err
	}
	lib := p.node.Library
	if !lib.blobs.has(chunk.Blob(root.Digest), root.Size) {
		raw, err := content.ReadBlob(ctx, ctd.ContentStore(), root)
		if err != nil {
			return err
		}
		if kept, err := lib.blobs.write(raw); err != nil {
			return err
		} else if kept != chunk.Blob(root.Digest) {
			return fmt.Errorf("%w: what containerd has of %s is %s, not %s", chunk.ErrCorrupt, name, kept, root.Digest)
		}
	}
	lib.noteFound(f)
	return nil
}

// containerd returns a client of containerd, which the caller closes.
func (p puller) containerd() (*client.Client, error) {
	ctd, err := client.New(p.address, client.WithDefaultNamespace(criNamespace))
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", p.address, err)
	}
	return ctd, nil
}

// setImage has containerd know an image by a name.
func setImage(ctx context.Context, store images.Store, img images.Image) error {
	_, err := store.Create(ctx, img)
	if errdefs.IsAlreadyExists(err) {
		_, err = store.Update(ctx, img)
	}
	return err
}

// A resolver answers containerd's client in place of a registry: what references
// mean, manifests and configs. It implements remotes.Resolver.
type resolver struct{ *Library }

// Resolve implements remotes.Resolver.
func (r resolver) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	ctx, cancel := withoutRegistry(ctx)
	defer cancel()
	img, err := r.Library.Resolve(ctx, ref) // the documents are here then
	if err != nil {
		return "", ocispec.Descriptor{}, err
	}
	root, err := r.manifest(ctx, img.Repository, img.root, "")
	if err != nil {
		return "", ocispec.Descriptor{}, err
	}
	return ref, ocispec.Descriptor{MediaType: root.MediaType, Digest: digest.Digest(root.Digest), Size: int64(len(root.Raw))}, nil
}

// withoutRegistry bounds how long documents are waited for: those that no node has
// are waited for until the read deadline otherwise.
func withoutRegistry(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, documentPatience, fmt.Errorf("%w: no node has given the image's documents for %v", chunk.ErrUnavailable, documentPatience))
}

// Fetcher implements remotes.Resolver.
func (r resolver) Fetcher(_ context.Context, ref string) (remotes.Fetcher, error) {
	name, err := origin.ParseName(ref)
	if err != nil {
		return nil, err
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		h, err := v1.NewHash(desc.Digest.String())
		if err != nil {
			return nil, err
		}
		d, docs := v1.Descriptor{Digest: h, Size: desc.Size}, documents{Library: r.Library}
		var raw []byte
		ctx, cancel := withoutRegistry(ctx)
		defer cancel()
		switch {
		case images.IsManifestType(desc.MediaType), images.IsIndexType(desc.MediaType):
			raw, err = docs.Manifest(ctx, name.Repository, d)
		case images.IsConfigType(desc.MediaType):
			raw, err = docs.Config(ctx, name.Repository, d)
		default:
			err = fmt.Errorf("%w: %s of %s has to be fetched whole, as %s is not served lazily, and only its registry has it so",
				chunk.ErrUnavailable, desc.Digest, name.Repository, ref)
		}
		if err != nil {
			return nil, err
		}
		return io.NopCloser(bytes.NewReader(raw)), nil
	}), nil
}

// Pusher implements remotes.Resolver.
func (r resolver) Pusher(context.Context, string) (remotes.Pusher, error) {
	return nil, errors.New("nothing is pushed without a registry")
}
