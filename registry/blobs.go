package registry

import (
	"net/http"
	"time"
)

// getBlob serves a blob or parts of it. All of RFC 9110's conditions and ranges
// are http.ServeContent's work.
func (r *Registry) getBlob(x *exchange) (err error) {
	if x.digest, err = parseDigest(x.ref); err != nil {
		return errDigestInvalid(err)
	}
	f, err := r.store.openBlob(x.repo, x.digest)
	if err != nil {
		return ifMissing(err, errBlobUnknown(x.digest))
	}
	defer f.Close()
	contentHeader(x, "application/octet-stream")
	x.w.Header().Set("Cache-Control", "max-age=31536000, immutable")
	http.ServeContent(x.w, x.req, "", time.Time{}, f)
	return nil
}

// deleteBlob takes a blob from a repository.
func (r *Registry) deleteBlob(x *exchange) (err error) {
	if x.digest, err = parseDigest(x.ref); err != nil {
		return errDigestInvalid(err)
	}
	if err := r.store.deleteBlob(x.repo, x.digest); err != nil {
		return ifMissing(err, errBlobUnknown(x.digest))
	}
	x.w.WriteHeader(http.StatusAccepted)
	return nil
}

// contentHeader sets what goes with all content: its type, which clients must
// not guess as it is somebody's bytes, and its digest, also as the validator.
func contentHeader(x *exchange, contentType string) {
	h := x.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Docker-Content-Digest", x.digest.String())
	h.Set("Etag", `"`+x.digest.String()+`"`)
}
