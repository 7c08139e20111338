package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestManifestRoundTrip(t *testing.T) {
	// Spacing and unknown fields have to survive: the digest is that of the bytes.
	config, layer := "config", "layer"
	image := " " + imageJSON(desc(configType, sum(config), len(config), ""), `, "unknown": [1]`,
		desc("application/vnd.oci.image.layer.v1.tar+gzip", sum(layer), len(layer), `,"annotations":{"a":"b"}`)) + "\n"
	docker := strings.Replace(image, ociManifest, dockerManifest, 1)
	untyped := strings.Replace(image, fmt.Sprintf(`"mediaType":%q,"config"`, ociManifest), `"config"`, 1)
	tests := []struct {
		name, body, contentType, want string
	}{
		{"oci", image, ociManifest, ociManifest},
		{"docker", docker, dockerManifest, dockerManifest},
		{"parameters", image, ociManifest + "; charset=utf-8", ociManifest},
		{"type in the manifest only", image, "", ociManifest},
		{"type in the header only", untyped, ociManifest, ociManifest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := open(t, t.TempDir(), Config{})
			pushBlob(t, r, "a", config)
			pushBlob(t, r, "a", layer)
			d := sum(tt.body)
			for _, ref := range []string{"v1", d} {
				w := do(r, "PUT", "/v2/a/manifests/"+ref, tt.body, "Content-Type", tt.contentType)
				wantStatus(t, w, http.StatusCreated, "")
				wantHeader(t, w, "Location", "/v2/a/manifests/"+ref, "Docker-Content-Digest", d, "Oci-Subject", "")
			}
			for _, method := range []string{"GET", "HEAD"} {
				for _, ref := range []string{"v1", d} {
					w := do(r, method, "/v2/a/manifests/"+ref, "")
					wantStatus(t, w, http.StatusOK, "")
					wantHeader(t, w, "Content-Type", tt.want, "Docker-Content-Digest", d,
						"Content-Length", fmt.Sprint(len(tt.body)), "Etag", `"`+d+`"`)
					if method == "GET" && w.Body.String() != tt.body {
						t.Errorf("manifest is %q", w.Body)
					}
				}
			}
			wantStatus(t, do(r, "GET", "/v2/a/manifests/v1", "", "If-None-Match", `"`+d+`"`), http.StatusNotModified, "")
		})
	}
}

func TestPutManifestErrors(t *testing.T) {
	const config = "config"
	known := desc(configType, sum(config), len(config), "")
	unknown := desc("application/vnd.oci.image.layer.v1.tar", sum("unknown"), 7, "")
	foreign := desc("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", sum("unknown"), 7, "")
	urls := desc("application/vnd.oci.image.layer.v1.tar", sum("unknown"), 7, `,"urls":["https://example.com/x"]`)
	nondistributable := desc("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", sum("unknown"), 7, "")
	good := imageJSON(known, "")
	tests := []struct {
		name, ref, contentType, body string
		status                       int
		code                         code
	}{
		{"good", "v1", ociManifest, good, 201, ""},
		{"bad tag", ".v1", ociManifest, good, 400, codeManifestInvalid},
		{"long tag", strings.Repeat("t", 129), ociManifest, good, 400, codeManifestInvalid},
		{"wrong digest", sum("other"), ociManifest, good, 400, codeDigestInvalid},
		{"bad digest", "sha256:00", ociManifest, good, 400, codeDigestInvalid},
		{"sha512", digestOf(sha512Algorithm, []byte(good)).String(), ociManifest, good, 201, ""},
		{"no JSON", "v1", ociManifest, "{", 400, codeManifestInvalid},
		{"empty", "v1", ociManifest, "", 400, codeManifestInvalid},
		{"two documents", "v1", ociManifest, good + good, 400, codeManifestInvalid},
		{"schema 1", "v1", "application/vnd.docker.distribution.manifest.v1+json", `{"schemaVersion":1}`, 400, codeManifestInvalid},
		{"no type at all", "v1", "", `{"schemaVersion":2,"config":` + known + `}`, 400, codeManifestInvalid},
		{"types differ", "v1", dockerManifest, good, 400, codeManifestInvalid},
		{"unknown type", "v1", "text/plain", `{"schemaVersion":2}`, 400, codeManifestInvalid},
		{"malformed type", "v1", "a/b/c;;", good, 400, codeManifestInvalid},
		{"no config", "v1", ociManifest, `{"schemaVersion":2,"layers":[]}`, 400, codeManifestInvalid},
		{"image and index", "v1", ociManifest, imageJSON(known, `,"manifests":[]`), 400, codeManifestInvalid},
		{"index and image", "v1", ociIndex, indexJSON(`,"layers":[]`), 400, codeManifestInvalid},
		{"index without manifests", "v1", ociIndex, `{"schemaVersion":2}`, 400, codeManifestInvalid},
		{"descriptor without digest", "v1", ociManifest, imageJSON(`{"mediaType":"x","size":1}`, ""), 400, codeManifestInvalid},
		{"descriptor without size", "v1", ociManifest, imageJSON(`{"mediaType":"x","digest":"`+sum(config)+`"}`, ""), 400, codeManifestInvalid},
		{"descriptor without type", "v1", ociManifest, imageJSON(`{"size":1,"digest":"`+sum(config)+`"}`, ""), 400, codeManifestInvalid},
		{"descriptor of negative size", "v1", ociManifest, imageJSON(known, "", desc("x", sum(config), -1, "")), 400, codeManifestInvalid},
		{"layers in no list", "v1", ociManifest, `{"schemaVersion":2,"config":` + known + `,"layers":{}}`, 400, codeManifestInvalid},
		{"too many layers", "v1", ociManifest, imageJSON(known, "", slices.Repeat([]string{known}, maxDescriptors+1)...), 400, codeManifestInvalid},
		{"unknown layer", "v1", ociManifest, imageJSON(known, "", known, unknown), 404, codeManifestBlobUnknown},
		{"unknown config", "v1", ociManifest, imageJSON(unknown, ""), 404, codeManifestBlobUnknown},
		{"unknown child", "v1", ociIndex, indexJSON("", unknown), 404, codeManifestBlobUnknown},
		{"a blob as a child", "v1", ociIndex, indexJSON("", known), 201, ""},
		{"no children", "v1", ociIndex, indexJSON(""), 201, ""},
		{"docker list", "v1", dockerList, `{"schemaVersion":2,"manifests":[` + known + `]}`, 201, ""},
		{"foreign layer", "v1", ociManifest, imageJSON(known, "", foreign), 201, ""},
		{"layer with urls", "v1", ociManifest, imageJSON(known, "", urls), 201, ""},
		{"nondistributable layer", "v1", ociManifest, imageJSON(known, "", nondistributable), 201, ""},
		{"unknown subject", "v1", ociManifest, imageJSON(known, `,"subject":`+unknown), 201, ""},
		{"bad subject", "v1", ociManifest, imageJSON(known, `,"subject":{}`), 400, codeManifestInvalid},
		{"largest", "v1", ociManifest, good + strings.Repeat(" ", MaxManifest-len(good)), 201, ""},
		{"too large", "v1", ociManifest, good + strings.Repeat(" ", MaxManifest-len(good)+1), 413, codeSizeInvalid},
	}
	r := open(t, t.TempDir(), Config{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			repo := strings.ToLower(strings.ReplaceAll(tt.name, " ", "-"))
			pushBlob(t, r, repo, config)
			w := do(r, "PUT", "/v2/"+repo+"/manifests/"+tt.ref, tt.body, "Content-Type", tt.contentType)
			wantStatus(t, w, tt.status, tt.code)
			after := http.StatusNotFound
			if tt.status == 201 {
				after = http.StatusOK
			}
			if w := do(r, "GET", "/v2/"+repo+"/manifests/"+sum(tt.body), ""); tt.ref == "v1" && w.Code != after {
				t.Errorf("getting it by digest answers %d, not %d", w.Code, after)
			}
		})
	}
	t.Run("what is missing", func(t *testing.T) {
		w := do(r, "PUT", "/v2/good/manifests/v2", imageJSON(known, "", unknown), "Content-Type", ociManifest)
		if !strings.Contains(w.Body.String(), sum("unknown")) || strings.Contains(w.Body.String(), sum(config)) {
			t.Errorf("error is %s", w.Body)
		}
	})
}

func TestDeleteManifests(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	one, _ := pushImage(t, r, "a", "one", "1", "")
	pushImage(t, r, "a", "again", "1", "")
	two, _ := pushImage(t, r, "a", "two", "2", "")

	wantStatus(t, do(r, "DELETE", "/v2/a/manifests/none", ""), http.StatusNotFound, codeManifestUnknown)
	wantStatus(t, do(r, "DELETE", "/v2/a/manifests/"+sum("none"), ""), http.StatusNotFound, codeManifestUnknown)
	wantStatus(t, do(r, "DELETE", "/v2/none/manifests/"+one, ""), http.StatusNotFound, codeManifestUnknown)

	wantStatus(t, do(r, "DELETE", "/v2/a/manifests/two", ""), http.StatusAccepted, "")
	wantStatus(t, do(r, "GET", "/v2/a/manifests/two", ""), http.StatusNotFound, codeManifestUnknown)
	wantStatus(t, do(r, "GET", "/v2/a/manifests/"+two, ""), http.StatusOK, "")

	wantStatus(t, do(r, "DELETE", "/v2/a/manifests/"+one, ""), http.StatusAccepted, "")
	for _, ref := range []string{one, "one", "again"} {
		wantStatus(t, do(r, "GET", "/v2/a/manifests/"+ref, ""), http.StatusNotFound, codeManifestUnknown)
	}
	if got := list(t, r, "/v2/a/tags/list"); len(got) != 0 {
		t.Errorf("tags left: %q", got)
	}
	wantStatus(t, do(r, "GET", "/v2/a/blobs/"+sum("1"), ""), http.StatusOK, "")
}

// list returns the names in a list of tags or repositories.
func list(t testing.TB, h http.Handler, target string) []string {
	t.Helper()
	w := do(h, "GET", target, "")
	wantStatus(t, w, http.StatusOK, "")
	var body struct{ Tags, Repositories []string }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	if body.Tags == nil && body.Repositories == nil {
		t.Errorf("%s answers null in place of a list: %s", target, w.Body)
	}
	return append(body.Tags, body.Repositories...)
}

func TestLists(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	for _, tag := range []string{"b", "a", "C", "10", "9"} {
		pushImage(t, r, "x", tag, "1", "")
	}
	pushBlob(t, r, "x/y", "1")
	pushBlob(t, r, "x-y", "1")
	pushBlob(t, r, "w", "1")
	tests := []struct {
		name, target string
		want         []string
		link         string
		status       int
	}{
		{"tags", "/v2/x/tags/list", []string{"10", "9", "C", "a", "b"}, "", 200},
		{"first tags", "/v2/x/tags/list?n=2", []string{"10", "9"}, `</v2/x/tags/list?last=9&n=2>; rel="next"`, 200},
		{"next tags", "/v2/x/tags/list?last=9&n=2", []string{"C", "a"}, `</v2/x/tags/list?last=a&n=2>; rel="next"`, 200},
		{"last tags", "/v2/x/tags/list?last=a&n=2", []string{"b"}, "", 200},
		{"exactly all", "/v2/x/tags/list?n=5", []string{"10", "9", "C", "a", "b"}, "", 200},
		{"after a tag that is not there", "/v2/x/tags/list?last=B", []string{"C", "a", "b"}, "", 200},
		{"after the last", "/v2/x/tags/list?last=b", nil, "", 200},
		{"none", "/v2/x/tags/list?n=0", nil, "", 200},
		{"negative", "/v2/x/tags/list?n=-1", nil, "", 400},
		{"no number", "/v2/x/tags/list?n=x", nil, "", 400},
		{"no tags yet", "/v2/x/y/tags/list", nil, "", 200},
		{"repositories", "/v2/_catalog", []string{"w", "x", "x-y", "x/y"}, "", 200},
		{"first repositories", "/v2/_catalog?n=3", []string{"w", "x", "x-y"}, `</v2/_catalog?last=x-y&n=3>; rel="next"`, 200},
		{"next repositories", "/v2/_catalog?n=3&last=x-y", []string{"x/y"}, "", 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := do(r, "GET", tt.target, "")
			wantStatus(t, w, tt.status, "")
			wantHeader(t, w, "Link", tt.link)
			if tt.status != 200 {
				return
			}
			if got := list(t, r, tt.target); !slices.Equal(got, tt.want) {
				t.Errorf("list is %q, not %q", got, tt.want)
			}
		})
	}
	t.Run("empty catalog", func(t *testing.T) {
		if got := list(t, open(t, t.TempDir(), Config{}), "/v2/_catalog"); len(got) != 0 {
			t.Errorf("list is %q", got)
		}
	})
}

// An index as the referrers API answers it.
type referrersIndex struct {
	SchemaVersion int
	MediaType     string
	Manifests     []struct {
		MediaType, Digest, ArtifactType string
		Size                            int
		Annotations                     map[string]string
	}
}

func getReferrers(t *testing.T, h http.Handler, target string) (referrersIndex, http.Header) {
	t.Helper()
	w := do(h, "GET", target, "")
	wantStatus(t, w, http.StatusOK, "")
	wantHeader(t, w, "Content-Type", ociIndex)
	var index referrersIndex
	if err := json.Unmarshal(w.Body.Bytes(), &index); err != nil {
		t.Fatal(err)
	}
	if index.SchemaVersion != 2 || index.MediaType != ociIndex || index.Manifests == nil {
		t.Fatalf("not an index: %s", w.Body)
	}
	return index, w.Header()
}

func TestReferrers(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	subject := sum("to come") // pushed after its referrers, if at all
	more := `,"subject":` + desc(ociManifest, subject, 7, "") + `,"annotations":{"k":"v"}`
	typed, _ := pushImage(t, r, "a", "", "typed", more+`,"artifactType":"application/x.sbom"`)
	plain, size := pushImage(t, r, "a", "plain", "plain", more)
	body := indexJSON(more)
	w := do(r, "PUT", "/v2/a/manifests/index", body, "Content-Type", ociIndex)
	wantStatus(t, w, http.StatusCreated, "")
	wantHeader(t, w, "Oci-Subject", subject)

	all, header := getReferrers(t, r, "/v2/a/referrers/"+subject)
	want := []string{typed, plain, sum(body)}
	slices.Sort(want)
	var got []string
	for _, m := range all.Manifests {
		got = append(got, m.Digest)
		if m.Annotations["k"] != "v" {
			t.Errorf("%s has annotations %v", m.Digest, m.Annotations)
		}
		wantType := map[string]string{typed: "application/x.sbom", plain: configType, sum(body): ""}[m.Digest]
		if m.ArtifactType != wantType {
			t.Errorf("%s has artifact type %q, not %q", m.Digest, m.ArtifactType, wantType)
		}
		if m.Digest == plain && (m.Size != size || m.MediaType != ociManifest) {
			t.Errorf("%s has size %d and media type %q", m.Digest, m.Size, m.MediaType)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("referrers are %q, not %q", got, want)
	}
	if header.Get("Oci-Filters-Applied") != "" {
		t.Error("a filter was applied that nobody asked for")
	}

	sboms, header := getReferrers(t, r, "/v2/a/referrers/"+subject+"?artifactType=application/x.sbom")
	if len(sboms.Manifests) != 1 || sboms.Manifests[0].Digest != typed || header.Get("Oci-Filters-Applied") != "artifactType" {
		t.Errorf("filtered referrers are %+v, header %v", sboms, header)
	}
	if none, _ := getReferrers(t, r, "/v2/b/referrers/"+subject); len(none.Manifests) != 0 {
		t.Errorf("referrers in another repository: %+v", none)
	}

	wantStatus(t, do(r, "DELETE", "/v2/a/manifests/"+typed, ""), http.StatusAccepted, "")
	if left, _ := getReferrers(t, r, "/v2/a/referrers/"+subject); len(left.Manifests) != 2 {
		t.Errorf("referrers after a deletion: %+v", left)
	}
}

// TestReferrersPages follows the links of a list that is too long for one
// answer.
func TestReferrersPages(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	subject := sum("subject")
	want := make(map[string]bool)
	for i := range 7 {
		d, _ := pushImage(t, r, "a", "", fmt.Sprint(i), fmt.Sprintf(`,"subject":%s,"artifactType":"x/y","annotations":{"k":%q}`,
			desc(ociManifest, subject, 7, ""), strings.Repeat("v", maxReferrers*2/5)))
		want[d] = true
	}
	target, pages := "/v2/a/referrers/"+subject+"?artifactType=x/y", 0
	for ; target != ""; pages++ {
		index, header := getReferrers(t, r, target)
		for _, m := range index.Manifests {
			if !want[m.Digest] {
				t.Errorf("%s comes twice or should not come", m.Digest)
			}
			delete(want, m.Digest)
		}
		target, _, _ = strings.Cut(strings.TrimPrefix(header.Get("Link"), "<"), ">")
	}
	if len(want) > 0 || pages != 4 {
		t.Errorf("%d pages, missing %v", pages, want)
	}
}
