package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"graze/chunk"
)

// A decision says how an image is served.
type decision struct {
	reason Reason
	err    error // the reason's, if there is one
	image  Image
	policy Policy
}

// packed reports whether the image is known, and one that containerd can't unpack.
func (d *decision) packed() bool { return len(d.image.Chains) > 0 && !d.image.Unpackable }

// decide finds out whether the wanted layer is served lazily, and then which view
// has it. Otherwise the view is empty, and containerd is to pull the layer. An
// error ends the pull.
func (s *Snapshotter) decide(ctx context.Context, w wanted) (View, error) {
	d, err := s.decisionFor(ctx, w)
	if err != nil {
		return View{}, err
	}
	view := View{Image: d.image.Name, Layers: slices.Index(d.image.Chains, w.Chain) + 1}
	if d.reason == Lazy && view.Layers == 0 {
		d = &decision{reason: NotFound, image: d.image, policy: d.policy,
			err: fmt.Errorf("%w: image has no layer with chain ID %.80q", chunk.ErrNotFound, w.Chain)}
	}
	s.tell(w, d)
	switch {
	case d.reason == Lazy:
		return view, nil
	case d.policy.Mode == LazyOrFail:
		return View{}, fmt.Errorf("image can't be served lazily (%s), and its policy forbids to pull it: %w: %w", d.reason, errdefs.ErrFailedPrecondition, d.err)
	case d.packed():
		return View{}, fmt.Errorf("image can't be served lazily (%s), and containerd can't unpack its layers: %w: %w", d.reason, errdefs.ErrFailedPrecondition, d.err)
	}
	return View{}, nil
}

// errUnnamed says what to do about layers of which nobody says where they come
// from.
var errUnnamed = errors.New("the client does not say which image the layer is of: see the settings of containerd in docs/operations.md")

// decisionFor returns the decision about the image that the wanted layer is of.
func (s *Snapshotter) decisionFor(ctx context.Context, w wanted) (*decision, error) {
	name := w.image()
	if name == "" {
		found, err := s.find(ctx, w.Chain)
		if err != nil {
			return nil, err
		}
		if found.Fetched {
			return &decision{reason: Fetched, image: Image{Name: found.Image}}, nil
		}
		name = found.Image
	}
	if name == "" {
		return &decision{reason: Unnamed, policy: policyFor(s.cfg.Policies, ""), err: errUnnamed}, nil
	}
	return s.decisions.get(ctx, name, func() *decision { return s.decideImage(ctx, name) })
}

// find looks for the image that a chain is of where containerd keeps images that
// are being pulled. An image without a name was not found.
func (s *Snapshotter) find(ctx context.Context, chain chunk.Blob) (Found, error) {
	if s.cfg.Finder == nil {
		return Found{}, nil
	}
	found, err := s.cfg.Finder.Find(ctx, chain)
	if ctx.Err() != nil {
		return Found{}, context.Cause(ctx)
	}
	if err != nil && !errors.Is(err, chunk.ErrNotFound) {
		s.log.Warn("containerd's content could not be searched for the image of a layer", "chain", chain, "err", err)
	}
	return found, nil
}

// decideImage finds out how an image is served, and gets ready for it.
func (s *Snapshotter) decideImage(ctx context.Context, name string) *decision {
	d := &decision{policy: policyFor(s.cfg.Policies, repositoryOf(name))}
	d.image.Name = withoutTag(name)
	if d.policy.Mode == Pull {
		d.reason = ByPolicy
		return d
	}
	img, err := s.images.Resolve(ctx, name)
	if err != nil {
		d.reason, d.err = reasonFor(err), err
		return d
	}
	d.image = img
	if d.policy.Mode != LazyOrFail && img.Unpackable && img.Size < s.cfg.SmallImage {
		d.reason = Small
		return d
	}
	if err := s.images.Ready(ctx, name, !d.policy.Require); err != nil {
		d.reason, d.err = reasonFor(err), err
		return d
	}
	d.reason = Lazy
	return d
}

// withoutTag returns a name without its tag, if it has a digest.
func withoutTag(name string) string {
	if _, digest, ok := strings.Cut(name, "@"); ok {
		return repositoryOf(name) + "@" + digest
	}
	return name
}

// repositoryOf returns the repository of an image's complete name.
func repositoryOf(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if slash := strings.LastIndexByte(name, '/'); strings.Contains(name[slash+1:], ":") {
		name = name[:slash+1+strings.IndexByte(name[slash+1:], ':')]
	}
	return name
}
