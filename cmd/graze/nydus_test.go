package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"graze/image/fixture"
	"graze/image/imagetest"
	"graze/image/rafs/rafstest"
)

// nydusImage encodes an unpacked image in the format of Nydus.
func nydusImage(t testing.TB, dir string, opts rafstest.Options) *imagetest.Image {
	t.Helper()
	root, err := rafstest.FromDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return pushableRAFS(t, root, opts)
}

// pushableRAFS encodes a tree in the format of Nydus.
func pushableRAFS(t testing.TB, root *rafstest.Node, opts rafstest.Options) *imagetest.Image {
	t.Helper()
	img, err := rafstest.Build(root, opts)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	out, err := imagetest.NewImage(layers)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// referredLayers returns the layers of an image as an image in the format of
// Nydus can refer to them.
func referredLayers(t testing.TB, layers []imagetest.Layer, img *imagetest.Image, kind rafstest.LayerKind) []rafstest.Layer {
	t.Helper()
	var list []rafstest.Layer
	for i, l := range layers {
		plain, err := l.Tar()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, rafstest.Layer{Blob: img.Layers[i].Data, Tar: plain, Kind: kind})
	}
	return list
}

// TestNydusAdversarial mounts an image of everything odd in all forms that the
// format of Nydus has, and compares it with what containerd unpacks.
func TestNydusAdversarial(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	reg := startRegistry(t)
	ctd := startContainerd(t)
	layers := imagetest.Adversarial()
	packed, err := imagetest.Build(layers, imagetest.Gzip(6))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := imagetest.Build(layers, imagetest.Plain())
	if err != nil {
		t.Fatal(err)
	}
	dir := ctd.pull(t, reg.push(t, packed, "nydus:oci"))
	reg.push(t, plain, "nydus:plain")
	want := snapshot(t, dir)
	zran, tarRef := referredLayers(t, layers, packed, rafstest.ZRan), referredLayers(t, layers, plain, rafstest.TarRef)
	for name, opts := range map[string]rafstest.Options{
		"v5, lz4":            {Version: 5, Compressor: rafstest.LZ4, BLAKE3: true, Blobs: 2},
		"v5, zstd":           {Version: 5, Compressor: rafstest.Zstd, Prefetch: []string{"small"}},
		"v6, raw, old links": {Version: 6, CopyInodes: true},
		"v6, zstd":           {Version: 6, Compressor: rafstest.Zstd, BLAKE3: true, TOC: true, InlineDigests: true, Blobs: 3},
		"v6, batch, lz4":     {Version: 6, Compressor: rafstest.LZ4, Batch: 256 << 10, TOC: true, Prefetch: []string{"contents"}},
		"v6, ZRan":           {Version: 6, Layers: zran, TOC: true, InfoCompressor: rafstest.Zstd, Compressor: rafstest.Zstd},
		"v6, ZRan, beside":   {Version: 6, Layers: zran, MetaBeside: true, ChunkSize: 128 << 10, BLAKE3: true},
		"v6, tar-ref":        {Version: 6, Layers: tarRef, Compressor: rafstest.LZ4},
	} {
		t.Run(name, func(t *testing.T) {
			ref := reg.push(t, nydusImage(t, dir, opts), "nydus:"+strings.Map(tagRune, name))
			state := t.TempDir()
			m := mount(t, ref, "--state", state, "--index", "require")
			sameTree(t, want, m.dir)
			if format := fmt.Sprintf("rafs-v%d", opts.Version); !strings.Contains(m.ready.Format, format) {
				t.Errorf("format is %s", m.ready.Format)
			}
			m.stop(t)
			sameTree(t, want, mount(t, ref, "--state", state, "--index", "require").dir)
		})
	}
}

// tagRune makes a tag of a name of a test.
func tagRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return '_'
}

// TestNydusTarfs mounts an image that refers to an unpacked layer and has no
// digests of chunks: all of the layer has to be read, which must be allowed.
func TestNydusTarfs(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	reg := startRegistry(t)
	layer := imagetest.SmallFiles("files", 50)
	oci, err := imagetest.Build([]imagetest.Layer{layer}, imagetest.Plain())
	if err != nil {
		t.Fatal(err)
	}
	plain := mount(t, reg.push(t, oci, "tarfs:oci"), "--state", t.TempDir())
	want := snapshot(t, plain.dir)
	tarfs := nydusImage(t, plain.dir, rafstest.Options{Version: 6, Layers: referredLayers(t, []imagetest.Layer{layer}, oci, rafstest.Tarfs)})
	// The layer's size has to be known: it is beside the image in its index.
	both := pushIndex(t, reg, "tarfs:both", entry(oci, nil, ""), entry(pushed(t, reg, tarfs, "tarfs:1"), nil, nydusManifest))
	m := mount(t, both, "--state", t.TempDir())
	sameTree(t, want, m.dir)
	checkIndex(t, m, "rafs-v6", "in the same index")
	m = mount(t, both, "--state", t.TempDir(), "--index", "build")
	checkIndex(t, m, "rafs-v6", "in the same index")
	if out, code := grazeCode(t, "mount", "--state", t.TempDir(), "--index", "require", both, t.TempDir()); code == 0 || !strings.Contains(out, "without digests") {
		t.Errorf("without leave to read the layer: exit code %d\n%s", code, out)
	}
}

const nydusManifest = "application/vnd.nydus.image.manifest.v1+json"

// pushed pushes an image and returns it.
func pushed(t testing.TB, reg *testRegistry, img *imagetest.Image, name string) *imagetest.Image {
	t.Helper()
	reg.push(t, img, name)
	return img
}

// entry returns an image's entry in an index. features are of the operating system.
func entry(img *imagetest.Image, features []string, artifactType string) map[string]any {
	platform := map[string]any{"os": "linux", "architecture": runtime.GOARCH}
	if features != nil {
		platform["os.features"] = features
	}
	e := map[string]any{
		"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": img.Digest(), "size": len(img.Manifest), "platform": platform,
	}
	if artifactType != "" {
		e["artifactType"] = artifactType
	}
	return e
}

// pushIndex pushes an index of images that are in the repository already.
func pushIndex(t testing.TB, reg *testRegistry, name string, entries ...map[string]any) string {
	t.Helper()
	const kind = "application/vnd.oci.image.index.v1+json"
	body, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": kind, "manifests": entries})
	if err != nil {
		t.Fatal(err)
	}
	putManifest(t, reg, name, kind, body)
	return reg.addr + "/" + name
}

// putManifest pushes a document under "name:tag".
func putManifest(t testing.TB, reg *testRegistry, name, kind string, body []byte) {
	t.Helper()
	repository, tag, _ := strings.Cut(name, ":")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+reg.addr+"/v2/"+repository+"/manifests/"+tag, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: %s\n%s", name, resp.Status, text)
	}
}

// edited returns an image whose manifest was changed.
func edited(t testing.TB, img *imagetest.Image, edit func(manifest map[string]any)) *imagetest.Image {
	t.Helper()
	manifest := make(map[string]any)
	if err := json.Unmarshal(img.Manifest, &manifest); err != nil {
		t.Fatal(err)
	}
	edit(manifest)
	raw, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	out := *img
	out.Manifest = raw
	return &out
}

// checkIndex compares by which index a mount is served with the one wanted.
func checkIndex(t *testing.T, m *testMount, format, index string) {
	t.Helper()
	last := m.ready.Layers[len(m.ready.Layers)-1]
	if last.Format != format || !strings.Contains(last.Index, index) {
		t.Errorf("served by %s: %s; want %s: %s", last.Format, last.Index, format, index)
	}
}

// TestNydusManifests finds the image in the format of Nydus in all places where it
// can be, and takes the right one if there are several indexes.
func TestNydusManifests(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	reg := startRegistry(t)
	layers := []imagetest.Layer{imagetest.SmallFiles("files", 20)}
	build := func(e imagetest.Encoding) *imagetest.Image {
		img, err := imagetest.Build(layers, e)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	oci := pushed(t, reg, build(imagetest.Gzip(6)), "kinds:oci")
	plain := mount(t, reg.addr+"/kinds:oci", "--state", t.TempDir())
	want := snapshot(t, plain.dir)
	native := pushed(t, reg, nydusImage(t, plain.dir, rafstest.Options{Version: 6, Compressor: rafstest.Zstd}), "kinds:nydus")
	config := edited(t, native, func(m map[string]any) {
		m["config"].(map[string]any)["mediaType"] = "application/vnd.nydus.image.config.v1+json"
		m["artifactType"] = nydusManifest
	})
	reg.push(t, config, "kinds:config")
	refers := func(to *imagetest.Image, artifactType string) func(map[string]any) {
		return func(m map[string]any) {
			m["subject"] = map[string]any{"mediaType": m["mediaType"], "digest": to.Digest(), "size": len(to.Manifest)}
			if artifactType != "" {
				m["artifactType"] = artifactType
			}
		}
	}
	oldMark := []string{"nydus.remoteimage.v1"}
	es := pushed(t, reg, build(imagetest.EStargz("estargz")), "kinds:estargz")
	stored := pushed(t, reg, build(imagetest.StoredGzip()), "kinds:stored")
	member := pushed(t, reg, build(imagetest.MultiMemberGzip(1000)), "kinds:member")
	reg.push(t, edited(t, native, refers(stored, "")), "kinds:referrer")
	reg.push(t, edited(t, native, refers(member, nydusManifest)), "kinds:referrer2")
	reg.push(t, edited(t, native, refers(es, nydusManifest)), "kinds:referrer3")
	broken := pushed(t, reg, edited(t, native, func(m map[string]any) {
		list := m["layers"].([]any)
		m["layers"] = append(list[:0:0], list[0], map[string]any{
			"mediaType": imagetest.MediaTypeTarGzip, "digest": oci.Layers[0].Digest, "size": oci.Layers[0].Size,
			"annotations": map[string]any{"containerd.io/snapshot/nydus-bootstrap": "true"},
		})
	}), "kinds:broken")

	for _, tt := range []struct {
		name, ref, format, index string
	}{
		{"bootstrap layer", "kinds:nydus", "rafs-v6", "bootstrap in the layer"},
		{"config of its own", "kinds:config", "rafs-v6", "bootstrap in the layer"},
		{"referrer without type", "kinds:stored", "rafs-v6", "which refers to this one"},
		{"referrer with type", "kinds:member", "rafs-v6", "which refers to this one"},
		{"table of contents before referrer", "kinds:estargz", "estargz", "table of contents in the layer"},
		{"merged, new mark", pushIndex(t, reg, "kinds:new", entry(native, nil, nydusManifest), entry(oci, nil, "")), "rafs-v6", "in the same index"},
		{"merged, old mark", pushIndex(t, reg, "kinds:old", entry(oci, nil, ""), entry(config, oldMark, "")), "rafs-v6", "in the same index"},
		{"merged before table of contents", pushIndex(t, reg, "kinds:both", entry(es, nil, ""), entry(native, nil, nydusManifest)), "rafs-v6", "in the same index"},
		{"broken, so the next", pushIndex(t, reg, "kinds:next", entry(es, nil, ""), entry(broken, nil, nydusManifest)), "estargz", "table of contents in the layer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := mount(t, reg.addr+"/"+strings.TrimPrefix(tt.ref, reg.addr+"/"), "--state", t.TempDir(), "--index", "require")
			checkIndex(t, m, tt.format, tt.index)
			sameTree(t, want, m.dir)
		})
	}
}

// TestNydusSharesChunks reads an eStargz image, and then the same files from an
// image in the format of Nydus: their chunks are there.
func TestNydusSharesChunks(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	reg := startRegistry(t)
	layers := []imagetest.Layer{imagetest.SmallFiles("files", 200)}
	es, err := imagetest.Build(layers, imagetest.EStargz("estargz"))
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	m := mount(t, reg.push(t, es, "shares:estargz"), "--state", state, "--index", "require")
	want := snapshot(t, m.dir)
	for name, opts := range map[string]rafstest.Options{
		"v5": {Version: 5, Compressor: rafstest.Zstd},
		"v6": {Version: 6, Compressor: rafstest.LZ4, TOC: true},
	} {
		ref := reg.push(t, nydusImage(t, m.dir, opts), "shares:"+name)
		m.stop(t)
		m = mount(t, ref, "--state", state, "--index", "require")
		before := reg.requests(t)
		sameTree(t, want, m.dir)
		if n := reg.requests(t) - before; n != 0 {
			t.Errorf("%s: %d requests for chunks that are there", name, n)
		}
	}
}

// TestNydusFixtures mounts real images whose blobs there are, and reads all of
// them.
func TestNydusFixtures(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	read := func(name string) []byte { return fixture.Read(t, name) }
	read("README.md") // skips before anything is started
	reg := startRegistry(t)
	const texture = "nydus/tests/texture/"
	for i, tt := range []struct {
		boot, blob, golden string
	}{
		{texture + "repeatable/sha256-nocompress-repeatable", texture + "repeatable/blobs/7334a2594e133cf8ae364189c2276b090fc490c627bcc3fb1077f0419a538e00", "v5-sha256-nocompress.jsonl"},
		{texture + "repeatable/blake3-lz4_block-non_repeatable", texture + "repeatable/blobs/7334a2594e133cf8ae364189c2276b090fc490c627bcc3fb1077f0419a538e00", "v5-blake3-nocompress.jsonl"},
		{texture + "bootstrap/rafs-v6-2.2.boot", texture + "blobs/be7d77eeb719f70884758d1aa800ed0fb09d701aaec469964e9d54325f0d5fef", "v6-2.2.jsonl"},
		{"extracted/v6-inline-from-2fa78cad.boot", texture + "toc/2fa78cad554b75ac91a4a125ed148d0ddeb25efa4aaa8bd80e5dc292690a4dca", "v6-inline-2fa78cad.jsonl"},
	} {
		t.Run(tt.golden, func(t *testing.T) {
			img := realImage(t, read(tt.boot), read(tt.blob))
			m := mount(t, reg.push(t, img, fmt.Sprintf("real%d:1", i)), "--state", t.TempDir(), "--index", "require")
			tree := snapshot(t, m.dir)
			lines := strings.Split(strings.TrimSpace(string(read("golden/"+tt.golden))), "\n")
			for _, line := range lines {
				var f struct {
					Path, Mode, Target string
					Size, MTime        int64
				}
				if err := json.Unmarshal([]byte(line), &f); err != nil {
					t.Fatal(err)
				}
				n := tree[strings.TrimPrefix(f.Path, "/")]
				if f.Path == "/" {
					continue
				}
				if n == nil || fmt.Sprintf("0o%o", n.Mode) != f.Mode || n.Link != f.Target || n.MTime.Unix() != f.MTime || strings.HasPrefix(f.Mode, "0o100") && n.Size != f.Size {
					t.Errorf("%s is %+v, not %+v", f.Path, n, f)
				}
			}
			if len(tree) != len(lines) {
				t.Errorf("%d names, not %d", len(tree), len(lines))
			}
		})
	}
}

// realImage makes an image of a real bootstrap and its blob. In the bootstrap of a
// single layer the blob has no name yet, and one of the blobs was edited.
func realImage(t *testing.T, boot, blob []byte) *imagetest.Image {
	t.Helper()
	digest := fmt.Sprintf("%x", sha256.Sum256(blob))
	at := bytes.IndexFunc(boot[1408:], func(r rune) bool { return r != 0 }) + 1408 // version 6: the first device
	if boot[0] == 'S' {
		at = int(boot[48]) | int(boot[49])<<8 | int(boot[50])<<16
		at += 8
	}
	boot = bytes.ReplaceAll(boot, bytes.Clone(boot[at:at+64]), []byte(digest))
	img := &rafstest.Image{Bootstrap: boot, Blobs: []rafstest.Blob{{Digest: "sha256:" + digest, Data: blob}}}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	out, err := imagetest.NewImage(layers)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
