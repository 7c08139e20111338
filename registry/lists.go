package registry

import (
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// maxReferrers bounds the sum of the annotations and names in one page of
// referrers, in bytes. Clients take manifests of 4 MiB at least.
const maxReferrers = 2 << 20

// getTags lists the tags of a repository.
func (r *Registry) getTags(x *exchange) error {
	tags, err := r.store.tags(x.repo)
	if err != nil {
		return ifMissing(err, errNameUnknown)
	}
	if tags, err = page(x, tags); err != nil {
		return err
	}
	writeJSON(x, http.StatusOK, "application/json", struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}{x.repo, tags})
	return nil
}

// getCatalog lists the repositories.
func (r *Registry) getCatalog(x *exchange) error {
	repos, err := r.store.repositories()
	if err != nil {
		return err
	}
	if repos, err = page(x, repos); err != nil {
		return err
	}
	writeJSON(x, http.StatusOK, "application/json", struct {
		Repositories []string `json:"repositories"`
	}{repos})
	return nil
}

// page cuts a sorted list to the part that the query asks for, never nil, and
// links to the next part.
func page(x *exchange, list []string) ([]string, error) {
	query := x.req.URL.Query()
	if last := query.Get("last"); last != "" {
		i, found := slices.BinarySearch(list, last)
		if found {
			i++
		}
		list = list[i:]
	}
	if query.Has("n") {
		n, err := strconv.Atoi(query.Get("n"))
		if err != nil || n < 0 {
			return nil, &apiError{http.StatusBadRequest, codeUnsupported, "n is not a number of entries", cap80(query.Get("n"))}
		}
		if n < len(list) {
			list = list[:n]
			if n > 0 {
				linkNext(x, url.Values{"n": {strconv.Itoa(n)}, "last": {list[n-1]}})
			}
		}
	}
	if list == nil {
		list = []string{}
	}
	return list, nil
}

// linkNext tells where the list goes on.
func linkNext(x *exchange, query url.Values) {
	next := url.URL{Path: x.req.URL.Path, RawQuery: query.Encode()}
	x.w.Header().Set("Link", "<"+next.String()+`>; rel="next"`)
}

// A referrer is a descriptor of a manifest that has the subject asked for.
type referrer struct {
	MediaType    string            `json:"mediaType"`
	Size         int               `json:"size"`
	Digest       string            `json:"digest"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

// weight approximates the length of the referrer's JSON.
func (f referrer) weight() int {
	n := 128 + len(f.MediaType) + len(f.Digest) + len(f.ArtifactType)
	for k, v := range f.Annotations {
		n += 8 + len(k) + len(v)
	}
	return n
}

// getReferrers lists the manifests that have a subject, also if neither they
// nor the subject nor the repository exist.
func (r *Registry) getReferrers(x *exchange) (err error) {
	if x.digest, err = parseDigest(x.ref); err != nil {
		return errDigestInvalid(err)
	}
	query := x.req.URL.Query()
	digests, err := r.store.referrers(x.repo, x.digest)
	if err != nil {
		return err
	}
	wanted := query.Get("artifactType")
	found, weight := []referrer{}, 0
	for _, d := range digests {
		if d.String() <= query.Get("last") {
			continue
		}
		f, err := r.referrer(x.repo, d)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if wanted != "" && f.ArtifactType != wanted {
			continue
		}
		if weight += f.weight(); weight > maxReferrers && len(found) > 0 {
			next := url.Values{"last": {found[len(found)-1].Digest}}
			if wanted != "" {
				next.Set("artifactType", wanted)
			}
			linkNext(x, next)
			break
		}
		found = append(found, f)
	}
	if wanted != "" {
		x.w.Header().Set("Oci-Filters-Applied", "artifactType")
	}
	writeJSON(x, http.StatusOK, ociIndex, struct {
		SchemaVersion int        `json:"schemaVersion"`
		MediaType     string     `json:"mediaType"`
		Manifests     []referrer `json:"manifests"`
	}{2, ociIndex, found})
	return nil
}

// referrer describes a manifest as the list of referrers shows it.
func (r *Registry) referrer(repo string, d digest) (referrer, error) {
	mediaType, body, err := r.store.manifest(repo, d)
	if err != nil {
		return referrer{}, err
	}
	m, err := parseManifest(mediaType, body)
	if err != nil {
		return referrer{}, err
	}
	return referrer{mediaType, len(body), d.String(), m.artifactType, m.annotations}, nil
}
