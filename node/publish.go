package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
	"graze/origin"
)

// An index is published as an artifact whose subject is the image's manifest.
// It has a tree and a checkpoints blob for each layer, which are told apart by
// their media types and carry the layer's digest.
const (
	indexArtifact        = "application/vnd.graze.index.v1"
	treeMediaType        = "application/vnd.graze.index.tree.v1"
	checkpointsMediaType = "application/vnd.graze.index.checkpoints.v1"
	layerAnnotation      = "graze.index.layer"
)

// An Index is what BuildIndex made of an image, or found there already.
type Index struct {
	Layers []LayerReport
	image  *Image
	list   []*layerIndex
}

// BuildIndex makes graze's own index of every layer of an image that has no
// usable index; one of SOCI is not enough. Layers that were indexed before, for any image, are not read
// again.
func (l *Library) BuildIndex(ctx context.Context, img *Image, opts IndexOptions) (*Index, error) {
	opts.Build, opts.own = true, true
	list, err := l.openIndexes(ctx, img, opts)
	if err != nil {
		return nil, err
	}
	x := &Index{image: img, list: list}
	for _, one := range list {
		x.Layers = append(x.Layers, one.report)
	}
	return x, nil
}

// ErrNothingToPublish: every layer of the image has a table of contents of its
// own.
var ErrNothingToPublish = errors.New("every layer has an index of its own, there is nothing to publish")

// Publish puts the index into the image's repository, as a referrer of the
// image, and returns the digest of its manifest.
func (l *Library) Publish(ctx context.Context, x *Index) (chunk.Blob, error) {
	a, done, err := l.artifact(ctx, x)
	if err != nil {
		return "", err
	}
	defer done()
	d, err := l.client.PushArtifact(ctx, x.image.Repository, a)
	if err != nil {
		return "", err
	}
	return chunk.Blob(d.Digest.String()), nil
}

// artifact assembles the artifact of an index. The caller calls done when it has
// read the blobs.
func (l *Library) artifact(ctx context.Context, x *Index) (a *origin.Artifact, done func(), err error) {
	subject, err := v1.NewHash(string(x.image.Digest))
	if err != nil {
		return nil, nil, err
	}
	a = &origin.Artifact{
		Type: indexArtifact,
		Subject: v1.Descriptor{
			MediaType: types.MediaType(x.image.MediaType),
			Digest:    subject,
			Size:      int64(len(x.image.Manifest)),
		},
	}
	var files []*os.File
	done = func() {
		for _, f := range files {
			f.Close()
		}
	}
	for _, one := range x.list {
		if one.record == nil {
			continue // the layer has a table of contents of its own
		}
		for _, b := range []struct {
			digest    chunk.Blob
			mediaType types.MediaType
		}{{one.record.Tree, treeMediaType}, {one.record.Checkpoints, checkpointsMediaType}} {
			if b.digest == "" {
				continue
			}
			blob, f, err := l.artifactBlob(ctx, one.record, b.digest, b.mediaType)
			if err != nil {
				done()
				return nil, nil, err
			}
			files = append(files, f)
			a.Blobs = append(a.Blobs, blob)
		}
	}
	if len(a.Blobs) == 0 {
		done()
		return nil, nil, ErrNothingToPublish
	}
	return a, done, nil
}

// artifactBlob returns a blob of an index as it stands in the artifact, and the
// file that it is read from. A blob that only the registry has is fetched.
func (l *Library) artifactBlob(ctx context.Context, rec *layerRecord, digest chunk.Blob, mediaType types.MediaType) (origin.ArtifactBlob, *os.File, error) {
	f, err := l.blobs.open(digest)
	if isMissing(err) && digest == rec.Checkpoints {
		var p []byte
		if p, err = l.fetch(ctx, blobSource{Repository: rec.Repository, Digest: digest, Size: rec.CheckpointsSize}); err == nil {
			if _, err = l.blobs.write(p); err == nil {
				f, err = l.blobs.open(digest)
			}
		}
	}
	if err != nil {
		return origin.ArtifactBlob{}, nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return origin.ArtifactBlob{}, nil, errors.Join(err, f.Close())
	}
	h, err := v1.NewHash(string(digest))
	if err != nil {
		return origin.ArtifactBlob{}, nil, errors.Join(err, f.Close())
	}
	return origin.ArtifactBlob{
		Descriptor: v1.Descriptor{
			MediaType:   mediaType,
			Digest:      h,
			Size:        st.Size(),
			Annotations: map[string]string{layerAnnotation: string(rec.Layer)},
		},
		Content: f,
	}, f, nil
}

// publishedIndexes returns the records of graze's indexes among the referrers of
// the image, by the layers they are of. What can't be read is passed over.
func (s *search) publishedIndexes(ctx context.Context) (map[chunk.Blob][]layerRecord, error) {
	f, err := s.referrers()
	if err != nil {
		return nil, err
	}
	found := make(map[chunk.Blob][]layerRecord)
	for _, d := range f.Manifests {
		if d.ArtifactType != indexArtifact {
			continue
		}
		m, err := s.referrer(ctx, d, f.from)
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue
		}
		for layer, rec := range indexRecords(m.Image) {
			rec.Repository = s.img.Repository
			rec.Origin = "referrer " + d.Digest.String()
			rec.image = s.img.Digest
			found[layer] = append(found[layer], rec)
		}
	}
	return found, nil
}

// indexRecords reads the manifest of an artifact that publishes an index. Layers
// without a tree are left out; not every layer needs checkpoints.
func indexRecords(m *v1.Manifest) map[chunk.Blob]layerRecord {
	records := make(map[chunk.Blob]layerRecord)
	for _, d := range m.Layers {
		layer := chunk.Blob(d.Annotations[layerAnnotation])
		rec := records[layer]
		rec.Layer = layer
		switch d.MediaType {
		case treeMediaType:
			rec.Tree = chunk.Blob(d.Digest.String())
			rec.TreeSize = d.Size
		case checkpointsMediaType:
			rec.Checkpoints = chunk.Blob(d.Digest.String())
			rec.CheckpointsSize = d.Size
		default:
			continue
		}
		records[layer] = rec
	}
	for layer, rec := range records {
		if layer == "" || rec.Tree == "" {
			delete(records, layer)
		}
	}
	return records
}

// fetchTree returns the tree of an index from where it is published.
func (l *Library) fetchTree(ctx context.Context, rec layerRecord) ([]byte, error) {
	if rec.TreeSize > maxTree {
		return nil, fmt.Errorf("index %s has %d bytes, more than the %d allowed", rec.Tree, rec.TreeSize, int64(maxTree))
	}
	return l.document(ctx, blobSource{Repository: rec.Repository, Digest: rec.Tree, Size: rec.TreeSize, image: rec.image}, maxTree)
}

// WriteLayout writes the index as an OCI image layout to dir, which is made. It
// holds the artifact only: its subject stays in the registry.
func (l *Library) WriteLayout(ctx context.Context, x *Index, dir string) (chunk.Blob, error) {
	a, done, err := l.artifact(ctx, x)
	if err != nil {
		return "", err
	}
	defer done()
	manifest, err := a.Manifest()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "index.json")); err == nil {
		return "", fmt.Errorf("%s has an OCI layout already: name another folder", dir)
	}
	out := blobDir(filepath.Join(dir, "blobs"))
	for _, b := range a.Blobs {
		if err := out.copy(b.Content, b.Size, chunk.Blob(b.Digest.String())); err != nil {
			return "", err
		}
	}
	for _, p := range [][]byte{[]byte("{}"), manifest} {
		if _, err := out.write(p); err != nil {
			return "", err
		}
	}
	digest := blobDigest(manifest)
	h, err := v1.NewHash(string(digest))
	if err != nil {
		return "", err
	}
	index, err := json.Marshal(v1.IndexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests: []v1.Descriptor{{
			MediaType:    types.OCIManifestSchema1,
			ArtifactType: indexArtifact,
			Digest:       h,
			Size:         int64(len(manifest)),
		}},
	})
	if err != nil {
		return "", err
	}
	layout := []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return digest, errors.Join(
		os.WriteFile(filepath.Join(dir, "oci-layout"), layout, 0o644),
		os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644))
}
