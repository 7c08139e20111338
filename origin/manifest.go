package origin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

// The largest documents and blobs that are read into memory, in bytes.
const (
	maxManifest = 8 << 20
	maxConfig   = 16 << 20
	maxWhole    = 128 << 20
)

// acceptManifests lists the kinds of manifest that are understood. Docker's
// schema 1 is not: registries that have nothing else send it all the same.
var acceptManifests = strings.Join([]string{
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
	string(types.OCIImageIndex), string(types.DockerManifestList),
}, ", ")

// A Manifest is a manifest or an index as the registry has it.
type Manifest struct {
	Digest    chunk.Blob
	MediaType string
	Raw       []byte

	// One of the two is set.
	Image *v1.Manifest
	Index *v1.IndexManifest
}

// digestOf returns the digest by which a registry names p.
func digestOf(p []byte) chunk.Blob {
	sum := sha256.Sum256(p)
	return chunk.Blob("sha256:" + hex.EncodeToString(sum[:]))
}

// ParseManifest reads a manifest or an index that was kept.
func ParseManifest(raw []byte) (*Manifest, error) { return parseManifest(raw, "") }

// parseManifest reads a manifest or an index. contentType is what the registry
// said it is, "" if that is not known; the document itself comes first.
func parseManifest(raw []byte, contentType string) (*Manifest, error) {
	if len(raw) > maxManifest {
		return nil, fmt.Errorf("manifest has %d bytes, over %d", len(raw), maxManifest)
	}
	var head struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Config        json.RawMessage `json:"config"`
		Layers        json.RawMessage `json:"layers"`
		FSLayers      json.RawMessage `json:"fsLayers"`
		Manifests     json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, corruptf("manifest is not valid JSON: %w", err)
	}
	kind := head.MediaType
	if kind == "" {
		kind = guessType(contentType, head.Manifests != nil)
	}
	m := &Manifest{Digest: digestOf(raw), MediaType: string(kind), Raw: raw}
	switch {
	case kind.IsSchema1(), head.SchemaVersion == 1, head.FSLayers != nil:
		return nil, errors.New("image has a Docker schema 1 manifest, which is not supported: push it again with a current tool")
	case head.Manifests != nil && (head.Layers != nil || head.Config != nil):
		// Clients that disagree on what this is would run different images.
		return nil, errors.New("manifest is an image and an index at the same time")
	case kind.IsImage():
		if head.Config == nil {
			return nil, errors.New("manifest has no config")
		}
		m.Image = new(v1.Manifest)
		if err := json.Unmarshal(raw, m.Image); err != nil {
			return nil, corruptf("manifest: %w", err)
		}
		return m, checkSizes(slices.Concat(m.Image.Layers, []v1.Descriptor{m.Image.Config}))
	case kind.IsIndex():
		m.Index = new(v1.IndexManifest)
		if err := json.Unmarshal(raw, m.Index); err != nil {
			return nil, corruptf("index: %w", err)
		}
		return m, checkSizes(m.Index.Manifests)
	}
	return nil, fmt.Errorf("manifest has media type %.100q, which is not supported", string(kind))
}

// guessType returns the media type of a document that doesn't have it.
func guessType(contentType string, isIndex bool) types.MediaType {
	if t, _, err := mime.ParseMediaType(contentType); err == nil {
		switch mt := types.MediaType(t); {
		case mt.IsSchema1(), mt.IsImage() && !isIndex, mt.IsIndex() && isIndex:
			return mt
		}
	}
	if isIndex {
		return types.OCIImageIndex
	}
	return types.OCIManifestSchema1
}

func checkSizes(ds []v1.Descriptor) error {
	for i := range ds {
		if ds[i].Size < 0 {
			return fmt.Errorf("descriptor of %s has size %d", ds[i].Digest, ds[i].Size)
		}
		if err := checkDigest(chunk.Blob(ds[i].Digest.String())); err != nil {
			return err
		}
	}
	return nil
}

// FetchManifest returns a manifest or index of a repository by its tag or
// digest. It is checked against the digest, if that is what it's asked by.
func (c *Client) FetchManifest(ctx context.Context, repository, tagOrDigest string) (*Manifest, error) {
	sep := ":"
	if strings.Contains(tagOrDigest, ":") {
		sep = "@"
	}
	ref, err := parseReference(repository + sep + tagOrDigest)
	if err != nil {
		return nil, &chunk.Error{Op: "fetch manifest", What: tagOrDigest, Err: err}
	}
	return c.fetchManifest(ctx, "fetch manifest", ref)
}

func (c *Client) fetchManifest(ctx context.Context, op string, ref reference) (*Manifest, error) {
	need := canPull
	if ref.digest == "" {
		need = canResolve
	}
	es, err := c.endpoints(ref.registry, need)
	if err != nil {
		return nil, &chunk.Error{Op: op, What: ref.String(), Err: err}
	}
	var m *Manifest
	err = c.each(ctx, es, op, ref.String(), func(ctx context.Context, e *endpoint) error {
		m, err = c.manifestFrom(ctx, e, ref)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// manifestFrom gets a manifest from one endpoint.
func (c *Client) manifestFrom(ctx context.Context, e *endpoint, ref reference) (m *Manifest, err error) {
	err = c.get(ctx, e, request{
		url:    e.url(ref.repo, "manifests/"+ref.id(), nil),
		header: http.Header{"Accept": {acceptManifests}},
		scope:  scope{ref.path, "pull"},
	}, func(a *answer) error {
		raw, err := readAll(a.Body, maxManifest)
		if err != nil {
			return err
		}
		want := ref.digest
		if h := chunk.Blob(a.Header.Get("Docker-Content-Digest")); want == "" && checkDigest(h) == nil {
			want = h
		}
		if got := digestOf(raw); want != "" && got != want {
			return corruptf("manifest has digest %s, not %s", got, want)
		}
		m, err = parseManifest(raw, a.Header.Get("Content-Type"))
		return err
	})
	return m, err
}

// readAll reads a body of at most limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	p, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(p)) > limit {
		return nil, corruptf("answer has over %d bytes", limit)
	}
	return p, nil
}
