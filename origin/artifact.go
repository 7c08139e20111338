package origin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

// An Artifact is something that is kept beside an image, such as its index.
type Artifact struct {
	Type        string        // its artifactType, a media type
	Subject     v1.Descriptor // the image's manifest: media type, digest and size
	Annotations map[string]string
	Blobs       []ArtifactBlob
}

// An ArtifactBlob is one of the blobs of an Artifact.
type ArtifactBlob struct {
	v1.Descriptor
	Content io.ReaderAt // its first Size bytes
}

// emptyConfig is the config of artifacts, which need none.
const emptyConfig = "{}"

// Manifest returns the artifact's manifest: the same bytes for the same artifact.
func (a *Artifact) Manifest() ([]byte, error) {
	if a.Type == "" {
		return nil, errors.New("artifact has no type")
	}
	if a.Subject.MediaType == "" {
		return nil, errors.New("artifact's subject has no media type")
	}
	config, err := v1.NewHash(string(digestOf([]byte(emptyConfig))))
	if err != nil {
		return nil, err
	}
	subject := v1.Descriptor{MediaType: a.Subject.MediaType, Digest: a.Subject.Digest, Size: a.Subject.Size}
	m := v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		ArtifactType:  a.Type,
		// Registries that don't know artifactType take the config's type for it.
		Config:      v1.Descriptor{MediaType: types.MediaType(a.Type), Digest: config, Size: int64(len(emptyConfig)), Data: []byte(emptyConfig)},
		Layers:      []v1.Descriptor{},
		Annotations: a.Annotations,
		Subject:     &subject,
	}
	for _, b := range a.Blobs {
		m.Layers = append(m.Layers, b.Descriptor)
	}
	if err := checkSizes(append([]v1.Descriptor{subject}, m.Layers...)); err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// PushArtifact uploads an artifact to the repository of its subject: the blobs,
// then the manifest. If the registry doesn't list it as a referrer by itself, it
// is added to the index under the tag sha256-<hex>. It returns the descriptor of
// the manifest.
func (c *Client) PushArtifact(ctx context.Context, repository string, a *Artifact) (v1.Descriptor, error) {
	fail := func(err error) (v1.Descriptor, error) {
		return v1.Descriptor{}, &chunk.Error{Op: "push artifact", What: repository, Err: err}
	}
	r, err := parseRepo(repository)
	if err != nil {
		return fail(err)
	}
	raw, err := a.Manifest()
	if err != nil {
		return fail(err)
	}
	digest, err := v1.NewHash(string(digestOf(raw)))
	if err != nil {
		return fail(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return fail(err)
	}
	blobs := append([]ArtifactBlob{{m.Config, bytes.NewReader([]byte(emptyConfig))}}, a.Blobs...)
	for _, b := range blobs {
		if err := c.PushBlob(ctx, repository, b.Descriptor, b.Content); err != nil {
			return v1.Descriptor{}, err
		}
	}
	d := v1.Descriptor{
		MediaType: m.MediaType, Digest: digest, Size: int64(len(raw)),
		ArtifactType: a.Type, Annotations: a.Annotations,
	}
	header, err := c.pushManifest(ctx, reference{repo: r, digest: chunk.Blob(digest.String())}, string(m.MediaType), raw)
	if err != nil {
		return v1.Descriptor{}, err
	}
	if header.Get("OCI-Subject") == "" {
		if err := c.addReferrer(ctx, reference{repo: r, tag: referrersTag(chunk.Blob(a.Subject.Digest.String()))}, d); err != nil {
			return v1.Descriptor{}, err
		}
	}
	return d, nil
}

// maxTagRaces bounds how often the index of referrers is written anew because
// somebody else has replaced it.
const maxTagRaces = 5

// addReferrer adds a manifest to the index of referrers under a tag. Registries
// can't make that one step. Pushes of this client take turns; for those of
// others, the index is read again after it was written.
func (c *Client) addReferrer(ctx context.Context, ref reference, d v1.Descriptor) error {
	select {
	case c.tagTurn <- struct{}{}:
		defer func() { <-c.tagTurn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for race := 0; ; race++ {
		index, err := c.referrersIndex(ctx, ref)
		if err != nil {
			return err
		}
		for _, have := range index.Manifests {
			if have.Digest == d.Digest {
				return nil
			}
		}
		if race == maxTagRaces {
			return &chunk.Error{Op: "push", What: ref.String(), Err: errors.New("index of referrers is replaced by others all the time: try again")}
		}
		if len(index.Manifests) >= maxReferrers {
			return &chunk.Error{Op: "push", What: ref.String(), Err: fmt.Errorf("index of referrers is full: %d entries", len(index.Manifests))}
		}
		index.Manifests = append(index.Manifests, d)
		raw, err := json.Marshal(index)
		if err != nil {
			return err
		}
		if _, err := c.pushManifest(ctx, ref, string(types.OCIImageIndex), raw); err != nil {
			return err
		}
	}
}

// referrersIndex gets the index of referrers from where it is pushed to; an
// empty one if there is none.
func (c *Client) referrersIndex(ctx context.Context, ref reference) (*v1.IndexManifest, error) {
	var m *Manifest
	err := c.pushing(ctx, "push", ref, func(ctx context.Context, e *endpoint) (err error) {
		m, err = c.manifestFrom(ctx, e, ref)
		return err
	})
	switch {
	case errors.Is(err, chunk.ErrNotFound):
		return &v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}, nil
	case err != nil:
		return nil, err
	case m.Index == nil:
		return nil, &chunk.Error{Op: "push", What: ref.String(), Err: errors.New("tag is not an index of referrers")}
	}
	return m.Index, nil
}
