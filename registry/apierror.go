package registry

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
)

// code is an error code of the distribution spec.
type code string

const (
	codeBlobUnknown         code = "BLOB_UNKNOWN"
	codeBlobUploadInvalid   code = "BLOB_UPLOAD_INVALID"
	codeBlobUploadUnknown   code = "BLOB_UPLOAD_UNKNOWN"
	codeDigestInvalid       code = "DIGEST_INVALID"
	codeManifestBlobUnknown code = "MANIFEST_BLOB_UNKNOWN"
	codeManifestInvalid     code = "MANIFEST_INVALID"
	codeManifestUnknown     code = "MANIFEST_UNKNOWN"
	codeNameInvalid         code = "NAME_INVALID"
	codeNameUnknown         code = "NAME_UNKNOWN"
	codeSizeInvalid         code = "SIZE_INVALID"
	codeUnsupported         code = "UNSUPPORTED"
	codeUnknown             code = "UNKNOWN" // not in the spec, which has codes for 4xx only
)

// An apiError is an answer to the client. Any other error that a handler
// returns is an internal one, of which the client learns nothing.
type apiError struct {
	status  int
	code    code
	message string
	detail  any // of one error; a []any makes one error of each element
}

// Error returns the code and the message.
func (e *apiError) Error() string { return string(e.code) + ": " + e.message }

var (
	errNoEndpoint    = &apiError{http.StatusNotFound, codeUnsupported, "no such endpoint", nil}
	errNameUnknown   = &apiError{http.StatusNotFound, codeNameUnknown, "repository is not known", nil}
	errUploadUnknown = &apiError{http.StatusNotFound, codeBlobUploadUnknown, "upload is not known", nil}
	errUploadBusy    = &apiError{http.StatusConflict, codeBlobUploadInvalid, "another request is writing to this upload", nil}
)

func errBlobUnknown(d digest) error {
	return &apiError{http.StatusNotFound, codeBlobUnknown, "blob is not in this repository", d.String()}
}

func errManifestUnknown(ref string) error {
	return &apiError{http.StatusNotFound, codeManifestUnknown, "manifest is not in this repository", cap80(ref)}
}

func errDigestInvalid(err error) error {
	return &apiError{http.StatusBadRequest, codeDigestInvalid, err.Error(), nil}
}

func errManifestInvalid(err error) error {
	return &apiError{http.StatusBadRequest, codeManifestInvalid, err.Error(), nil}
}

func errSizeInvalid(message string) error {
	return &apiError{http.StatusBadRequest, codeSizeInvalid, message, nil}
}

func errTooLarge(message string) error {
	return &apiError{http.StatusRequestEntityTooLarge, codeSizeInvalid, message, nil}
}

// writeError answers a request with err. What is not an apiError is logged and
// becomes a 500. Nothing is written after the answer has begun.
func (r *Registry) writeError(x *exchange, err error) {
	var e *apiError
	if !errors.As(err, &e) {
		r.cfg.Log.Error("request failed", "method", x.req.Method, "kind", string(x.kind), "repo", x.repo, "err", err)
		e = &apiError{http.StatusInternalServerError, codeUnknown, "internal error", nil}
	}
	if x.w.status != 0 {
		return
	}
	type item struct {
		Code    code   `json:"code"`
		Message string `json:"message"`
		Detail  any    `json:"detail,omitempty"`
	}
	var body struct {
		Errors []item `json:"errors"`
	}
	details, many := e.detail.([]any)
	if !many {
		details = []any{e.detail}
	}
	for _, d := range details {
		body.Errors = append(body.Errors, item{e.code, e.message, d})
	}
	writeJSON(x, e.status, "application/json", body)
}

// errMethod is the answer to a method that an endpoint does not have.
func errMethod(x *exchange, allowed []string) error {
	x.w.Header().Set("Allow", strings.Join(allowed, ", "))
	return &apiError{http.StatusMethodNotAllowed, codeUnsupported, "the endpoint has no such method", cap80(x.req.Method)}
}

// writeJSON answers a request with v. Errors of the connection have nobody
// left to be told.
func writeJSON(x *exchange, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("registry: " + err.Error()) // only our own plain structs come here
	}
	x.w.Header().Set("Content-Type", contentType)
	x.w.WriteHeader(status)
	x.w.Write(append(body, '\n'))
}
