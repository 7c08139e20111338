package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxUnknown bounds the missing blobs that one answer names.
const maxUnknown = 20

// getManifest serves a manifest by tag or digest. There is one representation
// of it, so the Accept header has no say.
func (r *Registry) getManifest(x *exchange) error {
	if err := r.resolve(x); err != nil {
		return err
	}
	mediaType, body, err := r.store.manifest(x.repo, x.digest)
	if err != nil {
		return ifMissing(err, errManifestUnknown(x.ref))
	}
	contentHeader(x, mediaType)
	http.ServeContent(x.w, x.req, "", time.Time{}, bytes.NewReader(body))
	return nil
}

// resolve sets the digest of the manifest that the request names.
func (r *Registry) resolve(x *exchange) (err error) {
	if strings.Contains(x.ref, ":") {
		if x.digest, err = parseDigest(x.ref); err != nil {
			return errDigestInvalid(err)
		}
		return nil
	}
	if !validTag(x.ref) {
		return errManifestUnknown(x.ref)
	}
	x.digest, err = r.store.resolve(x.repo, x.ref)
	return ifMissing(err, errManifestUnknown(x.ref))
}

// putManifest takes a manifest whose blobs and children are there.
func (r *Registry) putManifest(x *exchange) error {
	body, err := readManifest(x)
	if err != nil {
		return err
	}
	tag, err := manifestTarget(x, body)
	if err != nil {
		return err
	}
	m, err := parseManifest(x.req.Header.Get("Content-Type"), body)
	if err != nil {
		return errManifestInvalid(err)
	}
	if err := r.checkReferences(x.repo, m); err != nil {
		return err
	}
	if err := r.store.putManifest(x.repo, x.digest, m.mediaType, body, m.subject, tag); err != nil {
		return err
	}
	r.cfg.Log.Info("manifest pushed", "repo", x.repo, "tag", tag, "digest", x.digest.String())
	h := x.w.Header()
	h.Set("Location", "/v2/"+x.repo+"/manifests/"+x.ref)
	h.Set("Docker-Content-Digest", x.digest.String())
	if !m.subject.isZero() {
		h.Set("Oci-Subject", m.subject.String())
	}
	x.w.WriteHeader(http.StatusCreated)
	return nil
}

// readManifest reads the request's body.
func readManifest(x *exchange) ([]byte, error) {
	tooLarge := errTooLarge(fmt.Sprintf("manifests may have %d bytes", MaxManifest))
	if x.req.ContentLength > MaxManifest {
		return nil, tooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.req.Body, MaxManifest))
	var over *http.MaxBytesError
	if errors.As(err, &over) {
		return nil, tooLarge
	}
	if err != nil {
		return nil, errManifestInvalid(errors.New("the body broke off"))
	}
	return body, nil
}

// manifestTarget sets the digest of a manifest that is pushed, which has to be
// the one in the path if that has one, and returns its tag otherwise.
func manifestTarget(x *exchange, body []byte) (tag string, err error) {
	if !strings.Contains(x.ref, ":") {
		if !validTag(x.ref) {
			return "", errManifestInvalid(fmt.Errorf("%.80q is not a valid tag", x.ref))
		}
		x.digest = digestOf(sha256Algorithm, body)
		return x.ref, nil
	}
	d, err := parseDigest(x.ref)
	if err != nil {
		return "", errDigestInvalid(err)
	}
	if got := digestOf(d.algorithm, body); got != d {
		return "", errDigestInvalid(fmt.Errorf("the manifest has digest %s", got))
	}
	x.digest = d
	return "", nil
}

// checkReferences fails if a repository lacks what a manifest is made of. The
// subject may be missing; so may what is deleted at this moment.
func (r *Registry) checkReferences(repo string, m *manifest) error {
	var unknown []any
	for _, d := range m.blobs {
		ok, err := r.store.hasBlob(repo, d)
		if err != nil {
			return err
		}
		if !ok {
			unknown = append(unknown, d.String())
		}
	}
	for _, d := range m.children {
		ok, err := r.store.hasManifest(repo, d)
		if err == nil && !ok {
			ok, err = r.store.hasBlob(repo, d)
		}
		if err != nil {
			return err
		}
		if !ok {
			unknown = append(unknown, d.String())
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return &apiError{
		http.StatusNotFound, codeManifestBlobUnknown, "manifest refers to what is not in this repository",
		unknown[:min(len(unknown), maxUnknown)],
	}
}

// deleteManifest deletes a tag, or a manifest with all its tags.
func (r *Registry) deleteManifest(x *exchange) error {
	if err := r.resolve(x); err != nil {
		return err
	}
	var err error
	if validTag(x.ref) {
		err = r.store.deleteTag(x.repo, x.ref)
	} else {
		err = r.deleteByDigest(x)
	}
	if err != nil {
		return ifMissing(err, errManifestUnknown(x.ref))
	}
	r.cfg.Log.Info("manifest deleted", "repo", x.repo, "ref", x.ref)
	x.w.WriteHeader(http.StatusAccepted)
	return nil
}

func (r *Registry) deleteByDigest(x *exchange) error {
	mediaType, body, err := r.store.manifest(x.repo, x.digest)
	if err != nil {
		return err
	}
	m, err := parseManifest(mediaType, body)
	if err != nil {
		return err
	}
	return r.store.deleteManifest(x.repo, x.digest, m.subject)
}
