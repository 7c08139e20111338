package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"graze/chunk"
)

func TestParsePolicy(t *testing.T) {
	for text, want := range map[string]Policy{
		"quay.io/** lazy-or-fail":             {Pattern: "quay.io/**", Mode: LazyOrFail},
		"r.test/app  pull":                    {Pattern: "r.test/app", Mode: Pull},
		"** lazy-or-pull require-index":       {Pattern: "**", Mode: LazyOrPull, Require: true},
		"r.test/[ab]* lazy-or-pull":           {Pattern: "r.test/[ab]*", Mode: LazyOrPull},
		"r.test/app":                          {},
		"r.test/app lazy":                     {},
		"r.test/app pull now":                 {},
		"r.test/[ pull":                       {},
		"r.test/app pull require-index again": {},
	} {
		got, err := ParsePolicy(text)
		if (err == nil) != (want != Policy{}) || err == nil && got != want {
			t.Errorf("ParsePolicy(%q) = %+v, %v", text, got, err)
		}
	}
}

func TestPolicyFor(t *testing.T) {
	list := []Policy{
		{Pattern: "r.test/team/**", Mode: Pull},
		{Pattern: "r.test/*", Mode: LazyOrFail},
		{Pattern: "*/library/**", Mode: Pull},
		{Pattern: "zero.test/app"},
		{Pattern: "**", Mode: LazyOrFail},
	}
	for repository, want := range map[string]Mode{
		"r.test/team/app":          Pull,
		"r.test/team/deep/er/app":  Pull,
		"r.test/team":              LazyOrFail,
		"r.test/app":               LazyOrFail,
		"docker.io/library/alpine": Pull,
		"docker.io/other/alpine":   LazyOrFail,
		"zero.test/app":            LazyOrPull,
		"":                         LazyOrFail,
	} {
		if got := policyFor(list, repository).Mode; got != want {
			t.Errorf("policy for %q is %q, not %q", repository, got, want)
		}
	}
}

func TestRepositoryOf(t *testing.T) {
	for name, want := range map[string]string{
		"r.test:5000/a/b:1":         "r.test:5000/a/b",
		"r.test:5000/a/b@sha256:12": "r.test:5000/a/b",
		"r.test/a:1@sha256:12":      "r.test/a",
		"r.test/a":                  "r.test/a",
		"localhost:5000/a":          "localhost:5000/a",
	} {
		if got := repositoryOf(name); got != want {
			t.Errorf("repositoryOf(%q) = %q, not %q", name, got, want)
		}
	}
}

// A finderFunc is a Finder.
type finderFunc func(chain chunk.Blob) (Found, error)

// Find implements Finder.
func (f finderFunc) Find(_ context.Context, chain chunk.Blob) (Found, error) { return f(chain) }

// TestReasons pulls an image under all conditions that decide how it is served.
func TestReasons(t *testing.T) {
	fail := func(op string, err error) func(context.Context, string, string) error {
		return func(_ context.Context, at, name string) error {
			if at == op {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		}
	}
	stargz := func(img Image) map[string]string {
		return map[string]string{stargzReference: img.Repository + ":1", stargzDigest: "sha256:1"}
	}
	unnamed := func(Image) map[string]string { return map[string]string{} }
	found := func(found Found, err error) Config {
		return Config{Finder: finderFunc(func(chain chunk.Blob) (Found, error) {
			if chain != "chain:/a" {
				return Found{}, chunk.ErrNotFound
			}
			return found, err
		})}
	}
	policy := func(mode Mode, require bool) Config {
		return Config{Policies: []Policy{{Pattern: "r.test/*", Mode: mode, Require: require}}}
	}
	for _, row := range []struct {
		name   string
		cfg    Config
		before func(ctx context.Context, op, name string) error
		labels func(Image) map[string]string
		packed bool // containerd can't unpack the layers
		want   Reason
		fails  bool // the pull
	}{
		{name: "lazy", want: Lazy},
		{name: "labels of stargz", labels: stargz, want: Lazy},
		{name: "found", cfg: found(Found{Image: "r.test/app:1"}, nil), labels: unnamed, want: Lazy},
		{name: "fetched", cfg: found(Found{Image: "r.test/app:1", Fetched: true}, nil), labels: unnamed, want: Fetched},
		{name: "not told", labels: unnamed, want: Unnamed},
		{name: "not told nor found", cfg: found(Found{}, errors.New("no containerd")), labels: unnamed, want: Unnamed},
		{name: "not told but must", cfg: Config{Policies: []Policy{{Mode: LazyOrFail}}}, labels: unnamed, want: Unnamed, fails: true},
		{name: "policy", cfg: policy(Pull, false), want: ByPolicy},
		{name: "small", cfg: Config{SmallImage: 200 << 20}, want: Small},
		{name: "large", cfg: Config{SmallImage: 100 << 20}, want: Lazy},
		{name: "small but must", cfg: Config{SmallImage: 200 << 20, Policies: []Policy{{Mode: LazyOrFail}}}, want: Lazy},
		{name: "index required", cfg: policy(LazyOrPull, true), want: NoIndex},
		{name: "index required and must", cfg: policy(LazyOrFail, true), want: NoIndex, fails: true},
		{name: "unavailable", before: fail("resolve", chunk.ErrUnavailable), want: Unavailable},
		{name: "unavailable but must", cfg: policy(LazyOrFail, false), before: fail("ready", chunk.ErrUnavailable), want: Unavailable, fails: true},
		{name: "denied", before: fail("resolve", chunk.ErrDenied), want: Denied},
		{name: "not there", before: fail("resolve", chunk.ErrNotFound), want: NotFound},
		{name: "corrupt", before: fail("ready", chunk.ErrCorrupt), want: Corrupt},
		{name: "odd", before: fail("ready", errors.New("layer is encrypted")), want: Unsupported},
		{name: "packed", packed: true, want: Lazy},
		{name: "packed and small", packed: true, cfg: Config{SmallImage: 200 << 20}, want: Lazy},
		{name: "packed and odd", packed: true, before: fail("ready", errors.New("layer is encrypted")), want: Unsupported, fails: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			images := newFakeImages()
			if row.before != nil {
				images.before = row.before
			}
			row.cfg.Root = t.TempDir()
			s := open(t, row.cfg, images)
			img := images.add("r.test/app", "a")
			if row.packed {
				images.pack("r.test/app")
			}
			labels := criLabels(img, img.Chains[0])
			if row.labels != nil {
				labels = row.labels(img)
				labels[snapshots.LabelSnapshotRef] = string(img.Chains[0])
			}
			_, err := s.Prepare(t.Context(), "extract", "", snapshots.WithLabels(labels))
			switch {
			case row.fails:
				if err == nil || !strings.Contains(err.Error(), string(row.want)) {
					t.Errorf("the pull ends with %v", err)
				}
			case row.want == Lazy:
				if !errdefs.IsAlreadyExists(err) {
					t.Errorf("the layer is not served lazily: %v", err)
				}
			case err != nil:
				t.Error(err)
			}
			st := s.Stats()
			if len(st.Images) != 1 || st.Images[0].Reason != row.want || st.Layers[row.want] != 1 || len(st.Layers) != 1 {
				t.Errorf("stats are %+v", st)
			}
		})
	}
}

// TestFetched unpacks a layer as clients do that fetch all of them first.
func TestFetched(t *testing.T) {
	s := open(t, Config{Root: t.TempDir()}, newFakeImages())
	for _, key := range []string{"default/3/extract-12-ab_c sha256:1", "default/4/run-1", "extract"} {
		if _, err := s.Prepare(t.Context(), key, ""); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); len(st.Images) != 1 || st.Images[0].Reason != Fetched || st.Images[0].Name != "layer sha256:1" {
		t.Errorf("stats are %+v", st)
	}
}

// TestWrongChain asks for a layer that the named image does not have.
func TestWrongChain(t *testing.T) {
	images := newFakeImages()
	s := open(t, Config{Root: t.TempDir()}, images)
	img := images.add("r.test/app", "a")
	if _, err := s.Prepare(t.Context(), "extract", "", snapshots.WithLabels(criLabels(img, "chain:/b"))); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Layers[NotFound] != 1 {
		t.Errorf("stats are %+v", st)
	}
}

// TestUserNamespace prepares a container that runs in a user namespace. What an
// image says of its layers in the same words is not listened to.
func TestUserNamespace(t *testing.T) {
	images := newFakeImages()
	s := open(t, Config{Root: t.TempDir()}, images)
	img := images.add("r.test/app", "a")
	maps := snapshots.WithLabels(map[string]string{
		snapshots.LabelSnapshotUIDMapping: "0:5000:1000,1000:9000:10",
		snapshots.LabelSnapshotGIDMapping: "0:6000:1000",
	})
	_, err := s.Prepare(t.Context(), "extract", "", snapshots.WithLabels(criLabels(img, img.Chains[0])), maps)
	if !errdefs.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if info, err := s.Stat(t.Context(), top(img)); err != nil || info.Labels[snapshots.LabelSnapshotUIDMapping] != "" {
		t.Errorf("the layer's snapshot is %+v, %v", info, err)
	}
	mounts, err := s.Prepare(t.Context(), "run", top(img), maps)
	if err != nil {
		t.Fatal(err)
	}
	options := strings.Join(mounts[0].Options, " ")
	if !strings.Contains(options, "uidmap=0:5000:1000,1000:9000:10 gidmap=0:6000:1000") {
		t.Errorf("the mount has the options %s", options)
	}
	if uid, gid := ownerOf(t, s.upperDir("2")); uid != 5000 || gid != 6000 {
		t.Errorf("the root belongs to %d:%d", uid, gid)
	}
	for _, bad := range []string{"x", "1:5000:1", "0:1:0"} {
		if _, err := s.Prepare(t.Context(), "bad", top(img), snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotUIDMapping: bad})); err == nil {
			t.Errorf("mapping %q is taken", bad)
		}
	}
}
