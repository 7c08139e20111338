package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"graze/chunk"
	"graze/image"
	"graze/image/estargz"
	"graze/image/toc"
	"graze/image/zstdchunked"
	"graze/origin"
)

// A contents is a table of contents that a layer has of its own, opened.
type contents struct {
	layer    *image.Layer
	digest   chunk.ID
	unproved bool // the manifest does not vouch for it
}

// hasContents reports whether the annotations of a layer say that it has a table of
// contents, and vouch for it.
func hasContents(annotations map[string]string) bool {
	return estargz.Annotated(annotations) || zstdchunked.Annotated(annotations)
}

// contentsAnnotations returns what of a layer's annotations is about its table of
// contents.
func contentsAnnotations(annotations map[string]string) map[string]string {
	about := maps.Clone(annotations)
	maps.DeleteFunc(about, func(key, _ string) bool {
		return key != estargz.TOCDigestAnnotation && !strings.Contains(key, "containers.zstd-chunked.")
	})
	return about
}

// openContents opens the table of contents of a layer, which blob reads. accept
// allows one for which nothing vouches.
func openContents(ctx context.Context, blob image.Ranger, layer *origin.Layer, accept bool) (*contents, error) {
	if zstdchunked.Annotated(layer.Annotations) || strings.Contains(layer.MediaType, "zstd") {
		z, err := zstdchunked.Open(ctx, blob, zstdchunked.Config{Blob: layer.Digest, Annotations: layer.Annotations, Accept: accept})
		if err != nil {
			return nil, err
		}
		return &contents{&z.Layer, z.TOCDigest, z.Unverified}, nil
	}
	policy := estargz.Refuse
	if accept {
		policy = estargz.Accept
	}
	es, err := estargz.Open(ctx, blob, estargz.Config{Blob: layer.Digest, Annotations: layer.Annotations, Unverified: policy})
	if err != nil {
		return nil, err
	}
	return &contents{&es.Layer, es.TOCDigest, es.Unverified}, nil
}

// lacksContents reports whether err says that a layer has no table of contents.
func lacksContents(err error) bool {
	return errors.Is(err, estargz.ErrNotEStargz) || errors.Is(err, zstdchunked.ErrNotZstdChunked)
}

// unusable reports whether err says that a layer has no table of contents, or none
// that may be used or is what the manifest says, so that another index is looked
// for.
func unusable(err error) bool {
	for _, about := range []error{
		estargz.ErrExternalTOC, estargz.ErrUnverified, zstdchunked.ErrUnverified, toc.ErrUnsupported, chunk.ErrCorrupt,
	} {
		if errors.Is(err, about) {
			return true
		}
	}
	return lacksContents(err)
}

// openTable opens the table of contents in a layer.
func (s *search) openTable(ctx context.Context, layer *origin.Layer, accept bool) (*layerIndex, error) {
	blob := image.Ranger(s.client.Blob(s.img.Repository, layer.Digest, layer.Size))
	if hasContents(layer.Annotations) {
		blob = s.tail(ctx, s.img.Repository, layer)
	}
	c, err := openContents(ctx, blob, layer, accept)
	if err != nil {
		return nil, err
	}
	x := &layerIndex{layer: c.layer}
	x.report.Index = "table of contents in the layer, " + c.digest.String()
	if c.unproved {
		x.report.Index += ", for which the manifest does not vouch"
		s.log.Warn("table of contents in the layer is used, but the manifest does not vouch for it", "layer", layer.Digest, "toc", c.digest)
	}
	return x, nil
}

// vouchedTOC opens the table of contents in a layer, or the one in an image of its
// own, if the manifest vouches for it.
func (s *search) vouchedTOC(ctx context.Context, n int) (*layerIndex, error) {
	layer := &s.img.Layers[n]
	if !hasContents(layer.Annotations) {
		return nil, nil
	}
	x, err := s.openTable(ctx, layer, false)
	if errors.Is(err, estargz.ErrExternalTOC) {
		x, err = s.openExternal(ctx, layer)
		if isMissing(err) {
			return nil, refusal{err}
		}
	}
	if unusable(err) {
		return nil, refusal{err}
	}
	return x, err
}

// unvouchedTOC opens the table of contents in a layer, if that is allowed though
// nothing vouches for it. One that may not be used is looked for only to say so:
// where an index is made anyway, each node of a cluster would ask the registry for
// the end of each layer.
func (s *search) unvouchedTOC(ctx context.Context, n int) (*layerIndex, error) {
	layer := &s.img.Layers[n]
	if hasContents(layer.Annotations) || s.opts.Build && !s.acceptTOC {
		return nil, nil
	}
	x, err := s.openTable(ctx, layer, s.acceptTOC)
	switch {
	case lacksContents(err):
		return nil, nil
	case unusable(err):
		return nil, refusal{err}
	}
	return x, err
}

const (
	// externalSuffix is what the tag of an image has more, in which the tables of
	// contents of another image are.
	externalSuffix = "-esgztoc"
	// externalOf is the annotation of such a table that names its layer.
	externalOf = "containerd.io/snapshot/stargz/layer.digest"
)

// openExternal opens the table of contents of an eStargz layer that is in an image
// of its own. The format has no other way to it than the image's tag: neither the
// layer nor the manifest names it, and it refers to nothing. Whoever can set that tag
// can't do harm: the manifest has the digest of the table.
func (s *search) openExternal(ctx context.Context, layer *origin.Layer) (*layerIndex, error) {
	if s.img.tag == "" {
		return nil, fmt.Errorf("%w: table of contents in an image of its own, which is found by the image's tag alone: the image was asked for by digest, without a tag", chunk.ErrNotFound)
	}
	name := origin.Name{Repository: s.img.Repository, Tag: s.img.tag + externalSuffix}
	tables, err := s.external(ctx, name.String())
	if err != nil {
		return nil, fmt.Errorf("tables of contents: %w", err)
	}
	for _, d := range tables {
		if d.Annotations[externalOf] != string(layer.Digest) {
			continue
		}
		src := blobSource{Repository: s.img.Repository, Digest: d.Digest, Size: d.Size, image: s.img.Digest}
		p, err := s.document(ctx, src, maxTree)
		if err != nil {
			return nil, err
		}
		es, err := estargz.OpenExternal(bytes.NewReader(p), layer.Size, estargz.Config{Blob: layer.Digest, Annotations: layer.Annotations})
		if err != nil {
			return nil, err
		}
		x := &layerIndex{layer: &es.Layer}
		x.report.Index = fmt.Sprintf("table of contents in the image %s, %s", name, es.TOCDigest)
		return x, nil
	}
	return nil, fmt.Errorf("%w: table of contents of the layer in the image %s", chunk.ErrNotFound, name)
}

// external returns the layers of an image that has tables of contents.
func (s *search) external(ctx context.Context, ref string) ([]origin.Layer, error) {
	f, err := s.find(ctx, lookup{manifestLookup, ref})
	if err != nil {
		return nil, err
	}
	m, err := s.manifest(ctx, s.img.Repository, f.Manifests[0], f.from)
	if err != nil {
		return nil, err
	}
	list := []*origin.Manifest{m}
	if m.Index != nil {
		list = nil
		for _, d := range m.Index.Manifests[:min(len(m.Index.Manifests), maxFound)] {
			one, err := s.manifest(ctx, s.img.Repository, d, f.from)
			if err != nil {
				return nil, err
			}
			list = append(list, one)
		}
	}
	var layers []origin.Layer
	for _, m := range list {
		if m.Image == nil {
			continue
		}
		for _, d := range m.Image.Layers {
			layers = append(layers, origin.Layer{Digest: chunk.Blob(d.Digest.String()), Size: d.Size, MediaType: string(d.MediaType), Annotations: d.Annotations})
		}
	}
	return layers, nil
}
