package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// startUpload begins an upload, or takes the whole blob if the query has its
// digest, or needs no bytes at all if the query has another repository that has
// the blob.
func (r *Registry) startUpload(x *exchange) (err error) {
	query := x.req.URL.Query()
	if a := query.Get("digest-algorithm"); a != "" && algorithm(a).size() == 0 {
		return errDigestInvalid(fmt.Errorf("digest algorithm %.80q is neither sha256 nor sha512", a))
	}
	if query.Has("mount") {
		mounted, err := r.mount(x, query)
		if mounted || err != nil {
			return err
		}
	}
	whole := query.Has("digest")
	if whole {
		if x.digest, err = parseDigest(query.Get("digest")); err != nil {
			return errDigestInvalid(err)
		}
	}
	u, id, err := r.store.createUpload(x.repo)
	if err != nil {
		return err
	}
	defer u.close()
	if !whole {
		uploadHeader(x, id, 0)
		x.w.WriteHeader(http.StatusAccepted)
		return nil
	}
	if err := r.receive(x, u, -1); err != nil {
		u.discard()
		return err
	}
	return r.commit(x, u)
}

// mount makes a blob of another repository visible in this one. Without that
// repository or that blob the client has to upload it.
func (r *Registry) mount(x *exchange, query url.Values) (bool, error) {
	d, err := parseDigest(query.Get("mount"))
	if err != nil {
		return false, errDigestInvalid(err)
	}
	from := query.Get("from")
	if !validName(from) {
		return false, nil
	}
	err = r.store.mountBlob(from, x.repo, d)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	x.digest = d
	blobCreated(x)
	return true, nil
}

// getUpload tells how much of an upload is there.
func (r *Registry) getUpload(x *exchange) error {
	size, err := r.store.uploadSize(x.repo, x.ref)
	if err != nil {
		return err
	}
	uploadHeader(x, x.ref, size)
	x.w.WriteHeader(http.StatusNoContent)
	return nil
}

// patchUpload adds a chunk to an upload. What came before a connection broke
// stays, so that the client can go on from there.
func (r *Registry) patchUpload(x *exchange) error {
	u, err := r.store.openUpload(x.repo, x.ref)
	if err != nil {
		return err
	}
	defer u.close()
	want, err := chunkLength(x, u.size)
	if err != nil {
		return err
	}
	if err := r.receive(x, u, want); err != nil {
		return err
	}
	uploadHeader(x, x.ref, u.size)
	x.w.WriteHeader(http.StatusAccepted)
	return nil
}

// finishUpload adds the last chunk, if the request has one, and makes the
// upload a blob.
func (r *Registry) finishUpload(x *exchange) (err error) {
	if x.digest, err = parseDigest(x.req.URL.Query().Get("digest")); err != nil {
		return errDigestInvalid(err)
	}
	u, err := r.store.openUpload(x.repo, x.ref)
	if err != nil {
		return err
	}
	defer u.close()
	want, err := chunkLength(x, u.size)
	if err != nil {
		return err
	}
	if err := r.receive(x, u, want); err != nil {
		return err
	}
	return r.commit(x, u)
}

// cancelUpload forgets an upload.
func (r *Registry) cancelUpload(x *exchange) error {
	if err := r.store.removeUpload(x.repo, x.ref); err != nil {
		return err
	}
	x.w.WriteHeader(http.StatusNoContent)
	return nil
}

// commit makes the upload the blob x.digest if it is that. If not, the upload
// is of no further use.
func (r *Registry) commit(x *exchange, u *upload) error {
	got, err := u.digest(x.digest.algorithm)
	if err != nil {
		return err
	}
	if got != x.digest {
		u.discard()
		return errDigestInvalid(fmt.Errorf("the %d bytes uploaded have digest %s", u.size, got))
	}
	if err := u.commit(x.repo, x.digest); err != nil {
		return err
	}
	blobCreated(x)
	return nil
}

// receive adds the request's body to an upload. If the length of the chunk is
// known, want, another length adds nothing; -1 takes what comes.
func (r *Registry) receive(x *exchange, u *upload, want int64) error {
	before := u.size
	room := r.cfg.MaxBlob - before
	tooLarge := errTooLarge(fmt.Sprintf("blobs may have %d bytes", r.cfg.MaxBlob))
	if x.req.ContentLength > room || want > room {
		return tooLarge
	}
	most := room
	if want >= 0 {
		most = want
	}
	body := &trackedReader{r: x.req.Body}
	n, err := u.append(io.LimitReader(body, most+1))
	if err == nil && n <= most && (want < 0 || n == want) {
		return nil
	}
	switch {
	case err != nil && body.err == nil:
		return fmt.Errorf("write upload: %w", err)
	case err != nil:
		return &apiError{http.StatusBadRequest, codeBlobUploadInvalid, "the body broke off", nil}
	}
	if err := u.truncate(before); err != nil {
		return err
	}
	if want < 0 {
		return tooLarge
	}
	return errSizeInvalid(fmt.Sprintf("the body has not the %d bytes of its Content-Range", want))
}

// A trackedReader remembers what its reader failed with, to tell that from the
// errors of a writer.
type trackedReader struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (t *trackedReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}

// chunkLength checks that a chunk starts where the upload ends, if it says
// where it starts, and returns its length, or -1 if it doesn't say.
func chunkLength(x *exchange, size int64) (int64, error) {
	header := x.req.Header.Get("Content-Range")
	if header == "" {
		return -1, nil
	}
	start, end, err := parseContentRange(header)
	if err != nil {
		return 0, &apiError{http.StatusBadRequest, codeBlobUploadInvalid, err.Error(), nil}
	}
	if start != size {
		uploadHeader(x, x.ref, size)
		return 0, &apiError{
			http.StatusRequestedRangeNotSatisfiable, codeBlobUploadInvalid,
			fmt.Sprintf("chunk starts at %d and not at %d, where the upload ends", start, size), nil,
		}
	}
	length := end - start + 1
	if x.req.ContentLength >= 0 && x.req.ContentLength != length {
		return 0, errSizeInvalid(fmt.Sprintf("Content-Range has %d bytes and Content-Length %d", length, x.req.ContentLength))
	}
	return length, nil
}

// parseContentRange parses the spec's form of the header, "first-last", in
// which it differs from RFC 9110.
func parseContentRange(s string) (start, end int64, err error) {
	first, last, ok := strings.Cut(s, "-")
	if ok {
		start, ok = parseOffset(first)
	}
	if ok {
		end, ok = parseOffset(last)
	}
	if !ok || end < start {
		return 0, 0, fmt.Errorf("Content-Range %.80q is not first-last, both inclusive", s)
	}
	return start, end, nil
}

// parseOffset parses a decimal number without a sign that leaves room to add
// one.
func parseOffset(s string) (int64, bool) {
	if s == "" || len(s) > 18 || s[0] == '+' || s[0] == '-' {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// uploadHeader sets where an upload goes on and what it has.
func uploadHeader(x *exchange, id string, size int64) {
	h := x.w.Header()
	h.Set("Location", "/v2/"+x.repo+"/blobs/uploads/"+id)
	h.Set("Docker-Upload-Uuid", id)
	h.Set("Range", fmt.Sprintf("0-%d", max(size-1, 0))) // nothing is 0-0 by custom
}

// blobCreated answers a request that made x.digest visible.
func blobCreated(x *exchange) {
	h := x.w.Header()
	h.Set("Location", "/v2/"+x.repo+"/blobs/"+x.digest.String())
	h.Set("Docker-Content-Digest", x.digest.String())
	x.w.WriteHeader(http.StatusCreated)
}
