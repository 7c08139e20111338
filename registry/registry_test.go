package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// open returns a registry in dir that is closed at the end of the test.
func open(t testing.TB, dir string, cfg Config) *Registry {
	t.Helper()
	r, err := New(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

// do sends a request straight to a handler. Headers are pairs of name and value.
func do(h http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

// unsized hides the length of a body, as chunked transfer encoding does.
func unsized(body string) io.Reader { return io.MultiReader(strings.NewReader(body)) }

// wantStatus fails the test unless an answer has the status and, if it is given,
// the error code.
func wantStatus(t testing.TB, w *httptest.ResponseRecorder, status int, code code) {
	t.Helper()
	if w.Code != status {
		t.Fatalf("status is %d, not %d: %s", w.Code, status, w.Body)
	}
	if code == "" {
		return
	}
	var body struct {
		Errors []struct{ Code, Message string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("error body %q: %v", w.Body, err)
	}
	if len(body.Errors) == 0 || body.Errors[0].Code != string(code) || body.Errors[0].Message == "" {
		t.Fatalf("error body is %q, without the code %s or a message", w.Body, code)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("content type of the error is %q", got)
	}
}

// wantHeader fails the test unless an answer has the given headers, pairs of
// name and value.
func wantHeader(t testing.TB, w *httptest.ResponseRecorder, headers ...string) {
	t.Helper()
	for i := 0; i < len(headers); i += 2 {
		if got := w.Header().Get(headers[i]); got != headers[i+1] {
			t.Errorf("header %s is %q, not %q", headers[i], got, headers[i+1])
		}
	}
}

// sum returns the sha256 digest of s.
func sum(s string) string { return digestOf(sha256Algorithm, []byte(s)).String() }

// pushBlob uploads a blob in one request.
func pushBlob(t testing.TB, h http.Handler, repo, content string) string {
	t.Helper()
	d := sum(content)
	w := do(h, "POST", "/v2/"+repo+"/blobs/uploads/?digest="+d, content)
	wantStatus(t, w, http.StatusCreated, "")
	return d
}

// startUpload begins an upload and returns where it goes on.
func startUpload(t testing.TB, h http.Handler, repo string) string {
	t.Helper()
	w := do(h, "POST", "/v2/"+repo+"/blobs/uploads/", "")
	wantStatus(t, w, http.StatusAccepted, "")
	return w.Header().Get("Location")
}

// desc returns the JSON of a descriptor, with further fields.
func desc(mediaType, digest string, size int, more string) string {
	return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d%s}`, mediaType, digest, size, more)
}

// imageJSON returns an OCI image manifest, with further fields.
func imageJSON(config string, more string, layers ...string) string {
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":[%s]%s}`,
		ociManifest, config, strings.Join(layers, ","), more)
}

// indexJSON returns an OCI index, with further fields.
func indexJSON(more string, children ...string) string {
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[%s]%s}`,
		ociIndex, strings.Join(children, ","), more)
}

const configType = "application/vnd.oci.image.config.v1+json"

// pushImage pushes an image without layers and returns its digest. Other names
// make other digests.
func pushImage(t testing.TB, h http.Handler, repo, ref, name, more string) (digest string, size int) {
	t.Helper()
	d := pushBlob(t, h, repo, name)
	body := imageJSON(desc(configType, d, len(name), ""), more)
	if ref == "" {
		ref = sum(body)
	}
	w := do(h, "PUT", "/v2/"+repo+"/manifests/"+ref, body, "Content-Type", ociManifest)
	wantStatus(t, w, http.StatusCreated, "")
	return sum(body), len(body)
}

func TestRoutes(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	d := pushBlob(t, r, "a", "x")
	tests := []struct {
		name, method, path string
		status             int
		code               code
	}{
		{"base", "GET", "/v2/", 200, ""},
		{"base without slash", "GET", "/v2", 200, ""},
		{"base by post", "POST", "/v2/", 405, codeUnsupported},
		{"root", "GET", "/", 404, codeUnsupported},
		{"version 1", "GET", "/v1/search", 404, codeUnsupported},
		{"no verb", "GET", "/v2/a/b", 404, codeUnsupported},
		{"only a verb", "GET", "/v2/blobs/" + d, 400, codeNameInvalid},
		{"other list", "GET", "/v2/a/tags/all", 404, codeUnsupported},
		{"blob", "GET", "/v2/a/blobs/" + d, 200, ""},
		{"escaped colon", "GET", "/v2/a/blobs/" + strings.Replace(d, ":", "%3A", 1), 200, ""},
		{"blob by post", "POST", "/v2/a/blobs/" + d, 405, codeUnsupported},
		{"unknown blob", "GET", "/v2/a/blobs/" + sum("y"), 404, codeBlobUnknown},
		{"blob of another repository", "GET", "/v2/b/blobs/" + d, 404, codeBlobUnknown},
		{"bad digest", "GET", "/v2/a/blobs/sha256:12", 400, codeDigestInvalid},
		{"upper-case digest", "GET", "/v2/a/blobs/" + strings.ToUpper(d), 400, codeDigestInvalid},
		{"digest of another algorithm", "GET", "/v2/a/blobs/md5:" + strings.Repeat("0", 32), 400, codeDigestInvalid},
		{"upper-case name", "GET", "/v2/A/tags/list", 400, codeNameInvalid},
		{"parent", "GET", "/v2/../tags/list", 400, codeNameInvalid},
		{"parent within", "GET", "/v2/a/../b/tags/list", 400, codeNameInvalid},
		{"escaped parent", "GET", "/v2/%2e%2e/%2e%2e/blobs/" + d, 400, codeNameInvalid},
		{"escaped slashes", "GET", "/v2/a%2f..%2f..%2fetc/tags/list", 400, codeNameInvalid},
		{"inner directory", "GET", "/v2/a/_blobs/tags/list", 400, codeNameInvalid},
		{"empty component", "GET", "/v2/a//b/tags/list", 400, codeNameInvalid},
		{"traversal by tag", "GET", "/v2/a/manifests/..", 404, codeManifestUnknown},
		{"traversal by upload", "GET", "/v2/a/blobs/uploads/..", 404, codeBlobUploadUnknown},
		{"NUL", "GET", "/v2/a%00/tags/list", 400, codeNameInvalid},
		{"tags of unknown repository", "GET", "/v2/none/tags/list", 404, codeNameUnknown},
		{"unknown tag", "GET", "/v2/a/manifests/none", 404, codeManifestUnknown},
		{"unknown manifest", "HEAD", "/v2/a/manifests/" + d, 404, ""},
		{"manifest with bad digest", "GET", "/v2/a/manifests/sha256:1", 400, codeDigestInvalid},
		{"referrers with bad digest", "GET", "/v2/a/referrers/x", 400, codeDigestInvalid},
		{"referrers of nothing", "GET", "/v2/none/referrers/" + d, 200, ""},
		{"upload in the list", "GET", "/v2/a/blobs/uploads/", 405, codeUnsupported},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := do(r, tt.method, tt.path, "")
			wantStatus(t, w, tt.status, tt.code)
			wantHeader(t, w, "Docker-Distribution-API-Version", "registry/2.0")
			if w.Code == http.StatusMethodNotAllowed && w.Header().Get("Allow") == "" {
				t.Error("no Allow header")
			}
		})
	}
}

func TestParseRoute(t *testing.T) {
	tests := []struct {
		path string
		want route
	}{
		{"/v2/_catalog", route{KindCatalog, "", ""}},
		{"/v2/a/tags/list", route{KindTags, "a", ""}},
		{"/v2/a/b/c/manifests/v1", route{KindManifest, "a/b/c", "v1"}},
		{"/v2/a/manifests/list", route{KindManifest, "a", "list"}},
		{"/v2/a/blobs/uploads", route{KindUpload, "a", ""}},
		{"/v2/a/blobs/uploads/", route{KindUpload, "a", ""}},
		{"/v2/a/blobs/uploads/id", route{KindUpload, "a", "id"}},
		{"/v2/blobs/uploads/blobs/uploads/id", route{KindUpload, "blobs/uploads", "id"}},
		{"/v2/tags/list/tags/list", route{KindTags, "tags/list", ""}},
		{"/v2/manifests/manifests/manifests", route{KindManifest, "manifests", "manifests"}},
		{"/v2/a/blobs/uploads/blobs/d", route{KindBlob, "a/blobs/uploads", "d"}},
		{"/v2/a/referrers/d", route{KindReferrers, "a", "d"}},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			got, err := parseRoute(tt.path)
			if err != nil || got != tt.want {
				t.Errorf("route is %+v, %v, not %+v", got, err, tt.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	tests := []struct {
		what string
		ok   func(string) bool
		good []string
		bad  []string
	}{
		{"repository", validName,
			[]string{"a", "0", "a/b/c", "a.b", "a_b", "a__b", "a-b", "a----b", "a.b_c__d-e/f", strings.Repeat("a", 255)},
			[]string{"", "/", "a/", "/a", "A", "a..b", "a___b", "a.-b", "-a", "a-", "_a", ".", "..", "a b", "a/./b", "ä", "a:b", strings.Repeat("a", 256)}},
		{"tag", validTag,
			[]string{"a", "A", "_", "1.2.3", "a-b_c.D", "list", strings.Repeat("a", 128)},
			[]string{"", ".", "..", "-a", ".a", "a/b", "a:b", "a b", "ä", strings.Repeat("a", 129)}},
	}
	for _, tt := range tests {
		for _, s := range tt.good {
			if !tt.ok(s) {
				t.Errorf("%s %.40q is refused", tt.what, s)
			}
		}
		for _, s := range tt.bad {
			if tt.ok(s) {
				t.Errorf("%s %.40q is accepted", tt.what, s)
			}
		}
	}
}

func TestConfig(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want string
	}{
		{"negative size", Config{MaxBlob: -1}, "negative"},
		{"certificate without key", Config{CertFile: "x"}, "both"},
		{"key without certificate", Config{KeyFile: "x"}, "both"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(t.TempDir(), tt.cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, without %q", err, tt.want)
			}
		})
	}
}

// TestInternalErrors checks that a client learns nothing of them and the log
// does.
func TestInternalErrors(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	r := open(t, dir, Config{Log: textLog(&log)})
	r.Close()
	w := do(r, "GET", "/v2/a/blobs/"+sum("x"), "")
	wantStatus(t, w, http.StatusInternalServerError, codeUnknown)
	if strings.Contains(w.Body.String(), "closed") || !strings.Contains(log.String(), "closed") {
		t.Errorf("body is %q and log is %q", w.Body, &log)
	}
}
