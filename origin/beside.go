package origin

import (
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types and marks of images in the format of Nydus.
const (
	// NydusBlobType is the media type of a layer that is a blob of chunks.
	NydusBlobType types.MediaType = "application/vnd.oci.image.layer.nydus.blob.v1"
	// NydusManifestType is the artifact type of such an image.
	NydusManifestType types.MediaType = "application/vnd.nydus.image.manifest.v1+json"
	// NydusConfigType is the media type of the config of some of them.
	NydusConfigType types.MediaType = "application/vnd.nydus.image.config.v1+json"

	// nydusFeature is a feature of the operating system by which older indexes
	// mark such an image.
	nydusFeature = "nydus.remoteimage.v1"
)

// isConfig reports whether t is the media type of the config of an image.
func isConfig(t types.MediaType) bool { return t.IsConfig() || t == NydusConfigType }

// isAside reports whether an entry of an index is not an image for everybody: it
// is the same image in another format, or an artifact about one.
func isAside(d *v1.Descriptor) bool {
	if d.Platform != nil && slices.Contains(d.Platform.OSFeatures, nydusFeature) {
		return true
	}
	return d.ArtifactType != "" && !types.MediaType(d.ArtifactType).IsConfig()
}

// IsNydus reports whether an entry of an index is marked as an image in the format
// of Nydus, in the new or in the old way.
func IsNydus(d *v1.Descriptor) bool {
	switch types.MediaType(d.ArtifactType) {
	case NydusManifestType, NydusConfigType:
		return true
	}
	return d.Platform != nil && slices.Contains(d.Platform.OSFeatures, nydusFeature)
}

// beside returns the entries of an index that are not for everybody and are for the
// platform of the one that was chosen, or for none.
func beside(index *v1.IndexManifest, chosen *v1.Descriptor) []v1.Descriptor {
	var list []v1.Descriptor
	for _, d := range index.Manifests {
		if d.Digest == chosen.Digest || !d.MediaType.IsImage() || !isAside(&d) {
			continue
		}
		if d.Platform == nil || chosen.Platform == nil || samePlatform(*d.Platform, *chosen.Platform) {
			list = append(list, d)
		}
	}
	return list
}

// samePlatform reports whether images for a and for b run on the same machines.
func samePlatform(a, b v1.Platform) bool {
	a, b = normalize(a), normalize(b)
	return a.OS == b.OS && a.Architecture == b.Architecture && a.Variant == b.Variant
}
