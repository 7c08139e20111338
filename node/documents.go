package node

import (
	"context"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/chunk"
	"graze/origin"
)

// fromManifests marks, among the places that may have a blob, a repository that
// has it as a manifest: registries keep those apart. No repository has a complete
// name that begins so.
const fromManifests = "manifests/"

// documents are the manifests and configs of images, for package origin: those
// that the folder has, or that are fetched and kept.
type documents struct {
	*Library
	holder chunk.PeerID // a node that is known to have them, or ""
}

// Manifest implements origin.Documents.
func (d documents) Manifest(ctx context.Context, repository string, desc v1.Descriptor) ([]byte, error) {
	return d.document(ctx, blobSource{Repository: fromManifests + repository, Digest: chunk.Blob(desc.Digest.String()), Size: desc.Size, holder: d.holder}, maxManifest)
}

// Config implements origin.Documents.
func (d documents) Config(ctx context.Context, repository string, desc v1.Descriptor) ([]byte, error) {
	return d.document(ctx, blobSource{Repository: repository, Digest: chunk.Blob(desc.Digest.String()), Size: desc.Size, holder: d.holder}, maxConfig)
}

// document returns a blob of at most limit bytes, and keeps it.
func (l *Library) document(ctx context.Context, src blobSource, limit int64) ([]byte, error) {
	p, err := l.blobs.read(src.Digest, limit)
	if !isMissing(err) {
		return p, err
	}
	if src.Size > limit {
		return nil, fmt.Errorf("%s of %s has %d bytes, more than the %d allowed", src.Digest, src.Repository, src.Size, limit)
	}
	if p, err = l.fetch(ctx, src); err != nil {
		return nil, err
	}
	if _, err := l.blobs.write(p); err != nil {
		// It can be used all the same, with the registry there.
		l.log.Warn("blob can't be kept", "blob", src.Digest, "err", err)
	}
	return p, nil
}

// fetchBlob returns a whole blob or manifest of a repository.
func (l *Library) fetchBlob(ctx context.Context, src blobSource) ([]byte, error) {
	if repository, ok := strings.CutPrefix(src.Repository, fromManifests); ok {
		m, err := l.client.FetchManifest(ctx, repository, string(src.Digest))
		if err != nil {
			return nil, err
		}
		return m.Raw, nil
	}
	h, err := v1.NewHash(string(src.Digest))
	if err != nil {
		return nil, err
	}
	return l.client.FetchBlob(ctx, src.Repository, v1.Descriptor{Digest: h, Size: src.Size})
}

// manifest returns a manifest of a repository that a finding names.
func (l *Library) manifest(ctx context.Context, repository string, d v1.Descriptor, holder chunk.PeerID) (*origin.Manifest, error) {
	raw, err := documents{l, holder}.Manifest(ctx, repository, d)
	if err != nil {
		return nil, err
	}
	return origin.ParseManifest(raw)
}
