package origin

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"graze/chunk"
)

// TestHead asks registries what a tag stands for that answer HEAD in several
// ways. Only those that don't answer it well are asked for the manifest.
func TestHead(t *testing.T) {
	for _, tt := range []struct {
		name string
		head http.HandlerFunc // nil: as the fake does
		gets int
		err  error
	}{
		{"good", nil, 0, nil},
		{"not allowed", answerWith(http.StatusMethodNotAllowed), 1, nil},
		{"not found by HEAD alone", answerWith(http.StatusNotFound), 1, nil},
		{"no digest", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Content-Length", "100")
		}, 1, nil},
		{"another page", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/html") }, 1, nil},
		{"failing", answerWith(http.StatusInternalServerError), 0, chunk.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake()
			want := f.addImage("a", platform("linux/amd64"))
			f.before = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodHead || tt.head == nil {
					return false
				}
				tt.head(w, r)
				return true
			}
			host := serve(t, f)
			d, err := newClient(t, Config{}).Head(t.Context(), host+"/app:a")
			if !errors.Is(err, tt.err) {
				t.Errorf("got %v, want %v", err, tt.err)
			}
			if err == nil && (d.Digest != want.Digest || d.Size != want.Size || d.MediaType != want.MediaType) {
				t.Errorf("got %+v, want %+v", d, want)
			}
			if got := len(f.requests("GET ")); got != tt.gets {
				t.Errorf("%d manifests were asked for, want %d", got, tt.gets)
			}
		})
	}
}

// TestParseName completes references.
func TestParseName(t *testing.T) {
	digest := string(digestOf(nil))
	for in, want := range map[string]string{
		"alpine":                    "docker.io/library/alpine:latest",
		"localhost:5000/a/b:c":      "localhost:5000/a/b:c",
		"r.test/a@" + digest:        "r.test/a@" + digest,
		"r.test/a:c@" + digest:      "r.test/a@" + digest,
		"r.test/a@sha512:" + digest: "",
		"R":                         "",
	} {
		name, err := ParseName(in)
		if err != nil && want != "" || err == nil && name.String() != want {
			t.Errorf("%s is %s, %v; want %s", in, name, err, want)
		}
		if tag := strings.HasSuffix(strings.TrimSuffix(in, "@"+digest), ":c"); tag != (name.Tag == "c") {
			t.Errorf("%s has tag %q", in, name.Tag)
		}
	}
}
