package origin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

// An Image is the image of one platform. Its manifest has been checked against
// Digest, its config against the manifest.
type Image struct {
	Reference  string     // complete: "docker.io/library/alpine:3"
	Repository string     // "docker.io/library/alpine"
	Digest     chunk.Blob // of the manifest
	MediaType  string     // of the manifest
	Platform   v1.Platform

	Manifest []byte
	Config   []byte
	Layers   []Layer // the lowest first

	// DiffIDs are the digests of the layers' uncompressed archives. There are as
	// many as Layers.
	DiffIDs []chunk.Blob

	// Beside are the manifests in the same index that are about this image, or have
	// it in another format: the index vouches for them as it does for the image.
	Beside []v1.Descriptor
}

// A Layer is one layer of an image as the manifest describes it.
type Layer struct {
	Digest      chunk.Blob
	Size        int64 // of the blob in bytes
	MediaType   string
	Annotations map[string]string
}

// newImage checks a manifest and its config.
func newImage(ref reference, m *Manifest, config []byte) (*Image, error) {
	img := &Image{
		Reference:  ref.String(),
		Repository: ref.repo.String(),
		Digest:     m.Digest,
		MediaType:  m.MediaType,
		Manifest:   m.Raw,
		Config:     config,
	}
	if want := chunk.Blob(m.Image.Config.Digest.String()); digestOf(config) != want {
		return nil, corruptf("config has digest %s, not %s", digestOf(config), want)
	}
	var conf struct {
		v1.Platform
		RootFS struct {
			DiffIDs []chunk.Blob `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(config, &conf); err != nil {
		return nil, corruptf("config is not valid JSON: %w", err)
	}
	img.Platform = conf.Platform
	for _, l := range m.Image.Layers {
		if err := checkLayerType(l.MediaType); err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.Digest, err)
		}
		img.Layers = append(img.Layers, Layer{
			Digest:      chunk.Blob(l.Digest.String()),
			Size:        l.Size,
			MediaType:   string(l.MediaType),
			Annotations: l.Annotations,
		})
	}
	if got, want := len(conf.RootFS.DiffIDs), len(img.Layers); got != want {
		return nil, corruptf("config has %d diff_ids for %d layers", got, want)
	}
	for _, d := range conf.RootFS.DiffIDs {
		if err := checkDigest(d); err != nil {
			return nil, corruptf("config: diff_ids: %w", err)
		}
	}
	img.DiffIDs = conf.RootFS.DiffIDs
	return img, nil
}

// dockerZstdLayer is what BuildKit calls zstd layers in Docker's manifests.
const dockerZstdLayer types.MediaType = "application/vnd.docker.image.rootfs.diff.tar.zstd"

// checkLayerType returns an error unless t is an archive that the registry
// itself has, plain or compressed, or a blob of chunks.
func checkLayerType(t types.MediaType) error {
	switch t {
	case types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer,
		types.DockerLayer, types.DockerUncompressedLayer, dockerZstdLayer, NydusBlobType:
		return nil
	}
	switch {
	case !t.IsDistributable(), t == types.OCIRestrictedLayer+"+zstd", strings.Contains(string(t), "nondistributable"):
		return fmt.Errorf("media type %.100q is of a foreign layer, which is not in the registry", string(t))
	case strings.HasSuffix(string(t), "+encrypted"):
		return fmt.Errorf("media type %.100q is of an encrypted layer, which is not supported", string(t))
	}
	return fmt.Errorf("media type %.100q is not that of a layer of a container image", string(t))
}

// maxIndexDepth bounds how deep indexes may be nested.
const maxIndexDepth = 3

// Documents has the documents that images consist of besides their layers. The
// bytes that its methods return have the digest of d, and are those of OpenImage
// then.
type Documents interface {
	Manifest(ctx context.Context, repository string, d v1.Descriptor) ([]byte, error)
	Config(ctx context.Context, repository string, d v1.Descriptor) ([]byte, error)
}

// OpenImage finds the image that a reference means on a platform. root is what
// the reference stands for, which may be an index. The zero Platform is Linux on
// this machine's processor.
func OpenImage(ctx context.Context, ref string, root v1.Descriptor, platform v1.Platform, docs Documents) (*Image, error) {
	r, err := parseReference(ref)
	if err != nil {
		return nil, &chunk.Error{Op: "resolve", What: ref, Err: err}
	}
	fail := func(err error) error {
		return &chunk.Error{Op: "resolve", What: r.String(), From: r.registry, Err: err}
	}
	want := normalize(platform)
	var others []v1.Descriptor
	m, err := readManifest(ctx, r, root, docs)
	for depth := 0; err == nil && m.Index != nil; depth++ {
		if depth == maxIndexDepth {
			return nil, fail(fmt.Errorf("indexes are nested more than %d deep", maxIndexDepth))
		}
		var d v1.Descriptor
		if d, err = choose(m.Index, want); err != nil {
			return nil, fail(err)
		}
		others = beside(m.Index, &d)
		m, err = readManifest(ctx, r, d, docs)
	}
	if err != nil {
		return nil, err
	}
	desc := m.Image.Config
	if !isConfig(desc.MediaType) {
		return nil, fail(fmt.Errorf("config has media type %.100q: this is an artifact, not a container image", string(desc.MediaType)))
	}
	if desc.Size > maxConfig {
		return nil, fail(fmt.Errorf("config has %d bytes, over %d", desc.Size, maxConfig))
	}
	config := desc.Data // it may come with the manifest
	if int64(len(config)) != desc.Size || digestOf(config) != chunk.Blob(desc.Digest.String()) {
		if config, err = docs.Config(ctx, r.repo.String(), desc); err != nil {
			return nil, err
		}
	}
	img, err := newImage(r, m, config)
	if err != nil {
		return nil, fail(err)
	}
	img.Beside = others
	if p := img.Platform; p.OS != "" && p.Architecture != "" && rank(want, p) < 0 {
		return nil, fail(fmt.Errorf("image is for %s only, not for %s", p, want))
	}
	return img, nil
}

// readManifest gets and reads a manifest or an index.
func readManifest(ctx context.Context, r reference, d v1.Descriptor, docs Documents) (*Manifest, error) {
	raw, err := docs.Manifest(ctx, r.repo.String(), d)
	if err != nil {
		return nil, err
	}
	m, err := ParseManifest(raw)
	if err == nil && m.Digest != chunk.Blob(d.Digest.String()) {
		err = corruptf("manifest has digest %s, not %s", m.Digest, d.Digest)
	}
	if err != nil {
		return nil, &chunk.Error{Op: "resolve", What: r.String(), From: r.registry, Err: err}
	}
	return m, nil
}

// FetchBlob returns a whole blob, checked against its digest. It is for small
// ones: up to 128 MiB.
func (c *Client) FetchBlob(ctx context.Context, repository string, d v1.Descriptor) ([]byte, error) {
	r, err := parseRepo(repository)
	if err == nil {
		err = checkSizes([]v1.Descriptor{d})
	}
	if err == nil && d.Size > maxWhole {
		err = fmt.Errorf("blob has %d bytes, over %d", d.Size, maxWhole)
	}
	if err != nil {
		return nil, &chunk.Error{Op: "fetch", What: d.Digest.String(), Err: err}
	}
	return c.fetchBlob(ctx, r, d)
}

func (c *Client) fetchBlob(ctx context.Context, r repo, d v1.Descriptor) ([]byte, error) {
	digest := chunk.Blob(d.Digest.String())
	what := r.String() + "@" + string(digest)
	es, err := c.endpoints(r.registry, canPull)
	if err != nil {
		return nil, &chunk.Error{Op: "fetch", What: what, Err: err}
	}
	var blob []byte
	err = c.each(ctx, es, "fetch", what, func(ctx context.Context, e *endpoint) error {
		return c.get(ctx, e, request{
			url:   e.url(r, "blobs/"+string(digest), nil),
			scope: scope{r.path, "pull"},
		}, func(a *answer) error {
			p, err := readAll(a.Body, d.Size)
			if err != nil {
				return err
			}
			if got := digestOf(p); got != digest {
				return corruptf("%d bytes with digest %s", len(p), got)
			}
			blob = p
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return blob, nil
}
