package registry

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// randomImage returns an image with two layers, in the media types of OCI or
// Docker.
func randomImage(t *testing.T, oci bool, arch string) v1.Image {
	t.Helper()
	img, layerType := empty.Image, types.DockerLayer
	if oci {
		img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
		layerType = types.OCILayer
	}
	for range 2 {
		layer, err := random.Layer(50<<10, layerType)
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// randomIndex returns an index of images for two platforms.
func randomIndex(t *testing.T, oci bool) v1.ImageIndex {
	t.Helper()
	index := mutate.IndexMediaType(empty.Index, types.DockerManifestList)
	if oci {
		index = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        randomImage(t, oci, arch),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index
}

func digestString(t *testing.T, x interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := x.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// notFound reports whether a registry answered 404.
func notFound(err error) bool {
	var e *transport.Error
	return errors.As(err, &e) && e.StatusCode == 404
}

func TestGoContainerRegistry(t *testing.T) {
	r := open(t, t.TempDir(), Config{})
	addr := serve(t, r, Config{})
	ref := func(s string) name.Reference {
		ref, err := name.ParseReference(addr + "/" + s)
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	ctx := remote.WithContext(t.Context())
	img := randomImage(t, true, "amd64")

	t.Run("image", func(t *testing.T) {
		for _, oci := range []bool{true, false} {
			img, to := randomImage(t, oci, "amd64"), ref(fmt.Sprintf("team/image:oci-%v", oci))
			if err := remote.Write(to, img, ctx); err != nil {
				t.Fatal(err)
			}
			back, err := remote.Image(to, ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Image(back); err != nil {
				t.Error(err)
			}
			if got, want := digestString(t, back), digestString(t, img); got != want {
				t.Errorf("digest is %s, not %s", got, want)
			}
		}
	})
	t.Run("index", func(t *testing.T) {
		for _, oci := range []bool{true, false} {
			nested := mutate.AppendManifests(randomIndex(t, oci), mutate.IndexAddendum{Add: randomIndex(t, oci)})
			to := ref(fmt.Sprintf("team/index:oci-%v", oci))
			if err := remote.WriteIndex(to, nested, ctx); err != nil {
				t.Fatal(err)
			}
			back, err := remote.Index(to, ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(back); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("mount", func(t *testing.T) {
		if err := remote.Write(ref("from:1"), img, ctx); err != nil {
			t.Fatal(err)
		}
		pulled, err := remote.Image(ref("from:1"), ctx)
		if err != nil {
			t.Fatal(err)
		}
		before := r.Stats()[KindBlob].Bytes
		if err := remote.Write(ref("to:1"), pulled, ctx); err != nil {
			t.Fatal(err)
		}
		if err := r.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := r.Stats()[KindBlob].Bytes - before; n > 4<<10 { // the config is read
			t.Errorf("%d bytes were read for a mount", n)
		}
	})
	t.Run("referrers", func(t *testing.T) {
		if err := remote.Write(ref("subject:1"), img, ctx); err != nil {
			t.Fatal(err)
		}
		desc, err := partial.Descriptor(img)
		if err != nil {
			t.Fatal(err)
		}
		artifact := mutate.Subject(randomImage(t, true, "amd64"), *desc).(v1.Image)
		to := ref("subject@" + digestString(t, artifact))
		if err := remote.Write(to, artifact, ctx); err != nil {
			t.Fatal(err)
		}
		index, err := remote.Referrers(ref("subject@"+desc.Digest.String()).(name.Digest), ctx)
		if err != nil {
			t.Fatal(err)
		}
		m, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Manifests) != 1 || m.Manifests[0].Digest.String() != to.Identifier() {
			t.Errorf("referrers are %+v", m.Manifests)
		}
	})
	t.Run("tags and deletion", func(t *testing.T) {
		for _, tag := range []string{"b", "a", "c"} {
			if err := remote.Write(ref("tags:"+tag), img, ctx); err != nil {
				t.Fatal(err)
			}
		}
		tags, err := remote.List(ref("tags:a").Context(), ctx, remote.WithPageSize(2))
		if err != nil || !slices.Equal(tags, []string{"a", "b", "c"}) {
			t.Errorf("tags are %q, %v", tags, err)
		}
		repos, err := remote.Catalog(t.Context(), ref("tags:a").Context().Registry, remote.WithPageSize(1))
		if err != nil || !slices.Contains(repos, "tags") {
			t.Errorf("repositories are %q, %v", repos, err)
		}
		if err := remote.Delete(ref("tags:a"), ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Head(ref("tags:a"), ctx); !notFound(err) {
			t.Errorf("error is %v after the tag was deleted", err)
		}
		if err := remote.Delete(ref("tags@"+digestString(t, img)), ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Head(ref("tags:b"), ctx); !notFound(err) {
			t.Errorf("error is %v after the manifest was deleted", err)
		}
	})
}

// TestSkopeo copies images and indexes out of the registry, to a place on the
// disk, and back in.
func TestSkopeo(t *testing.T) {
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Skip("skopeo is not installed")
	}
	r := open(t, t.TempDir(), Config{})
	addr := serve(t, r, Config{})
	const all, toOCI, toDocker = "--all", "--format=oci", "--format=v2s2"
	for _, tt := range []struct {
		name, via, option string
		oci, index        bool
		want              types.MediaType
	}{
		{"oci index by layout", "oci:", all, true, true, types.OCIImageIndex},
		{"oci index by dir", "dir:", all, true, true, types.OCIImageIndex},
		{"docker list by dir", "dir:", all, false, true, types.DockerManifestList},
		{"one image of an index", "dir:", toOCI, true, true, types.OCIManifestSchema1},
		{"oci image", "oci:", all, true, false, types.OCIManifestSchema1},
		{"docker image", "dir:", all, false, false, types.DockerManifestSchema2},
		{"docker to oci", "oci:", toOCI, false, false, types.OCIManifestSchema1},
		{"oci to docker", "dir:", toDocker, true, false, types.DockerManifestSchema2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			repo := addr + "/" + strings.ReplaceAll(tt.name, " ", "/")
			from, to := mustTag(t, repo+":1"), mustTag(t, repo+"/copy:2")
			var digest string
			if tt.index {
				index := randomIndex(t, tt.oci)
				digest = digestString(t, index)
				if err := remote.WriteIndex(from, index); err != nil {
					t.Fatal(err)
				}
			} else {
				img := randomImage(t, tt.oci, "amd64")
				digest = digestString(t, img)
				if err := remote.Write(from, img); err != nil {
					t.Fatal(err)
				}
			}
			dir := t.TempDir()
			place := tt.via + filepath.Join(dir, "image")
			skopeo(t, dir, "--src-tls-verify=false", tt.option, "docker://"+from.Name(), place)
			skopeo(t, dir, "--dest-tls-verify=false", all, place, "docker://"+to.Name())

			desc, err := remote.Get(to)
			if err != nil {
				t.Fatal(err)
			}
			if desc.MediaType != tt.want {
				t.Errorf("media type is %s, not %s", desc.MediaType, tt.want)
			}
			// skopeo writes OCI indexes anew, and of course what it converts.
			kept := tt.option == all && tt.want != types.OCIImageIndex
			if kept && desc.Digest.String() != digest {
				t.Errorf("digest is %s, not %s", desc.Digest, digest)
			}
			if err := validateRemote(desc); err != nil {
				t.Error(err)
			}
		})
	}
}

func mustTag(t *testing.T, s string) name.Tag {
	t.Helper()
	tag, err := name.NewTag(s)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// validateRemote reads all of an image or index and checks it.
func validateRemote(desc *remote.Descriptor) error {
	if desc.MediaType.IsIndex() {
		index, err := desc.ImageIndex()
		if err != nil {
			return err
		}
		return validate.Index(index)
	}
	img, err := desc.Image()
	if err != nil {
		return err
	}
	return validate.Image(img)
}

// skopeo runs "skopeo copy", without the machine's settings.
func skopeo(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "skopeo", append([]string{"--insecure-policy", "copy", "--quiet"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, "XDG_RUNTIME_DIR=" + dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
