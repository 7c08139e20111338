package registry

import (
	"fmt"
	"net/http"
	"path"
	"regexp"
	"strings"
	"testing"
)

// The spec's own expressions.
var (
	specName = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	specTag  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

// FuzzNames compares the hand-written grammars with the spec's expressions.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "a", "a/b", "a__b", "a---b", "a._b", "_", "A.b-C", "..", "a\n", "a/../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := validName(s), len(s) <= maxName && specName.MatchString(s) && !strings.HasSuffix(s, "\n"); got != want {
			t.Errorf("name %q: %v, not %v", s, got, want)
		}
		if got, want := validTag(s), specTag.MatchString(s) && !strings.HasSuffix(s, "\n"); got != want {
			t.Errorf("tag %q: %v, not %v", s, got, want)
		}
		if d, err := parseDigest(s); err == nil && d.String() != s {
			t.Errorf("digest %q becomes %q", s, d)
		}
	})
}

// FuzzRoute checks that no path leads out of the directory of its repository.
func FuzzRoute(f *testing.F) {
	for _, s := range []string{
		"/v2/", "/v2/_catalog", "/v2/a/tags/list", "/v2/a/b/manifests/v1", "/v2/a/blobs/uploads/",
		"/v2/a/blobs/uploads/00000000-0000-4000-8000-000000000000", "/v2/../blobs/" + sum(""),
		"/v2/a/referrers/" + sum(""), "/v2/blobs/uploads/blobs/uploads/x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		rt, err := parseRoute(s)
		if err != nil {
			return
		}
		if rt.kind == KindBase || rt.kind == KindCatalog {
			if rt.repo != "" || rt.ref != "" {
				t.Errorf("%q: route %+v", s, rt)
			}
			return
		}
		if !specName.MatchString(rt.repo) {
			t.Errorf("%q: repository %q", s, rt.repo)
		}
		if strings.Contains(rt.ref, "/") {
			t.Errorf("%q: reference %q", s, rt.ref)
		}
		root := reposDir + "/" + rt.repo + "/_"
		if name := tagPath(rt.repo, rt.ref); validTag(rt.ref) && (!strings.HasPrefix(name, root) || path.Clean(name) != name) {
			t.Errorf("%q: tag is at %q", s, name)
		}
		if d, err := parseDigest(rt.ref); err == nil && !strings.HasPrefix(blobPath(rt.repo, d), root) {
			t.Errorf("%q: blob is at %q", s, blobPath(rt.repo, d))
		}
		if name := uploadPath(rt.repo, rt.ref); validUploadID(rt.ref) && path.Dir(name) != uploadsDir {
			t.Errorf("%q: upload is at %q", s, name)
		}
	})
}

func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"", "0-0", "0-9", "10-9", "-1", "1-", "+1-2", "1--2", "99999999999999999999-1", "bytes 0-1/2", "01-2"} {
		f.Add(s)
	}
	spec := regexp.MustCompile(`^[0-9]+-[0-9]+$`)
	f.Fuzz(func(t *testing.T, s string) {
		start, end, err := parseContentRange(s)
		if err != nil {
			return
		}
		if start < 0 || end < start || end-start+1 <= 0 || !spec.MatchString(s) {
			t.Errorf("%q: %d to %d", s, start, end)
		}
		again, last, err := parseContentRange(fmt.Sprintf("%d-%d", start, end))
		if err != nil || again != start || last != end {
			t.Errorf("%q: %d to %d, and then %d to %d, %v", s, start, end, again, last, err)
		}
	})
}

// FuzzManifest pushes manifests. What is taken must come back byte for byte,
// and never end in an internal error.
func FuzzManifest(f *testing.F) {
	const config = "config"
	known := desc(configType, sum(config), len(config), "")
	f.Add(ociManifest, imageJSON(known, ""))
	f.Add(ociManifest, imageJSON(known, `,"subject":`+known+`,"annotations":{"a":"b"}`, known))
	f.Add(ociIndex, indexJSON("", known))
	f.Add("", indexJSON(`,"subject":`+known))
	f.Add(dockerList, `{"schemaVersion":2,"manifests":null}`)
	f.Add(ociManifest, imageJSON(desc("x", sum("unknown"), 1, ""), "", `{"digest":7}`))
	r := open(f, f.TempDir(), Config{})
	pushBlob(f, r, "a", config)
	f.Fuzz(func(t *testing.T, contentType, body string) {
		if strings.ContainsAny(contentType, "\r\n\x00") {
			return // can't be in a header
		}
		w := do(r, "PUT", "/v2/a/manifests/v1", body, "Content-Type", contentType)
		if w.Code >= 500 {
			t.Fatalf("status is %d: %s", w.Code, w.Body)
		}
		if w.Code != http.StatusCreated {
			return
		}
		d := w.Header().Get("Docker-Content-Digest")
		w = do(r, "GET", "/v2/a/manifests/v1", "")
		wantStatus(t, w, http.StatusOK, "")
		if w.Body.String() != body || d != sum(body) {
			t.Errorf("%q came back as %q", body, w.Body)
		}
		if subject := do(r, "GET", "/v2/a/referrers/"+sum(config), ""); subject.Code != http.StatusOK {
			t.Errorf("referrers: %d %s", subject.Code, subject.Body)
		}
		wantStatus(t, do(r, "DELETE", "/v2/a/manifests/"+d, ""), http.StatusAccepted, "")
	})
}
