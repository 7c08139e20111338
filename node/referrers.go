package node

import (
	"context"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
	"graze/origin"
)

// mayBeIndex reports whether a referrer with this artifact type may be an index of
// the image that it refers to. Images in the format of Nydus may have no type, or
// that of their config, as other images have; their manifests tell.
func mayBeIndex(artifactType string) bool {
	return artifactType == indexArtifact || artifactType == sociFirst || mayBeNydus(artifactType)
}

// mayBeNydus reports whether a referrer may be an image in the format of Nydus.
func mayBeNydus(artifactType string) bool {
	switch t := types.MediaType(artifactType); t {
	case "", origin.NydusManifestType, origin.NydusConfigType:
		return true
	default:
		return t.IsConfig()
	}
}

// findReferrers returns the referrers of the image that may be indexes of it.
func (s *search) findReferrers(ctx context.Context) (*finding, error) {
	return s.find(ctx, lookup{indexesLookup, s.img.byDigest()})
}

// referrer returns the manifest of a referrer. It is nil if it can't be read: then
// the referrer is passed over.
func (s *search) referrer(ctx context.Context, d v1.Descriptor, holder chunk.PeerID) (*origin.Manifest, error) {
	m, err := s.manifest(ctx, s.img.Repository, d, holder)
	if err == nil && m.Image == nil {
		err = fmt.Errorf("%w: it is not a manifest", chunk.ErrCorrupt)
	}
	if errors.Is(err, chunk.ErrCorrupt) || isMissing(err) {
		s.log.Warn("referrer can't be read and is passed over", "referrer", d.Digest.String(), "err", err)
		return nil, nil
	}
	return m, err
}
