package registry

import (
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

func TestUploadForms(t *testing.T) {
	const content = "0123456789"
	d := sum(content)
	sha512sum := fmt.Sprintf("sha512:%x", sha512.Sum512([]byte(content)))
	tests := []struct {
		name   string
		digest string
		push   func(t *testing.T, r *Registry) *httptest.ResponseRecorder
	}{
		{"one post", d, func(t *testing.T, r *Registry) *httptest.ResponseRecorder {
			return do(r, "POST", "/v2/a/blobs/uploads/?digest="+d, content)
		}},
		{"post and put", d, func(t *testing.T, r *Registry) *httptest.ResponseRecorder {
			return do(r, "PUT", startUpload(t, r, "a")+"?digest="+d, content)
		}},
		{"one patch without a range", d, func(t *testing.T, r *Registry) *httptest.ResponseRecorder {
			loc := startUpload(t, r, "a")
			w := do(r, "PATCH", loc, content)
			wantStatus(t, w, http.StatusAccepted, "")
			wantHeader(t, w, "Location", loc, "Range", "0-9")
			return do(r, "PUT", loc+"?digest="+d, "")
		}},
		{"chunks", d, func(t *testing.T, r *Registry) *httptest.ResponseRecorder {
			loc := startUpload(t, r, "a")
			wantStatus(t, do(r, "PATCH", loc, content[:4], "Content-Range", "0-3"), http.StatusAccepted, "")
			wantStatus(t, do(r, "PATCH", loc, content[4:7], "Content-Range", "4-6"), http.StatusAccepted, "")
			w := do(r, "GET", loc, "")
			wantStatus(t, w, http.StatusNoContent, "")
			wantHeader(t, w, "Location", loc, "Range", "0-6")
			return do(r, "PUT", loc+"?digest="+d, content[7:], "Content-Range", "7-9")
		}},
		{"last chunk without a range", d, func(t *testing.T, r *Registry) *httptest.ResponseRecorder {
			loc := startUpload(t, r, "a")
			wantStatus(t, do(r, "PATCH", loc, content[:4]), http.StatusAccepted, "")
			return do(r, "PUT", loc+"?digest="+d, content[4:])
		}},
		{"chunks of unknown length", d, func(t *testing.T, r *Registry) *httptest.ResponseRecorder {
			loc := startUpload(t, r, "a")
			for i, end := range []int{4, 10} {
				start := i * 4
				req := httptest.NewRequest("PATCH", loc, unsized(content[start:end]))
				req.ContentLength = -1
				req.Header.Set("Content-Range", fmt.Sprintf("%d-%d", start, end-1))
				w := httptest.NewRecorder()
				r.ServeHTTP(w, req)
				wantStatus(t, w, http.StatusAccepted, "")
			}
			return do(r, "PUT", loc+"?digest="+d, "")
		}},
		{"sha512", sha512sum, func(t *testing.T, r *Registry) *httptest.ResponseRecorder {
			w := do(r, "POST", "/v2/a/blobs/uploads/?digest-algorithm=sha512", "")
			wantStatus(t, w, http.StatusAccepted, "")
			return do(r, "PUT", w.Header().Get("Location")+"?digest="+sha512sum, content)
		}},
		{"twice", d, func(t *testing.T, r *Registry) *httptest.ResponseRecorder {
			pushBlob(t, r, "a", content)
			return do(r, "POST", "/v2/a/blobs/uploads/?digest="+d, content)
		}},
		{"known in another repository", d, func(t *testing.T, r *Registry) *httptest.ResponseRecorder {
			pushBlob(t, r, "b", content)
			return do(r, "POST", "/v2/a/blobs/uploads/?digest="+d, content)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := open(t, t.TempDir(), Config{})
			w := tt.push(t, r)
			wantStatus(t, w, http.StatusCreated, "")
			wantHeader(t, w, "Location", "/v2/a/blobs/"+tt.digest, "Docker-Content-Digest", tt.digest)
			w = do(r, "GET", w.Header().Get("Location"), "")
			wantStatus(t, w, http.StatusOK, "")
			if w.Body.String() != content {
				t.Errorf("blob is %q", w.Body)
			}
			if left := files(t, r, uploadsDir); len(left) > 0 {
				t.Errorf("uploads left: %q", left)
			}
			if n := len(files(t, r, blobsDir)); n != 1 {
				t.Errorf("the content is there %d times", n)
			}
		})
	}
}

func TestUploadErrors(t *testing.T) {
	d := sum("0123456789")
	type request struct {
		method, query, body string
		headers             []string
	}
	tests := []struct {
		name   string
		last   request
		status int
		code   code
		size   int // that the upload has after it; -1 if it has to be gone
	}{
		{"first chunk again", request{"PATCH", "", "0123", []string{"Content-Range", "0-3"}}, 416, codeBlobUploadInvalid, 4},
		{"gap", request{"PATCH", "", "6789", []string{"Content-Range", "6-9"}}, 416, codeBlobUploadInvalid, 4},
		{"gap before the end", request{"PUT", "?digest=" + d, "6789", []string{"Content-Range", "6-9"}}, 416, codeBlobUploadInvalid, 4},
		{"shorter than its range", request{"PATCH", "", "45", []string{"Content-Range", "4-9"}}, 400, codeSizeInvalid, 4},
		{"longer than its range", request{"PATCH", "", "456789", []string{"Content-Range", "4-5"}}, 400, codeSizeInvalid, 4},
		{"backwards", request{"PATCH", "", "456789", []string{"Content-Range", "9-4"}}, 400, codeBlobUploadInvalid, 4},
		{"range of RFC 9110", request{"PATCH", "", "456789", []string{"Content-Range", "bytes 4-9/10"}}, 400, codeBlobUploadInvalid, 4},
		{"too large", request{"PATCH", "", strings.Repeat("x", 13), nil}, 413, codeSizeInvalid, 4},
		{"too large by its range", request{"PATCH", "", strings.Repeat("x", 13), []string{"Content-Range", "4-16"}}, 413, codeSizeInvalid, 4},
		{"no digest", request{"PUT", "", "456789", nil}, 400, codeDigestInvalid, 4},
		{"unknown algorithm", request{"PUT", "?digest=md5:00", "456789", nil}, 400, codeDigestInvalid, 4},
		{"wrong digest", request{"PUT", "?digest=" + sum("other"), "456789", nil}, 400, codeDigestInvalid, -1},
		{"cancelled", request{"DELETE", "", "", nil}, 204, "", -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := open(t, t.TempDir(), Config{MaxBlob: 16})
			loc := startUpload(t, r, "a")
			wantStatus(t, do(r, "PATCH", loc, "0123"), http.StatusAccepted, "")
			w := do(r, tt.last.method, loc+tt.last.query, tt.last.body, tt.last.headers...)
			wantStatus(t, w, tt.status, tt.code)
			if tt.status == 416 {
				wantHeader(t, w, "Location", loc, "Range", "0-3")
			}
			w = do(r, "GET", loc, "")
			if tt.size < 0 {
				wantStatus(t, w, http.StatusNotFound, codeBlobUploadUnknown)
				wantStatus(t, do(r, "PATCH", loc, "x"), http.StatusNotFound, codeBlobUploadUnknown)
				wantStatus(t, do(r, "PUT", loc+"?digest="+d, ""), http.StatusNotFound, codeBlobUploadUnknown)
				wantStatus(t, do(r, "DELETE", loc, ""), http.StatusNotFound, codeBlobUploadUnknown)
				return
			}
			wantStatus(t, w, http.StatusNoContent, "")
			wantHeader(t, w, "Range", fmt.Sprintf("0-%d", tt.size-1))
			wantStatus(t, do(r, "PUT", loc+"?digest="+d, "456789"), http.StatusCreated, "")
		})
	}
}

func TestStartUploadErrors(t *testing.T) {
	tests := []struct {
		name, query, body string
		status            int
		code              code
	}{
		{"wrong digest", "digest=" + sum("other"), "x", 400, codeDigestInvalid},
		{"bad digest", "digest=sha256:1", "x", 400, codeDigestInvalid},
		{"unknown algorithm", "digest-algorithm=md5", "", 400, codeDigestInvalid},
		{"too large", "digest=" + sum("x"), "12345", 413, codeSizeInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := open(t, t.TempDir(), Config{MaxBlob: 4})
			wantStatus(t, do(r, "POST", "/v2/a/blobs/uploads/?"+tt.query, tt.body), tt.status, tt.code)
			if left := files(t, r, "."); len(left) != 1 {
				t.Errorf("files left: %q", left)
			}
		})
	}
}

// TestUploadUnsizedLimit checks the bound on a body that doesn't say its length.
func TestUploadUnsizedLimit(t *testing.T) {
	r := open(t, t.TempDir(), Config{MaxBlob: 16})
	loc := startUpload(t, r, "a")
	for _, tt := range []struct {
		name   string
		length int
		ranges string
		status int
		code   code
	}{
		{"above the bound", 17, "", 413, codeSizeInvalid},
		{"above its range", 8, "0-6", 400, codeSizeInvalid},
		{"below its range", 8, "0-8", 400, codeSizeInvalid},
		{"at the bound", 16, "", 202, ""},
	} {
		req := httptest.NewRequest("PATCH", loc, unsized(strings.Repeat("x", tt.length)))
		req.ContentLength = -1
		if tt.ranges != "" {
			req.Header.Set("Content-Range", tt.ranges)
		}
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		t.Run(tt.name, func(t *testing.T) { wantStatus(t, w, tt.status, tt.code) })
	}
}

// TestUploadOfAnotherRepository checks that an id is worth nothing elsewhere.
func TestUploadOfAnotherRepository(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	loc := strings.Replace(startUpload(t, r, "a"), "/a/", "/b/", 1)
	for _, method := range []string{"GET", "PATCH", "DELETE"} {
		wantStatus(t, do(r, method, loc, ""), http.StatusNotFound, codeBlobUploadUnknown)
	}
}

// TestBrokenUpload checks that what came before a connection broke can be
// resumed.
func TestBrokenUpload(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	loc := startUpload(t, r, "a")
	req := httptest.NewRequest("PATCH", loc, io.MultiReader(strings.NewReader("01234"), brokenReader{}))
	req.ContentLength = -1
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	wantStatus(t, w, http.StatusBadRequest, codeBlobUploadInvalid)
	wantHeader(t, do(r, "GET", loc, ""), "Range", "0-4")
	wantStatus(t, do(r, "PATCH", loc, "56789", "Content-Range", "5-9"), http.StatusAccepted, "")
	wantStatus(t, do(r, "PUT", loc+"?digest="+sum("0123456789"), ""), http.StatusCreated, "")
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

// TestOneWriter checks that a second writer is sent away while the first is
// busy, that the status can be asked for, and that the upload can be cancelled.
func TestOneWriter(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	loc := startUpload(t, r, "a")
	body, feed := io.Pipe()
	first := httptest.NewRecorder()
	var done sync.WaitGroup
	done.Go(func() {
		req := httptest.NewRequest("PUT", loc+"?digest="+sum("ab"), body)
		req.ContentLength = -1
		r.ServeHTTP(first, req)
	})
	io.WriteString(feed, "a") // returns after the handler has read it
	wantStatus(t, do(r, "PATCH", loc, "x"), http.StatusConflict, codeBlobUploadInvalid)
	wantStatus(t, do(r, "GET", loc, ""), http.StatusNoContent, "")
	wantStatus(t, do(r, "DELETE", loc, ""), http.StatusNoContent, "")
	io.WriteString(feed, "b")
	feed.Close()
	done.Wait()
	wantStatus(t, first, http.StatusNotFound, codeBlobUploadUnknown)
	wantStatus(t, do(r, "HEAD", "/v2/a/blobs/"+sum("ab"), ""), http.StatusNotFound, "")
}

// TestConcurrentPushes pushes the same blobs to several repositories at once,
// in several ways, with readers and deletions between.
func TestConcurrentPushes(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	blobs := []string{"one", "two", "three", strings.Repeat("four", 1<<16)}
	var all sync.WaitGroup
	for worker := range 8 {
		repo := fmt.Sprintf("repo%d", worker%4)
		all.Go(func() {
			for range 5 {
				for _, content := range blobs {
					d := sum(content)
					if w := do(r, "POST", "/v2/"+repo+"/blobs/uploads/?digest="+d, content); w.Code != http.StatusCreated {
						t.Errorf("push: %d %s", w.Code, w.Body)
					}
					if w := do(r, "GET", "/v2/"+repo+"/blobs/"+d, ""); w.Code != http.StatusOK || w.Body.String() != content {
						t.Errorf("get: %d, %d bytes", w.Code, w.Body.Len())
					}
					if w := do(r, "POST", "/v2/other/blobs/uploads/?mount="+d+"&from="+repo, ""); w.Code != http.StatusCreated {
						t.Errorf("mount: %d %s", w.Code, w.Body)
					}
					if w := do(r, "DELETE", "/v2/other/blobs/"+d, ""); w.Code != http.StatusAccepted && w.Code != http.StatusNotFound {
						t.Errorf("delete: %d %s", w.Code, w.Body)
					}
				}
				pushSame(t, r, repo)
			}
		})
	}
	all.Wait()
	if n := len(files(t, r, blobsDir)); n != len(blobs)+1 {
		t.Errorf("%d blobs on the disk, not %d", n, len(blobs)+1)
	}
	for _, dir := range []string{uploadsDir, tmpDir} {
		if left := files(t, r, dir); len(left) > 0 {
			t.Errorf("files left: %q", left)
		}
	}
}

// pushSame pushes an image to the same tag and under the same digest as others
// do.
func pushSame(t *testing.T, r *Registry, repo string) {
	const config = "config"
	body := imageJSON(desc(configType, sum(config), len(config), ""), "")
	if w := do(r, "POST", "/v2/"+repo+"/blobs/uploads/?digest="+sum(config), config); w.Code != http.StatusCreated {
		t.Errorf("push config: %d %s", w.Code, w.Body)
	}
	for _, ref := range []string{"latest", sum(body)} {
		if w := do(r, "PUT", "/v2/"+repo+"/manifests/"+ref, body, "Content-Type", ociManifest); w.Code != http.StatusCreated {
			t.Errorf("push manifest: %d %s", w.Code, w.Body)
		}
		if w := do(r, "GET", "/v2/"+repo+"/manifests/"+ref, ""); w.Code != http.StatusOK || w.Body.String() != body {
			t.Errorf("get manifest: %d %s", w.Code, w.Body)
		}
	}
}

// files returns the files below a directory of the registry.
func files(t testing.TB, r *Registry, dir string) []string {
	t.Helper()
	var list []string
	err := fs.WalkDir(r.store.root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			list = append(list, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
