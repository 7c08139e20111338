package registry

import (
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBlobHeaders(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	d := pushBlob(t, r, "a/b", "0123456789")
	want := []string{
		"Content-Length", "10",
		"Content-Type", "application/octet-stream",
		"Docker-Content-Digest", d,
		"Etag", `"` + d + `"`,
		"Accept-Ranges", "bytes",
		"X-Content-Type-Options", "nosniff",
	}
	for _, method := range []string{"GET", "HEAD"} {
		w := do(r, method, "/v2/a/b/blobs/"+d, "")
		wantStatus(t, w, http.StatusOK, "")
		wantHeader(t, w, want...)
		if got := w.Body.String(); method == "GET" && got != "0123456789" || method == "HEAD" && got != "" {
			t.Errorf("%s: body is %q", method, got)
		}
	}
}

// TestRanges compares answers with those of http.ServeContent, and with what is
// known to be right.
func TestRanges(t *testing.T) {
	const content = "0123456789"
	r := open(t, t.TempDir(), Config{})
	d := pushBlob(t, r, "a", content)
	pushBlob(t, r, "a", "")
	etag := `"` + d + `"`
	reference := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Etag", etag)
		http.ServeContent(w, req, "", time.Time{}, strings.NewReader(content))
	})
	tests := []struct {
		name    string
		headers []string
		status  int
		body    string // not compared with several ranges
		content string // the Content-Range
	}{
		{"none", nil, 200, content, ""},
		{"closed", []string{"Range", "bytes=2-4"}, 206, "234", "bytes 2-4/10"},
		{"first byte", []string{"Range", "bytes=0-0"}, 206, "0", "bytes 0-0/10"},
		{"whole", []string{"Range", "bytes=0-9"}, 206, content, "bytes 0-9/10"},
		{"beyond the end", []string{"Range", "bytes=8-100"}, 206, "89", "bytes 8-9/10"},
		{"open", []string{"Range", "bytes=7-"}, 206, "789", "bytes 7-9/10"},
		{"open from the start", []string{"Range", "bytes=0-"}, 206, content, "bytes 0-9/10"},
		{"suffix", []string{"Range", "bytes=-3"}, 206, "789", "bytes 7-9/10"},
		{"suffix above the size", []string{"Range", "bytes=-30"}, 206, content, "bytes 0-9/10"},
		{"after the end", []string{"Range", "bytes=10-"}, 416, "", "bytes */10"},
		{"backwards", []string{"Range", "bytes=5-2"}, 416, "", ""},
		{"other unit", []string{"Range", "lines=1-2"}, 416, "", ""},
		{"garbage", []string{"Range", "bytes=a-b"}, 416, "", ""},
		{"several", []string{"Range", "bytes=0-1,4-5"}, 206, "", ""},
		{"several and a suffix", []string{"Range", "bytes=0-1,-1"}, 206, "", ""},
		{"more than everything", []string{"Range", "bytes=0-9,0-9"}, 200, content, ""},
		{"one of several is there", []string{"Range", "bytes=1-2,20-30"}, 206, "12", "bytes 1-2/10"},
		{"if-range matches", []string{"Range", "bytes=2-4", "If-Range", etag}, 206, "234", "bytes 2-4/10"},
		{"if-range differs", []string{"Range", "bytes=2-4", "If-Range", `"x"`}, 200, content, ""},
		{"if-range by date", []string{"Range", "bytes=2-4", "If-Range", "Wed, 01 Jan 2020 00:00:00 GMT"}, 200, content, ""},
		{"if-none-match", []string{"If-None-Match", etag}, 304, "", ""},
		{"if-none-match differs", []string{"If-None-Match", `"x"`}, 200, content, ""},
		{"if-match", []string{"If-Match", etag}, 200, content, ""},
		{"if-match differs", []string{"If-Match", `"x"`}, 412, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := do(r, "GET", "/v2/a/blobs/"+d, "", tt.headers...)
			want := do(reference, "GET", "/", "", tt.headers...)
			wantStatus(t, got, tt.status, "")
			wantHeader(t, got, "Content-Range", want.Header().Get("Content-Range"), "Content-Length", want.Header().Get("Content-Length"))
			if tt.content != "" {
				wantHeader(t, got, "Content-Range", tt.content)
			}
			if want.Code != tt.status {
				t.Errorf("ServeContent answers %d", want.Code)
			}
			if tt.status == 200 || tt.body != "" {
				if got.Body.String() != tt.body {
					t.Errorf("body is %q, not %q", got.Body, tt.body)
				}
			}
			if g, w := parts(t, got), parts(t, want); !slices.Equal(g, w) {
				t.Errorf("parts are %q, not %q", g, w)
			}
		})
	}
	t.Run("empty blob", func(t *testing.T) {
		w := do(r, "GET", "/v2/a/blobs/"+sum(""), "", "Range", "bytes=0-")
		wantStatus(t, w, http.StatusOK, "")
		wantHeader(t, w, "Content-Length", "0")
	})
}

// parts returns the ranges of an answer with several, nil of any other.
func parts(t *testing.T, w *httptest.ResponseRecorder) []string {
	t.Helper()
	kind, params, err := mime.ParseMediaType(w.Header().Get("Content-Type"))
	if err != nil || kind != "multipart/byteranges" {
		return nil
	}
	var list []string
	for m := multipart.NewReader(w.Body, params["boundary"]); ; {
		p, err := m.NextPart()
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(p)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%s: %s", p.Header.Get("Content-Range"), body))
	}
}

func TestBlobVisibility(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	d := pushBlob(t, r, "one", "shared")
	see := func(repo string) bool { return do(r, "HEAD", "/v2/"+repo+"/blobs/"+d, "").Code == http.StatusOK }
	if see("two") {
		t.Fatal("a blob is visible where nobody pushed it")
	}

	w := do(r, "POST", "/v2/two/blobs/uploads/?mount="+d+"&from=one", "")
	wantStatus(t, w, http.StatusCreated, "")
	wantHeader(t, w, "Location", "/v2/two/blobs/"+d, "Docker-Content-Digest", d)
	if !see("two") {
		t.Fatal("the mounted blob is not visible")
	}

	wantStatus(t, do(r, "DELETE", "/v2/one/blobs/"+d, ""), http.StatusAccepted, "")
	if see("one") || !see("two") {
		t.Fatal("a deletion is not that of one repository")
	}
	if !has(t, r, contentPath(mustDigest(t, d))) {
		t.Fatal("content went that a repository has")
	}
	wantStatus(t, do(r, "DELETE", "/v2/two/blobs/"+d, ""), http.StatusAccepted, "")
	if has(t, r, contentPath(mustDigest(t, d))) {
		t.Fatal("content stays that no repository has")
	}
	wantStatus(t, do(r, "DELETE", "/v2/two/blobs/"+d, ""), http.StatusNotFound, codeBlobUnknown)
}

func TestMountFallsBack(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	d := pushBlob(t, r, "one", "shared")
	tests := []struct {
		name, query string
		status      int
		code        code
	}{
		{"without from", "mount=" + d, 202, ""},
		{"unknown repository", "mount=" + d + "&from=none", 202, ""},
		{"invalid repository", "mount=" + d + "&from=../one", 202, ""},
		{"unknown blob", "mount=" + sum("none") + "&from=one", 202, ""},
		{"bad digest", "mount=x&from=one", 400, codeDigestInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := do(r, "POST", "/v2/two/blobs/uploads/?"+tt.query, "")
			wantStatus(t, w, tt.status, tt.code)
			if tt.status == 202 && !strings.HasPrefix(w.Header().Get("Location"), "/v2/two/blobs/uploads/") {
				t.Errorf("location is %q", w.Header().Get("Location"))
			}
		})
	}
	if w := do(r, "GET", "/v2/_catalog", ""); strings.Contains(w.Body.String(), "two") {
		t.Errorf("a mount that failed made a repository: %s", w.Body)
	}
}

func mustDigest(t testing.TB, s string) digest {
	t.Helper()
	d, err := parseDigest(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// has reports whether there is a file in the registry's directory.
func has(t testing.TB, r *Registry, name string) bool {
	t.Helper()
	ok, err := r.store.exists(name)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}
