package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
	"graze/image"
	"graze/image/rafs"
	"graze/origin"
)

// Annotations of the layers of an image in the format of Nydus.
const (
	nydusBootstrap = "containerd.io/snapshot/nydus-bootstrap"
	nydusReference = "containerd.io/snapshot/nydus-ref"
)

// isNydusBlob reports whether a layer is a blob of chunks, with no files of its
// own.
func isNydusBlob(l *origin.Layer) bool { return types.MediaType(l.MediaType) == origin.NydusBlobType }

// isBootstrap reports whether a layer has a bootstrap, which is the index of all
// of the image.
func isBootstrap(annotations map[string]string) bool { return annotations[nydusBootstrap] == "true" }

// nydusLayer opens a layer of an image in the format of Nydus. All files are in
// the view of the one that has the bootstrap; the others have none.
func (s *search) nydusLayer(ctx context.Context, n int) (*layerIndex, error) {
	layer := &s.img.Layers[n]
	switch {
	case isNydusBlob(layer):
		x := &layerIndex{layer: &image.Layer{Digest: layer.Digest, Size: layer.Size, Format: image.RAFSBlob, Entries: noEntries}}
		x.report.Index = "blob of the image's RAFS bootstrap"
		return x, nil
	case isBootstrap(layer.Annotations):
		x, err := s.openBootstrap(ctx, layer, s.img.Layers)
		if err != nil {
			return nil, err // there is nothing else
		}
		x.report.Index = "RAFS bootstrap in the layer"
		return x, nil
	}
	return nil, nil
}

// noEntries are those of a layer without files.
var noEntries iter.Seq2[*image.Entry, error] = func(func(*image.Entry, error) bool) {}

// nydusBeside opens the bootstrap of the same image in the format of Nydus, which
// is beside it in its index.
func (s *search) nydusBeside(ctx context.Context) (*layerIndex, error) {
	for _, d := range s.img.Beside {
		if !origin.IsNydus(&d) {
			continue
		}
		m, err := s.manifest(ctx, s.img.Repository, d, "")
		if err != nil {
			return nil, passable(fmt.Errorf("image %s in the same index: %w", d.Digest, err))
		}
		return s.openNydus(ctx, m, "in the same index")
	}
	return nil, nil
}

// nydusReferrer opens the bootstrap of an image in the format of Nydus that refers
// to this one.
func (s *search) nydusReferrer(ctx context.Context) (*layerIndex, error) {
	f, err := s.referrers()
	if err != nil {
		return nil, s.odd(ctx, err)
	}
	for _, d := range f.Manifests {
		if !mayBeNydus(d.ArtifactType) {
			continue
		}
		m, err := s.referrer(ctx, d, f.from)
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue
		}
		x, openErr := s.openNydus(ctx, m, "which refers to this one")
		if x != nil || openErr != nil {
			return x, openErr
		}
	}
	return nil, nil
}

// openNydus opens the bootstrap of another manifest, which stands for the same
// image. It returns nil if it is none of such an image.
func (s *search) openNydus(ctx context.Context, m *origin.Manifest, where string) (*layerIndex, error) {
	if m.Image == nil || len(m.Image.Layers) == 0 {
		return nil, nil
	}
	var layers []origin.Layer
	for _, d := range m.Image.Layers {
		layers = append(layers, origin.Layer{Digest: chunk.Blob(d.Digest.String()), Size: d.Size, MediaType: string(d.MediaType), Annotations: d.Annotations})
	}
	last := &layers[len(layers)-1]
	if !isBootstrap(last.Annotations) {
		return nil, nil
	}
	x, err := s.openBootstrap(ctx, last, append(layers, s.img.Layers...))
	if err != nil {
		return nil, passable(fmt.Errorf("image %s, %s: %w", m.Digest, where, err))
	}
	x.report.Digest, x.report.Size, x.report.Format = last.Digest, last.Size, x.layer.Format
	x.report.Index = fmt.Sprintf("RAFS bootstrap of image %s, %s", m.Digest, where)
	return x, nil
}

// passable returns err as a refusal, if it is about the index and not about the
// way to it.
func passable(err error) error {
	for _, about := range []error{chunk.ErrCorrupt, chunk.ErrNotFound, rafs.ErrEncrypted, rafs.ErrNoDigest, rafs.ErrNotRAFS, rafs.ErrUnsupported} {
		if errors.Is(err, about) {
			return refusal{err}
		}
	}
	return err
}

// openBootstrap opens the bootstrap in a layer. Layers are those of the manifests
// that tell the sizes of blobs.
func (s *search) openBootstrap(ctx context.Context, layer *origin.Layer, layers []origin.Layer) (*layerIndex, error) {
	p, err := s.document(ctx, blobSource{Repository: s.img.Repository, Digest: layer.Digest, Size: layer.Size, image: s.img.Digest}, maxTree)
	if err != nil {
		return nil, err
	}
	boot, metas, err := rafs.Unpack(p)
	if err != nil {
		return nil, err
	}
	known := make(map[chunk.Blob]*origin.Layer)
	for i := range layers {
		known[layers[i].Digest] = &layers[i]
	}
	index, err := rafs.Open(ctx, boot, rafs.Config{
		Digest:  layer.Digest,
		Size:    layer.Size,
		Metas:   metas,
		Blob:    func(blob chunk.Blob) image.Ranger { return s.nydusBlob(ctx, blob, known[blob]) },
		ReadAll: s.opts.Build,
		Keep:    s.opts.Keep,
	})
	if err != nil {
		return nil, err
	}
	x := &layerIndex{layer: index}
	for _, blob := range index.Table.Blobs {
		src := blobSource{Repository: s.img.Repository, Digest: blob, Size: origin.UnknownSize}
		if l := known[blob]; l != nil {
			src.Size = l.Size
		}
		x.blobs = append(x.blobs, src)
	}
	return x, nil
}

// nydusBlob returns a reader of a blob, of which the manifest may know nothing. One
// that has nothing but the meta of a layer is fetched whole and compared with its
// digest.
func (s *search) nydusBlob(ctx context.Context, blob chunk.Blob, layer *origin.Layer) image.Ranger {
	if layer == nil {
		return s.client.Blob(s.img.Repository, blob, origin.UnknownSize)
	}
	if layer.Annotations[nydusReference] != "" && layer.Size <= maxTree {
		return &wholeRanger{s, layer}
	}
	return s.client.Blob(s.img.Repository, blob, layer.Size)
}

// A wholeRanger reads a small blob, which it fetches whole.
type wholeRanger struct {
	s     *search
	layer *origin.Layer
}

// Size implements image.Ranger.
func (r *wholeRanger) Size() int64 { return r.layer.Size }

// ReadRange implements image.Ranger.
func (r *wholeRanger) ReadRange(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	src := blobSource{Repository: r.s.img.Repository, Digest: r.layer.Digest, Size: r.layer.Size, image: r.s.img.Digest}
	p, err := r.s.document(ctx, src, maxTree)
	if err != nil {
		return nil, err
	}
	if off < 0 || n < 0 || n > int64(len(p))-off {
		return nil, fmt.Errorf("%w: bytes %d+%d of blob %s, which has %d", chunk.ErrCorrupt, off, n, r.layer.Digest, len(p))
	}
	return io.NopCloser(bytes.NewReader(p[off : off+n])), nil
}
