package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/chunk"
	"graze/image/soci"
	"graze/origin"
)

// SOCI indexes are manifests whose layers are zTOCs. The type of the config tells
// the versions apart. One of the first version refers to the image, whose digest
// stays as it was; one of the second is named by the image's manifest, and so
// vouched for as the image is.
const (
	sociFirst  = "application/vnd.amazon.soci.index.v1+json"
	sociSecond = "application/vnd.amazon.soci.index.v2+json"

	// sociIndexOf is the annotation of a manifest that names its index, and sociLayer
	// that of a zTOC which names its layer.
	sociIndexOf = "com.amazon.soci.index-digest"
	sociLayer   = "com.amazon.soci.image-layer-digest"
)

// A ztoc is a zTOC that an index has.
type ztoc struct {
	v1.Descriptor
	origin string // where it is from, for a person
}

// soci opens the zTOC of a layer.
func (s *search) soci(ctx context.Context, n int) (*layerIndex, error) {
	layer := &s.img.Layers[n]
	found, err := s.ztocs()
	if err != nil {
		return nil, s.odd(ctx, err)
	}
	for _, z := range found[layer.Digest] {
		if err != nil { // of the one before
			s.log.Warn("index of a layer is not used", "layer", layer.Digest, "err", err)
		}
		var x *layerIndex
		x, err = s.openZTOC(ctx, layer, &z)
		if err == nil || !errors.Is(err, chunk.ErrCorrupt) && !errors.Is(err, soci.ErrUnsupported) && !isMissing(err) {
			return x, err
		}
		err = refusal{fmt.Errorf("%s: %w", z.origin, err)}
	}
	return nil, err
}

// openZTOC gets a zTOC, which is kept, and opens it.
func (s *search) openZTOC(ctx context.Context, layer *origin.Layer, z *ztoc) (*layerIndex, error) {
	src := blobSource{Repository: s.img.Repository, Digest: chunk.Blob(z.Digest.String()), Size: z.Size}
	whole := src
	whole.image = s.img.Digest
	p, err := s.document(ctx, whole, maxTree)
	if err != nil {
		return nil, err
	}
	l, err := soci.Open(p, soci.Config{Blob: layer.Digest, Size: layer.Size, ZTOC: src.Digest})
	if err != nil {
		return nil, err
	}
	x := &layerIndex{layer: l, blobs: []blobSource{src}}
	x.report.Index = fmt.Sprintf("zTOC %s of %s", src.Digest, z.origin)
	x.report.Tree = z.Size
	return x, nil
}

// findZTOCs returns the zTOCs of the image's layers: those that its manifest names,
// then those of its referrers.
func (s *search) findZTOCs(ctx context.Context) (map[chunk.Blob][]ztoc, error) {
	found := make(map[chunk.Blob][]ztoc)
	add := func(m *origin.Manifest, kind, from string) {
		if string(m.Image.Config.MediaType) != kind {
			return
		}
		for _, d := range m.Image.Layers {
			layer := chunk.Blob(d.Annotations[sociLayer])
			found[layer] = append(found[layer], ztoc{d, from})
		}
	}
	m, err := s.namedSOCI(ctx)
	if err != nil {
		return nil, err
	}
	if m != nil {
		add(m, sociSecond, fmt.Sprintf("the SOCI index %s, which the manifest names", m.Digest))
	}
	f, err := s.referrers()
	if err != nil {
		if len(found) > 0 {
			return found, nil
		}
		return nil, err
	}
	for _, d := range f.Manifests {
		if d.ArtifactType != sociFirst {
			continue
		}
		m, err := s.referrer(ctx, d, f.from)
		if err != nil {
			return nil, err
		}
		if m != nil {
			add(m, sociFirst, fmt.Sprintf("the SOCI index %s, which refers to the image", m.Digest))
		}
	}
	return found, nil
}

// namedSOCI returns the index that the image's manifest names; nil if there is none.
func (s *search) namedSOCI(ctx context.Context) (*origin.Manifest, error) {
	var manifest struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(s.img.Manifest, &manifest); err != nil {
		return nil, fmt.Errorf("%w: manifest: %w", chunk.ErrCorrupt, err)
	}
	named := manifest.Annotations[sociIndexOf]
	if named == "" {
		return nil, nil
	}
	digest, err := v1.NewHash(named)
	if err != nil {
		return nil, fmt.Errorf("%w: annotation %s: %w", chunk.ErrCorrupt, sociIndexOf, err)
	}
	desc, holder := v1.Descriptor{Digest: digest}, chunk.PeerID("")
	for _, d := range s.img.Beside {
		if d.Digest == digest {
			desc = d
		}
	}
	if desc.Size == 0 { // the image was asked for without the index that has both
		f, err := s.find(ctx, lookup{manifestLookup, s.img.Repository + "@" + named})
		if isMissing(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		desc, holder = f.Manifests[0], f.from
	}
	return s.referrer(ctx, desc, holder)
}
