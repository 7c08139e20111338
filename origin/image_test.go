package origin

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/chunk"
)

func platform(s string) v1.Platform {
	p, err := v1.ParsePlatform(s)
	if err != nil {
		panic(err)
	}
	return *p
}

func TestChoose(t *testing.T) {
	tests := []struct {
		name, want string
		listed     []string // platforms of the index; "" has none
		chosen     string
		err        string
	}{
		{"exact", "linux/amd64", []string{"linux/arm64", "linux/amd64"}, "linux/amd64", ""},
		{"other spelling", "linux/x86_64", []string{"linux/amd64"}, "linux/amd64", ""},
		{"other spelling of arm64", "Linux/aarch64/8", []string{"linux/arm64"}, "linux/arm64", ""},
		{"other spelling of arm", "linux/arm/7", []string{"linux/armhf"}, "linux/armhf", ""},
		{"armel", "linux/arm/v6", []string{"linux/armel"}, "linux/armel", ""},
		{"i386", "linux/i386", []string{"linux/386"}, "linux/386", ""},
		{"arm without variant", "linux/arm", []string{"linux/arm/v8", "linux/arm/v7"}, "linux/arm/v7", ""},
		{"newer arm64", "linux/arm64/v9", []string{"linux/arm/v7", "linux/arm64"}, "linux/arm64", ""},
		{"explicit default variant", "linux/arm64", []string{"linux/arm64/v8"}, "linux/arm64/v8", ""},
		{"default variant asked for", "linux/arm64/v8", []string{"linux/arm64"}, "linux/arm64", ""},
		{"older variant", "linux/arm/v7", []string{"linux/arm/v5", "linux/arm/v6"}, "linux/arm/v6", ""},
		{"no newer variant", "linux/arm/v6", []string{"linux/arm/v7"}, "", "only for \"linux/arm/v7\""},
		{"best variant", "linux/amd64/v3", []string{"linux/amd64", "linux/amd64/v2", "linux/amd64/v4"}, "linux/amd64/v2", ""},
		{"base for a newer processor", "linux/amd64/v3", []string{"linux/amd64"}, "linux/amd64", ""},
		{"no newer processor's", "linux/amd64", []string{"linux/amd64/v3"}, "", "not there for linux/amd64"},
		{"32 bit", "linux/amd64", []string{"linux/386"}, "linux/386", ""},
		{"64 bit first", "linux/amd64", []string{"linux/386", "linux/amd64"}, "linux/amd64", ""},
		{"arm on arm64", "linux/arm64", []string{"linux/arm/v6", "linux/arm/v7"}, "linux/arm/v7", ""},
		{"other system", "linux/amd64", []string{"windows/amd64"}, "", "only for \"windows/amd64\""},
		{"attestation is none", "linux/amd64", []string{"unknown/unknown"}, "", "unknown/unknown"},
		{"one without platform", "linux/amd64", []string{""}, "", ""},
		{"two without platform", "linux/amd64", []string{"", ""}, "", "none of them with a platform"},
		{"empty", "linux/amd64", nil, "", "index has 0 manifests"},
		{"first of equals", "linux/amd64", []string{"linux/amd64", "linux/amd64/v1"}, "linux/amd64", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var index v1.IndexManifest
			for _, s := range tt.listed {
				d := v1.Descriptor{MediaType: types.OCIManifestSchema1}
				if s != "" {
					p := platform(s)
					d.Platform = &p
				}
				index.Manifests = append(index.Manifests, d)
			}
			d, err := choose(&index, normalize(platform(tt.want)))
			checkError(t, err, tt.err)
			got := ""
			if d.Platform != nil {
				got = d.Platform.String()
			}
			if got != tt.chosen {
				t.Errorf("chose %q, want %q", got, tt.chosen)
			}
		})
	}
}

// TestChooseAside has indexes with the same image in another format.
func TestChooseAside(t *testing.T) {
	p, other := platform("linux/amd64"), platform("linux/arm64")
	old := p
	old.OSFeatures = []string{"nydus.remoteimage.v1"}
	entry := func(name string, p *v1.Platform, kind types.MediaType) v1.Descriptor {
		d := descriptor([]byte(name))
		d.MediaType, d.Platform, d.ArtifactType = types.OCIManifestSchema1, p, string(kind)
		d.Annotations = map[string]string{"name": name}
		return d
	}
	plain, arm := entry("plain", &p, ""), entry("arm", &other, "")
	marked, armMarked, oldMarked := entry("marked", &p, NydusManifestType), entry("arm marked", &other, NydusManifestType), entry("old", &old, "")
	config, artifact := entry("config", &p, types.OCIConfigJSON), entry("artifact", nil, "application/vnd.other")
	for _, tt := range []struct {
		name           string
		listed         []v1.Descriptor
		chosen, beside string
	}{
		{"new mark first", []v1.Descriptor{marked, plain}, "plain", "marked"},
		{"old mark first", []v1.Descriptor{oldMarked, plain, arm, armMarked}, "plain", "old"},
		{"both marks, artifact", []v1.Descriptor{plain, artifact, oldMarked, marked}, "plain", "artifact old marked"},
		{"nothing else", []v1.Descriptor{arm, marked}, "marked", ""},
		{"type of a config is no mark", []v1.Descriptor{config, marked}, "config", "marked"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			index := &v1.IndexManifest{Manifests: tt.listed}
			d, err := choose(index, normalize(p))
			if err != nil {
				t.Fatal(err)
			}
			if got := d.Annotations["name"]; got != tt.chosen {
				t.Errorf("chose %q, want %q", got, tt.chosen)
			}
			if got := names(beside(index, &d)); got != tt.beside {
				t.Errorf("beside it are %q, want %q", got, tt.beside)
			}
		})
	}
	if !IsNydus(&marked) || !IsNydus(&oldMarked) || IsNydus(&plain) || IsNydus(&artifact) {
		t.Error("marks are not told apart")
	}
}

func TestParseManifest(t *testing.T) {
	hash := "sha256:" + strings.Repeat("ab", 32)
	desc := fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.config.v1+json","size":2,"digest":%q}`, hash)
	tests := []struct {
		name, in, contentType string
		kind                  types.MediaType
		err                   string
	}{
		{"OCI", `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":` + desc + `}`, "", types.OCIManifestSchema1, ""},
		{"Docker", `{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","config":` + desc + `}`, "text/plain", types.DockerManifestSchema2, ""},
		{"type from the answer", `{"schemaVersion":2,"config":` + desc + `}`, "application/vnd.docker.distribution.manifest.v2+json; charset=utf-8", types.DockerManifestSchema2, ""},
		{"no type", `{"schemaVersion":2,"config":` + desc + `}`, "application/json", types.OCIManifestSchema1, ""},
		{"answer says index", `{"schemaVersion":2,"config":` + desc + `}`, "application/vnd.oci.image.index.v1+json", types.OCIManifestSchema1, ""},
		{"index", `{"schemaVersion":2,"manifests":[` + desc + `]}`, "", types.OCIImageIndex, ""},
		{"list", `{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.list.v2+json","manifests":[]}`, "", types.DockerManifestList, ""},
		{"both", `{"schemaVersion":2,"config":` + desc + `,"manifests":[]}`, "", "", "at the same time"},
		{"schema 1", `{"schemaVersion":1,"fsLayers":[]}`, "", "", "schema 1"},
		{"schema 1 by type", `{}`, string(types.DockerManifestSchema1Signed), "", "schema 1"},
		{"no JSON", `<html>`, "text/html", "", "not valid JSON"},
		{"no config", `{"schemaVersion":2}`, "", "", "no config"},
		{"config is null", `{"schemaVersion":2,"config":null}`, "", "", "digest"},
		{"digest of another kind", `{"config":{"digest":"md5:00"}}`, "", "", "md5"},
		{"short digest", `{"config":{"digest":"sha256:00"}}`, "", "", "wrong number of hex digits"},
		{"negative size", `{"config":{"size":-1,"digest":"` + hash + `"}}`, "", "", "size -1"},
		{"artifact of the draft", `{"mediaType":"application/vnd.oci.artifact.manifest.v1+json"}`, "", "", "not supported"},
		{"too large", strings.Repeat(" ", maxManifest+1), "", "", "over"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := parseManifest([]byte(tt.in), tt.contentType)
			checkError(t, err, tt.err)
			if err == nil && (m.MediaType != string(tt.kind) || (m.Index != nil) != tt.kind.IsIndex() || (m.Image != nil) != tt.kind.IsImage()) {
				t.Errorf("got %s, want %s", m.MediaType, tt.kind)
			}
		})
	}
}

func FuzzParseManifest(f *testing.F) {
	hash := "sha256:" + strings.Repeat("ab", 32)
	f.Add([]byte(`{"schemaVersion":2,"config":{"size":2,"digest":"`+hash+`"},"layers":[{"digest":"`+hash+`"}]}`), "")
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"`+hash+`","platform":{"os":"linux","architecture":"arm","variant":"v7"}}]}`), string(types.OCIImageIndex))
	f.Fuzz(func(t *testing.T, raw []byte, contentType string) {
		m, err := parseManifest(raw, contentType)
		if err != nil {
			return
		}
		if (m.Image == nil) == (m.Index == nil) {
			t.Fatal("neither or both")
		}
		if m.Index != nil {
			choose(m.Index, normalize(v1.Platform{}))
			return
		}
		newImage(reference{}, m, []byte("{}"))
	})
}

// imageDocs returns a manifest and config with one layer each of the given types.
func imageDocs(t *testing.T, layerTypes ...types.MediaType) (manifest, config []byte) {
	t.Helper()
	hash, err := v1.NewHash("sha256:" + strings.Repeat("ab", 32))
	if err != nil {
		t.Fatal(err)
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	var ids []string
	for _, mt := range layerTypes {
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: mt, Digest: hash, Size: 5, Annotations: map[string]string{"k": "v"}})
		ids = append(ids, hash.String())
	}
	config, err = json.Marshal(map[string]any{"os": "linux", "architecture": "arm64", "rootfs": map[string]any{"diff_ids": ids}})
	if err != nil {
		t.Fatal(err)
	}
	m.Config = descriptor(config)
	m.Config.MediaType = types.OCIConfigJSON
	if manifest, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return manifest, config
}

func TestOpenImage(t *testing.T) {
	manifest, config := imageDocs(t, types.OCILayer, types.OCILayerZStd)
	img, err := openKept("app:1", manifest, config, platform("linux/arm64"))
	if err != nil {
		t.Fatal(err)
	}
	hash := chunk.Blob("sha256:" + strings.Repeat("ab", 32))
	note := map[string]string{"k": "v"}
	want := &Image{
		Reference: "docker.io/library/app:1", Repository: "docker.io/library/app",
		Digest: digestOf(manifest), MediaType: string(types.OCIManifestSchema1),
		Platform: platform("linux/arm64"), Manifest: manifest, Config: config,
		Layers:  []Layer{{hash, 5, string(types.OCILayer), note}, {hash, 5, string(types.OCILayerZStd), note}},
		DiffIDs: []chunk.Blob{hash, hash},
	}
	if diff := cmp.Diff(want, img); diff != "" {
		t.Error(diff)
	}
}

// TestInlineConfig has a manifest that brings its config along.
func TestInlineConfig(t *testing.T) {
	raw, config := imageDocs(t, types.OCILayer)
	var m v1.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	m.Config.Data = config
	manifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openKept("app:1", manifest, nil, platform("linux/arm64")); err != nil {
		t.Error(err)
	}
}

func TestOpenImageRejects(t *testing.T) {
	manifest, config := imageDocs(t, types.OCILayer)
	index := []byte(`{"schemaVersion":2,"manifests":[]}`)
	noIDs := []byte(`{"os":"linux"}`)
	var m v1.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		t.Fatal(err)
	}
	m.Config = descriptor(noIDs)
	m.Config.MediaType = types.OCIConfigJSON
	manifestNoIDs, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	of := func(mt types.MediaType) [2][]byte {
		m, c := imageDocs(t, mt)
		return [2][]byte{m, c}
	}
	tests := []struct {
		name, ref string
		docs      [2][]byte // manifest and config
		err       string
		corrupt   bool
	}{
		{"reference", "A", [2][]byte{manifest, config}, "not valid", false},
		{"index", "a", [2][]byte{index, config}, "index has 0 manifests", false},
		{"config of another", "a", [2][]byte{manifest, []byte("{}")}, "config has digest", true},
		{"diff_ids are missing", "a", [2][]byte{manifestNoIDs, noIDs}, "0 diff_ids for 1 layers", true},
		{"foreign layer", "a", of(types.DockerForeignLayer), "foreign layer", false},
		{"nondistributable layer", "a", of(types.OCIRestrictedLayer), "foreign layer", false},
		{"nondistributable zstd layer", "a", of("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"), "foreign layer", false},
		{"encrypted layer", "a", of("application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), "encrypted", false},
		{"no layer", "a", of("application/vnd.wasm.content.layer.v1+wasm"), "not that of a layer", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := openKept(tt.ref, tt.docs[0], tt.docs[1], platform("linux/arm64"))
			checkError(t, err, tt.err)
			if got := errors.Is(err, chunk.ErrCorrupt); got != tt.corrupt {
				t.Errorf("ErrCorrupt: %v, want %v", got, tt.corrupt)
			}
		})
	}
}
