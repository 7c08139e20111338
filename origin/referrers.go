package origin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

// The bounds of a list of referrers.
const (
	maxReferrerPages = 32
	maxReferrers     = 4096
)

// Referrers lists the manifests that have the one with the given digest as their
// subject. artifactType, unless it is empty, selects those of one type. Where
// the registry has no referrers API, the list is the index that clients keep
// under the tag sha256-<hex>. That there are none is not an error.
func (c *Client) Referrers(ctx context.Context, repository string, digest chunk.Blob, artifactType string) ([]v1.Descriptor, error) {
	r, err := parseRepo(repository)
	if err == nil {
		err = checkDigest(digest)
	}
	what := r.String() + "@" + string(digest)
	fail := func(err error) error { return &chunk.Error{Op: "list referrers of", What: what, Err: err} }
	if err != nil {
		return nil, fail(err)
	}
	es, err := c.endpoints(r.registry, canReferrers)
	if err != nil {
		return nil, fail(err)
	}
	var list []v1.Descriptor
	err = c.each(ctx, es, "list referrers of", what, func(ctx context.Context, e *endpoint) error {
		list, err = c.referrersFrom(ctx, e, r, digest, artifactType)
		if err == nil && len(list) == 0 && e != es[len(es)-1] {
			// A mirror may know the API, but not what is in the registry.
			return chunk.ErrNotFound
		}
		return err
	})
	if err == nil || !lacksReferrers(err) {
		return list, err
	}
	m, err := c.fetchManifest(ctx, "list referrers of", reference{repo: r, tag: referrersTag(digest)})
	switch {
	case errors.Is(err, chunk.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case m.Index == nil:
		return nil, fail(corruptf("tag %s is not an index", referrersTag(digest)))
	}
	return ofType(m.Index.Manifests, artifactType), nil
}

// referrersTag is where clients list referrers for a registry without the API.
func referrersTag(digest chunk.Blob) string {
	return strings.Replace(string(digest), ":", "-", 1)
}

// errNoReferrers reports that an answer is not one of the referrers API.
var errNoReferrers = errors.New("the host has no referrers API")

// lacksReferrers reports whether err shows that a registry doesn't know the API.
func lacksReferrers(err error) bool {
	switch statusOf(err) {
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented:
		return true
	}
	return errors.Is(err, chunk.ErrNotFound) || errors.Is(err, errNoReferrers)
}

// referrersFrom gets all pages of the list from one endpoint.
func (c *Client) referrersFrom(ctx context.Context, e *endpoint, r repo, digest chunk.Blob, artifactType string) ([]v1.Descriptor, error) {
	query := url.Values{}
	if artifactType != "" {
		query.Set("artifactType", artifactType)
	}
	var all []v1.Descriptor
	next := e.url(r, "referrers/"+string(digest), query)
	for page := 0; next != nil; page++ {
		if page == maxReferrerPages {
			return nil, corruptf("list of referrers has over %d pages", maxReferrerPages)
		}
		at := next
		err := c.get(ctx, e, request{
			url:    at,
			header: http.Header{"Accept": {string(types.OCIImageIndex)}},
			scope:  scope{r.path, "pull"},
		}, func(a *answer) error {
			if t, _, _ := strings.Cut(a.Header.Get("Content-Type"), ";"); types.MediaType(strings.TrimSpace(t)) != types.OCIImageIndex {
				return errNoReferrers
			}
			raw, err := readAll(a.Body, maxManifest)
			if err != nil {
				return err
			}
			var index v1.IndexManifest
			if err := json.Unmarshal(raw, &index); err != nil {
				return corruptf("list of referrers: %w", err)
			}
			if err := checkSizes(index.Manifests); err != nil {
				return corruptf("list of referrers: %w", err)
			}
			all = append(all, ofType(index.Manifests, artifactType)...)
			if len(all) > maxReferrers {
				return corruptf("list of referrers has over %d entries", maxReferrers)
			}
			next, err = nextPage(a.Header.Values("Link"), at)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// ofType selects the descriptors of an artifact type. Registries need not filter,
// so clients have to.
func ofType(ds []v1.Descriptor, artifactType string) []v1.Descriptor {
	var list []v1.Descriptor
	for _, d := range ds {
		if artifactType == "" || d.ArtifactType == artifactType {
			list = append(list, d)
		}
	}
	return list
}

// nextPage returns the target of the Link header (RFC 8288) with rel="next", nil
// if there is none. It must be on the host that has the page before.
func nextPage(links []string, at *url.URL) (*url.URL, error) {
	for _, header := range links {
		for header != "" {
			_, rest, ok := strings.Cut(header, "<")
			if !ok {
				break
			}
			target, rest, ok := strings.Cut(rest, ">")
			if !ok {
				break
			}
			params, after, _ := strings.Cut(rest, "<")
			header = "<" + after
			if after == "" {
				header = ""
			}
			if !isNext(params) {
				continue
			}
			u, err := at.Parse(target)
			if err != nil || !sameOrigin(u, at) {
				return nil, corruptf("next page %.200q is no URL of the same host", target)
			}
			return u, nil
		}
	}
	return nil, nil
}

// isNext reports whether the parameters of a link have rel=next.
func isNext(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		k, v, _ := strings.Cut(strings.Trim(p, " \t,"), "=")
		if strings.EqualFold(strings.TrimSpace(k), "rel") && strings.EqualFold(strings.Trim(strings.TrimSpace(v), `"`), "next") {
			return true
		}
	}
	return false
}
