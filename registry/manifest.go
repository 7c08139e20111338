package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"
)

// Media types of the manifests that are taken.
const (
	ociManifest    = "application/vnd.oci.image.manifest.v1+json"
	ociIndex       = "application/vnd.oci.image.index.v1+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// maxDescriptors bounds the descriptors in one list of a manifest: a few bytes
// of JSON make a whole one in memory.
const maxDescriptors = 10_000

// A manifest is what the registry wants to know of an image manifest or index.
// The zero digest stands for descriptors that are not there.
type manifest struct {
	mediaType    string
	artifactType string // as referrers show it; may be empty
	annotations  map[string]string
	subject      digest
	blobs        []digest // that must be in the repository as blobs
	children     []digest // that must be in it as manifests or blobs
}

// A descriptor is the part of an OCI descriptor that is looked at.
type descriptor struct {
	MediaType string   `json:"mediaType"`
	Digest    string   `json:"digest"`
	Size      *int64   `json:"size"`
	URLs      []string `json:"urls"`

	digest digest // parsed
}

// UnmarshalJSON implements json.Unmarshaler and checks the descriptor.
func (d *descriptor) UnmarshalJSON(p []byte) error {
	type plain descriptor
	if err := json.Unmarshal(p, (*plain)(d)); err != nil {
		return err
	}
	var err error
	if d.digest, err = parseDigest(d.Digest); err != nil {
		return err
	}
	if d.MediaType == "" {
		return fmt.Errorf("descriptor of %s has no media type", d.digest)
	}
	if d.Size == nil || *d.Size < 0 {
		return fmt.Errorf("descriptor of %s has no size", d.digest)
	}
	return nil
}

// foreign reports whether a layer is fetched from elsewhere and may be missing
// here.
func (d *descriptor) foreign() bool {
	return len(d.URLs) > 0 ||
		strings.HasPrefix(d.MediaType, "application/vnd.oci.image.layer.nondistributable.") ||
		strings.HasPrefix(d.MediaType, "application/vnd.docker.image.rootfs.foreign.")
}

// descriptors is a list that stops to grow, and with it the decoding, at the
// first bad element and at maxDescriptors.
type descriptors []descriptor

// UnmarshalJSON implements json.Unmarshaler. Both [] and null are empty lists,
// the former not nil.
func (l *descriptors) UnmarshalJSON(p []byte) error {
	dec := json.NewDecoder(bytes.NewReader(p))
	start, err := dec.Token()
	if err != nil || start == nil {
		return err
	}
	if start != json.Delim('[') {
		return errors.New("descriptors are not in a list")
	}
	*l = descriptors{}
	for dec.More() {
		if len(*l) == maxDescriptors {
			return fmt.Errorf("more than %d descriptors in a list", maxDescriptors)
		}
		var d descriptor
		if err := dec.Decode(&d); err != nil {
			return err
		}
		*l = append(*l, d)
	}
	return nil
}

// parseManifest checks a manifest and takes out what the registry needs. The
// media type comes from the Content-Type header and from the manifest itself;
// one is enough, two must agree.
func parseManifest(contentType string, body []byte) (*manifest, error) {
	var doc struct {
		SchemaVersion int               `json:"schemaVersion"`
		MediaType     string            `json:"mediaType"`
		ArtifactType  string            `json:"artifactType"`
		Config        *descriptor       `json:"config"`
		Layers        descriptors       `json:"layers"`
		Manifests     descriptors       `json:"manifests"`
		Subject       *descriptor       `json:"subject"`
		Annotations   map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("parse manifest: %w", err)
	}
	if doc.SchemaVersion != 2 {
		return nil, fmt.Errorf("schema version is %d, not 2", doc.SchemaVersion)
	}
	mediaType, err := manifestType(contentType, doc.MediaType)
	if err != nil {
		return nil, err
	}
	m := &manifest{mediaType: mediaType, artifactType: doc.ArtifactType, annotations: doc.Annotations}
	if doc.Subject != nil {
		m.subject = doc.Subject.digest
	}
	// A document that could be read as either kind is a known attack on clients
	// that decide by different parts of it.
	switch mediaType {
	case ociManifest, dockerManifest:
		if doc.Config == nil {
			return nil, errors.New("image manifest has no config")
		}
		if doc.Manifests != nil {
			return nil, errors.New("image manifest has manifests as an index has")
		}
		if m.artifactType == "" {
			m.artifactType = doc.Config.MediaType
		}
		m.blobs = append(m.blobs, doc.Config.digest)
		for _, layer := range doc.Layers {
			if !layer.foreign() {
				m.blobs = append(m.blobs, layer.digest)
			}
		}
	case ociIndex, dockerList:
		if doc.Config != nil || doc.Layers != nil {
			return nil, errors.New("index has a config or layers as an image manifest has")
		}
		if doc.Manifests == nil {
			return nil, errors.New("index has no manifests")
		}
		for _, child := range doc.Manifests {
			m.children = append(m.children, child.digest)
		}
	default:
		return nil, fmt.Errorf("media type %.80q is no manifest of OCI or Docker schema 2", mediaType)
	}
	return m, nil
}

// manifestType returns the media type that the header and the manifest's own
// field agree on. Parameters of the header are ignored.
func manifestType(header, field string) (string, error) {
	if header == "" && field == "" {
		return "", errors.New("neither Content-Type nor the manifest says its media type")
	}
	if header == "" {
		return field, nil
	}
	parsed, _, err := mime.ParseMediaType(header)
	if err != nil {
		return "", fmt.Errorf("Content-Type %.80q: %w", header, err)
	}
	if field != "" && field != parsed {
		return "", fmt.Errorf("Content-Type is %.80q and the manifest's media type %.80q", parsed, field)
	}
	return parsed, nil
}
