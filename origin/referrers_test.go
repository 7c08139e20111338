package origin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

const indexType = "application/vnd.graze.test.v1"

// ref returns the descriptor of an artifact of a type.
func ref(name, artifactType string) v1.Descriptor {
	d := descriptor([]byte(name))
	d.MediaType, d.ArtifactType = types.OCIManifestSchema1, artifactType
	d.Annotations = map[string]string{"name": name}
	return d
}

func names(ds []v1.Descriptor) string {
	var list []string
	for _, d := range ds {
		list = append(list, d.Annotations["name"])
	}
	return strings.Join(list, " ")
}

func indexOf(ds ...v1.Descriptor) []byte {
	raw, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: ds})
	if err != nil {
		panic(err)
	}
	return raw
}

// listing answers the referrers API with pages.
func listing(pages ...[]byte) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/referrers/") {
			return false
		}
		n := 0
		fmt.Sscan(r.URL.Query().Get("page"), &n)
		if n+1 < len(pages) {
			w.Header().Set("Link", fmt.Sprintf(`<%s?page=%d>; rel="next"`, r.URL.Path, n+1))
		}
		w.Header().Set("Content-Type", string(types.OCIImageIndex))
		w.Write(pages[n])
		return true
	}
}

func TestReferrers(t *testing.T) {
	subject := chunk.Blob("sha256:" + strings.Repeat("ab", 32))
	tag := "sha256-" + strings.Repeat("ab", 32)
	a, b, other := ref("a", indexType), ref("b", indexType), ref("other", "application/x")
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/referrers/") {
				w.WriteHeader(code)
				return true
			}
			return false
		}
	}
	html := func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/referrers/") {
			fmt.Fprint(w, "<html>welcome</html>")
			return true
		}
		return false
	}
	var many [][]byte
	for range maxReferrerPages + 1 {
		many = append(many, indexOf(a))
	}
	type answer = func(http.ResponseWriter, *http.Request) bool
	tests := []struct {
		name        string
		own, mirror answer
		tagged      []byte // the index under the tag, of the registry
		kind        string
		want        string
		err         string
		class       error
	}{
		{"all", listing(indexOf(a, other)), nil, nil, "", "a other", "", nil},
		{"not filtered by the registry", listing(indexOf(a, other, b)), nil, nil, indexType, "a b", "", nil},
		{"none", listing(indexOf()), nil, nil, "", "", "", nil},
		{"pages", listing(indexOf(a), indexOf(other), indexOf(b)), nil, nil, indexType, "a b", "", nil},
		{"pages without end", listing(many...), nil, nil, "", "", "over 32 pages", chunk.ErrCorrupt},
		{"no API, no tag", status(404), nil, nil, "", "", "", nil},
		{"no API, tag", status(404), nil, indexOf(a, other), indexType, "a", "", nil},
		{"bad request, tag", status(400), nil, indexOf(a), "", "a", "", nil},
		{"method not allowed, tag", status(405), nil, indexOf(a), "", "a", "", nil},
		{"not implemented, tag", status(501), nil, indexOf(a), "", "a", "", nil},
		{"web page, tag", html, nil, indexOf(a), "", "a", "", nil},
		{"tag is an image", status(404), nil, []byte(`{"schemaVersion":2,"config":{"digest":"` + string(subject) + `"}}`), "", "", "is not an index", chunk.ErrCorrupt},
		{"refused", status(403), nil, indexOf(a), "", "", "status 403", chunk.ErrDenied},
		{"away", status(502), nil, nil, "", "", "status 502", chunk.ErrUnavailable},
		{"no JSON", listing([]byte("{")), nil, nil, "", "", "list of referrers", chunk.ErrCorrupt},
		{"mirror has it", status(500), listing(indexOf(a)), nil, "", "a", "", nil},
		{"mirror knows nothing", listing(indexOf(a)), listing(indexOf()), nil, "", "a", "", nil},
		{"mirror has no API", listing(indexOf(a)), status(404), nil, "", "a", "", nil},
		{"mirror fails", listing(indexOf(a)), status(500), nil, "", "a", "", nil},
		{"mirror knows nothing, registry has no API", status(404), listing(indexOf()), indexOf(a), "", "a", "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			own := newFake()
			own.before = tt.own
			if tt.tagged != nil {
				own.manifests[tag] = tt.tagged
			}
			var mirrors []http.Handler
			if tt.mirror != nil {
				m := newFake()
				m.before = tt.mirror
				mirrors = append(mirrors, m)
			}
			c, host := mirrored(t, own, mirrors...)
			got, err := c.Referrers(context.Background(), host+"/app", subject, tt.kind)
			checkError(t, err, tt.err)
			if tt.class != nil && !errors.Is(err, tt.class) {
				t.Errorf("error %q is no %v", err, tt.class)
			}
			if names(got) != tt.want {
				t.Errorf("got %q, want %q", names(got), tt.want)
			}
		})
	}
}
