package socitest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"graze/image/imagetest"
)

// The types of an index, by its version.
const (
	First  = "application/vnd.amazon.soci.index.v1+json"
	Second = "application/vnd.amazon.soci.index.v2+json"
)

// Index returns the index of an image, which has the zTOCs of its layers; nil for a
// layer without one. One of the first version refers to the image.
func Index(kind string, img *imagetest.Image, ztocs [][]byte) (*imagetest.Image, error) {
	digest := func(p []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(p)) }
	config := []byte("{}")
	out := &imagetest.Image{Config: config}
	layers := []map[string]any{}
	for i, z := range ztocs {
		if z == nil {
			continue
		}
		out.Layers = append(out.Layers, imagetest.Blob{Digest: digest(z), Size: int64(len(z)), Data: z})
		layers = append(layers, map[string]any{
			"mediaType": "application/octet-stream", "digest": digest(z), "size": len(z),
			"annotations": map[string]string{
				"com.amazon.soci.image-layer-digest":    img.Layers[i].Digest,
				"com.amazon.soci.image-layer-mediaType": img.Layers[i].MediaType,
			},
		})
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest := map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "layers": layers,
		"config":      map[string]any{"mediaType": kind, "digest": digest(config), "size": len(config)},
		"annotations": map[string]string{"com.amazon.soci.build-tool-identifier": "socitest"},
	}
	if kind == First {
		manifest["subject"] = map[string]any{"mediaType": manifestType, "digest": img.Digest(), "size": len(img.Manifest)}
	}
	var err error
	out.Manifest, err = json.Marshal(manifest)
	return out, err
}
