package node

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"graze/chunk"
)

// A search looks for the indexes of one image. What several of its sources need
// is asked for once.
type search struct {
	*Library
	img  *Image
	opts IndexOptions

	referrers func() (*finding, error) // that are indexes of any kind
	published func() (map[chunk.Blob][]layerRecord, error)
	ztocs     func() (map[chunk.Blob][]ztoc, error)
}

func (l *Library) newSearch(ctx context.Context, img *Image, opts IndexOptions) *search {
	s := &search{Library: l, img: img, opts: opts}
	s.referrers = sync.OnceValues(func() (*finding, error) { return s.findReferrers(ctx) })
	s.published = sync.OnceValues(func() (map[chunk.Blob][]layerRecord, error) { return s.publishedIndexes(ctx) })
	s.ztocs = sync.OnceValues(func() (map[chunk.Blob][]ztoc, error) { return s.findZTOCs(ctx) })
	return s
}

// An indexSource is a place where indexes are looked for: of one layer of the
// image, or of all of it at once. A source that has none returns nil. One that has
// an index which can't be used returns a refusal, and the next is looked at. Any
// other error ends the search.
type indexSource struct {
	layer func(ctx context.Context, n int) (*layerIndex, error)
	whole func(ctx context.Context) (*layerIndex, error)
}

// sources lists where the indexes of an image are looked for, in this order: see
// the package comment.
func (s *search) sources() []indexSource {
	list := []indexSource{
		{layer: s.nydusLayer},
		{whole: s.nydusBeside},
		{layer: s.vouchedTOC},
		{layer: s.kept},
		{layer: s.fromReferrer},
	}
	if !s.opts.own {
		list = append(list, indexSource{layer: s.soci})
	}
	list = append(list, indexSource{layer: s.unvouchedTOC}, indexSource{whole: s.nydusReferrer})
	if s.opts.Build {
		list = append(list, indexSource{layer: s.built})
	}
	return list
}

// A refusal is why an index that is there is not used.
type refusal struct{ error }

// Unwrap returns the reason.
func (r refusal) Unwrap() error { return r.error }

// openIndexes returns the opened indexes of all layers of an image; a single one,
// if that is of the whole image.
func (l *Library) openIndexes(ctx context.Context, img *Image, opts IndexOptions) ([]*layerIndex, error) {
	s := l.newSearch(ctx, img, opts)
	list := make([]*layerIndex, len(img.Layers))
	refused := make([]error, len(img.Layers)) // by layer
	var refusedWhole error
	for _, src := range s.sources() {
		if src.layer != nil {
			if err := s.eachLayer(ctx, src, list, refused); err != nil {
				return nil, err
			}
			continue
		}
		if missing(list) < 0 || img.part {
			continue // what is there is enough, or the index would be of more than that
		}
		x, err := src.whole(ctx)
		if r, ok := errors.AsType[refusal](err); ok {
			refusedWhole = r.error
			l.log.Warn("index of a whole image is not used", "reference", img.Reference, "err", r.error)
			continue
		}
		if x != nil || err != nil {
			return []*layerIndex{x}, err
		}
	}
	if n := missing(list); n >= 0 {
		err := fmt.Errorf("layer %d of %s, %s: %w", n+1, img.Reference, img.Layers[n].Digest, ErrNoIndex)
		for _, why := range []error{refused[n], refusedWhole} {
			if why != nil {
				err = fmt.Errorf("%w: %w", err, why)
			}
		}
		return nil, err
	}
	return list, nil
}

// missing returns the first layer that has no index yet, or -1.
func missing(list []*layerIndex) int {
	for i, x := range list {
		if x == nil {
			return i
		}
	}
	return -1
}

// eachLayer asks a source for the indexes of all layers that have none yet, at the
// same time.
func (s *search) eachLayer(ctx context.Context, src indexSource, list []*layerIndex, refused []error) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range list {
		if list[i] != nil {
			continue
		}
		g.Go(func() error {
			layer := &s.img.Layers[i]
			x, err := src.layer(gctx, i)
			if r, ok := errors.AsType[refusal](err); ok {
				refused[i] = r.error
				s.log.Warn("index of a layer is not used", "layer", layer.Digest, "err", r.error)
				return nil
			}
			if err != nil {
				return fmt.Errorf("layer %d of %s, %s: %w", i+1, s.img.Reference, layer.Digest, err)
			}
			if x == nil {
				return nil
			}
			x.report.Digest, x.report.Size, x.report.Format = layer.Digest, layer.Size, x.layer.Format
			if refused[i] != nil {
				x.report.Index += fmt.Sprintf("; another is not used: %.300v", refused[i])
			}
			list[i] = x
			return nil
		})
	}
	return g.Wait()
}

// kept opens graze's index that the folder has.
func (s *search) kept(_ context.Context, n int) (*layerIndex, error) {
	x, err := s.openKept(s.img, n)
	if isMissing(err) {
		return nil, nil
	}
	return x, err
}

// fromReferrer opens graze's index that the image's repository has.
func (s *search) fromReferrer(ctx context.Context, n int) (*layerIndex, error) {
	found, err := s.published()
	if err != nil {
		return nil, s.odd(ctx, err)
	}
	for _, rec := range found[s.img.Layers[n].Digest] {
		if err != nil { // of the one before
			s.log.Warn("index of a layer is not used", "layer", rec.Layer, "err", err)
		}
		var x *layerIndex
		x, err = s.openPublished(ctx, rec, s.img.DiffIDs[n])
		if err == nil || !errors.Is(err, chunk.ErrCorrupt) && !isMissing(err) {
			return x, err
		}
		err = refusal{fmt.Errorf("%s: %w", rec.Origin, err)}
	}
	return nil, err
}

// odd returns err as the reason why nothing was found in a registry: some answer
// requests that they don't know in odd ways. If the registry is away, the search
// can't go on.
func (s *search) odd(ctx context.Context, err error) error {
	err = fmt.Errorf("look for a published index: %w", err)
	if ctx.Err() != nil || errors.Is(err, chunk.ErrUnavailable) {
		return err
	}
	return refusal{err}
}

// built makes graze's index of a layer.
func (s *search) built(ctx context.Context, n int) (*layerIndex, error) {
	return s.build(ctx, s.img, n, s.opts)
}
