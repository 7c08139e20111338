package materialize

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A labelled is a content store that has one blob, of which only the labels
// matter.
type labelled struct {
	content.Store
	labels map[string]string
}

func (l labelled) Info(context.Context, digest.Digest) (content.Info, error) {
	if l.labels == nil {
		return content.Info{}, errdefs.ErrNotFound
	}
	return content.Info{Labels: l.labels}, nil
}

func TestFindRepository(t *testing.T) {
	from := func(host, path string) map[string]string {
		return map[string]string{"containerd.io/distribution.source." + host: path, "other": "x"}
	}
	for _, row := range []struct {
		test, name, given string
		labels            map[string]string
		want              string // what is found, or is in the error
	}{
		{"as named", "r.test:5000/app:1", "", nil, "r.test:5000/app"},
		{"the label has no port", "r.test:5000/app:1", "", from("r.test", "app"), "r.test:5000/app"},
		{"one of several", "r.test/app:1", "", from("r.test", "app"), "r.test/app"},
		{"given another name", "mine.test/copy:1", "", from("r.test", "team/app,other"), "r.test/team/app"},
		{"short name", "debian:12", "", nil, "docker.io/library/debian"},
		{"ID of CRI", "sha256:" + strings.Repeat("a", 64), "", from("r.test", "app"), "r.test/app"},
		{"ID of CRI, without labels", "sha256:" + strings.Repeat("a", 64), "", nil, "name it"},
		{"told", "r.test/app:1", "m.test/copy", from("r.test", "app"), "m.test/copy"},
	} {
		r := &run{store: labelled{labels: row.labels}, name: row.name, opts: Options{Repository: row.given}}
		err := r.findRepository(t.Context(), ocispec.Descriptor{})
		if got := r.repository; err != nil && !strings.Contains(err.Error(), row.want) || err == nil && got != row.want {
			t.Errorf("%s: %q, %v; want %q", row.test, got, err, row.want)
		}
	}
}
