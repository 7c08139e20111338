package origin

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

// A Name is a reference in its parts. One of Tag and Digest is set, or both.
type Name struct {
	Repository string // "docker.io/library/alpine"
	Tag        string
	Digest     chunk.Blob
}

// ParseName completes and splits a reference as users write it: "alpine",
// "localhost:5000/app@sha256:…". A tag before a digest is kept, though the digest says
// it all.
func ParseName(ref string) (Name, error) {
	r, err := parseReference(ref)
	if err == nil && r.digest != "" {
		err = checkDigest(r.digest)
		before, _, _ := strings.Cut(ref, "@")
		if tag, err := name.NewTag(before, name.WithDefaultTag("")); err == nil {
			r.tag = tag.TagStr()
		}
	}
	if err != nil {
		return Name{}, &chunk.Error{Op: "resolve", What: ref, Err: err}
	}
	return Name{r.repo.String(), r.tag, r.digest}, nil
}

// String returns the complete reference.
func (n Name) String() string {
	if n.Digest != "" {
		return n.Repository + "@" + string(n.Digest)
	}
	return n.Repository + ":" + n.Tag
}

// errNoHead reports that an answer to HEAD does not tell what a tag stands for.
var errNoHead = errors.New("the host does not answer HEAD for manifests")

// Head asks what a reference stands for: the digest, size and media type of a
// manifest or an index. It does not count as a pull where those are counted. A
// host that does not answer HEAD as it should is asked for the whole manifest.
func (c *Client) Head(ctx context.Context, ref string) (v1.Descriptor, error) {
	r, err := parseReference(ref)
	if err != nil {
		return v1.Descriptor{}, &chunk.Error{Op: "resolve", What: ref, Err: err}
	}
	need := canPull
	if r.digest == "" {
		need = canResolve
	}
	es, err := c.endpoints(r.registry, need)
	if err != nil {
		return v1.Descriptor{}, &chunk.Error{Op: "resolve", What: r.String(), Err: err}
	}
	var d v1.Descriptor
	err = c.each(ctx, es, "resolve", r.String(), func(ctx context.Context, e *endpoint) error {
		if d, err = c.headFrom(ctx, e, r); !lacksHead(err) {
			return err
		}
		m, err := c.manifestFrom(ctx, e, r)
		if err == nil {
			d, err = m.descriptor()
		}
		return err
	})
	return d, err
}

// headFrom asks one endpoint.
func (c *Client) headFrom(ctx context.Context, e *endpoint, r reference) (d v1.Descriptor, err error) {
	a, err := c.do(ctx, e, request{
		method: http.MethodHead,
		url:    e.url(r.repo, "manifests/"+r.id(), nil),
		header: http.Header{"Accept": {acceptManifests}},
		scope:  scope{r.path, "pull"},
	})
	if err != nil {
		return d, err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return d, from(e, a.host, newStatusError(a.Response))
	}
	digest := chunk.Blob(a.Header.Get("Docker-Content-Digest"))
	if r.digest != "" {
		digest = r.digest
	}
	kind, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type"))
	d.MediaType, d.Size = types.MediaType(kind), a.ContentLength
	known := d.MediaType.IsImage() || d.MediaType.IsIndex()
	if checkDigest(digest) != nil || !known || d.Size <= 0 || d.Size > maxManifest {
		return d, errNoHead
	}
	d.Digest, err = v1.NewHash(string(digest))
	return d, err
}

// lacksHead reports whether err shows that a host has no useful answer to HEAD. A
// refusal has no text that says why, and some hosts refuse HEAD alone.
func lacksHead(err error) bool {
	switch statusOf(err) {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented:
		return true
	}
	return errors.Is(err, errNoHead)
}

// descriptor describes the manifest.
func (m *Manifest) descriptor() (v1.Descriptor, error) {
	h, err := v1.NewHash(string(m.Digest))
	return v1.Descriptor{MediaType: types.MediaType(m.MediaType), Digest: h, Size: int64(len(m.Raw))}, err
}
