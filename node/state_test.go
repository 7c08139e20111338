package node

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"graze/image/imagetest"
	"graze/image/rafs/rafstest"
	"graze/image/soci/socitest"
	"graze/origin"
	"graze/registry"
)

// A stateTest is a registry, and the state folder of one node after the other.
type stateTest struct {
	addr  string
	state string
	down  atomic.Bool // the registry
	node  *Node       // nil if none is open
}

// newStateTest serves a registry until the end of the test.
func newStateTest(t *testing.T) *stateTest {
	t.Helper()
	reg, err := registry.New(t.TempDir(), registry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	st := &stateTest{state: t.TempDir()}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if st.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		reg.ServeHTTP(w, r)
	}))
	st.addr = strings.TrimPrefix(srv.URL, "http://")
	t.Cleanup(func() {
		st.restart(t)
		srv.Close()
		if err := reg.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

// open opens a node that runs nothing, and wants no metadata.
func (st *stateTest) open(t *testing.T, change ...func(*Config)) *Node {
	t.Helper()
	cfg := Config{State: st.state, StoreLimit: 64 << 20, MetadataLimit: 1, Origin: origin.Config{Retry: origin.Retry{Attempts: 1}}}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if st.node, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	return st.node
}

// restart closes the node that is open.
func (st *stateTest) restart(t *testing.T) {
	t.Helper()
	if st.node == nil {
		return
	}
	if err := st.node.Close(); err != nil {
		t.Error(err)
	}
	st.node = nil
}

// ref returns the reference of a name in the registry.
func (st *stateTest) ref(name string) string { return st.addr + "/" + name }

// push puts an image into the registry and returns its reference.
func (st *stateTest) push(t *testing.T, img *imagetest.Image, name string) string {
	t.Helper()
	if err := img.Push(t.Context(), st.addr, name); err != nil {
		t.Fatal(err)
	}
	return st.ref(name)
}

// use opens an image.
func (st *stateTest) use(t *testing.T, n *Node, ref string) *Tree {
	t.Helper()
	img, err := n.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := n.OpenTree(t.Context(), img, IndexOptions{Build: true})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// close lets go of an image.
func (st *stateTest) close(t *testing.T, tree *Tree) {
	t.Helper()
	if err := tree.Close(); err != nil {
		t.Error(err)
	}
}

// files returns the metadata in the folder.
func (st *stateTest) files(t *testing.T) map[string]fs.FileInfo {
	t.Helper()
	list := make(map[string]fs.FileInfo)
	for _, dir := range metaDirs {
		names, err := os.ReadDir(filepath.Join(st.state, dir))
		if err != nil && !isMissing(err) {
			t.Fatal(err)
		}
		for _, n := range names {
			f, err := n.Info()
			if err != nil {
				t.Fatal(err)
			}
			list[filepath.Join(st.state, dir, n.Name())] = f
		}
	}
	return list
}

// age has nothing be used lately.
func (st *stateTest) age(t *testing.T) {
	t.Helper()
	at := time.Now().Add(-2 * usedLately)
	for path := range st.files(t) {
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// sweep has the node sweep.
func (st *stateTest) sweep(t *testing.T, n *Node) {
	t.Helper()
	if err := n.sweep(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
}

// there returns which of the images name:1 can be opened without the registry.
func (st *stateTest) there(t *testing.T, n *Node, names ...string) string {
	t.Helper()
	st.down.Store(true)
	defer st.down.Store(false)
	var list []string
	for _, name := range names {
		img, err := n.Resolve(t.Context(), st.ref(name+":1"))
		if err != nil {
			continue
		}
		view, err := n.OpenView(t.Context(), img, IndexOptions{})
		if err != nil {
			continue
		}
		list = append(list, name)
		if err := view.Close(); err != nil {
			t.Error(err)
		}
	}
	return strings.Join(list, " ")
}

// imageKinds are images whose metadata is found in different ways.
var imageKinds = []struct {
	name, format string
	push         func(t *testing.T, st *stateTest) (ref string)
}{
	{"index made here", "targz", func(t *testing.T, st *stateTest) string { return st.push(t, oneFile(t, "a"), "a:1") }},
	{"one of several platforms", "targz", func(t *testing.T, st *stateTest) string {
		img := oneFile(t, "a")
		st.push(t, img, "a:plain")
		return st.pushIndex(t, "a:1", img)
	}},
	{"table of contents in the layer", "estargz", func(t *testing.T, st *stateTest) string {
		return st.push(t, smallImage(t, imagetest.EStargz("estargz")), "a:1")
	}},
	{"table of contents in another image", "estargz", pushExternal},
	{"SOCI index that refers to the image", "soci", func(t *testing.T, st *stateTest) string { return pushSOCI(t, st, false) }},
	{"SOCI index beside the image", "soci", func(t *testing.T, st *stateTest) string { return pushSOCI(t, st, true) }},
	{"RAFS", "rafs-v6", pushRAFS},
}

// smallImage returns an image of one layer.
func smallImage(t *testing.T, e imagetest.Encoding) *imagetest.Image {
	t.Helper()
	img, err := imagetest.Build([]imagetest.Layer{imagetest.SmallFiles("files", 400)}, e)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// pushExternal pushes an image, and another one with its table of contents.
func pushExternal(t *testing.T, st *stateTest) string {
	var table imagetest.Blob
	img := smallImage(t, imagetest.ExternalTOC(func(toc []byte) {
		digest := string(blobDigest(toc))
		table = imagetest.Blob{MediaType: imagetest.MediaTypeTarGzip, Digest: digest, DiffID: digest, Size: int64(len(toc)), Data: bytes.Clone(toc)}
	}))
	table.Annotations = map[string]string{externalOf: img.Layers[0].Digest}
	beside, err := imagetest.NewImage([]imagetest.Blob{table})
	if err != nil {
		t.Fatal(err)
	}
	st.push(t, beside, "a:1"+externalSuffix)
	return st.push(t, img, "a:1")
}

// pushSOCI pushes an image and its SOCI index, of the second version if the image is
// to name it.
func pushSOCI(t *testing.T, st *stateTest, named bool) string {
	img := smallImage(t, imagetest.Gzip(6))
	ztoc, err := socitest.ZTOC(img.Layers[0].Data, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	kind := socitest.First
	if named {
		kind = socitest.Second
	}
	index, err := socitest.Index(kind, img, [][]byte{ztoc})
	if err != nil {
		t.Fatal(err)
	}
	if named {
		var m map[string]any
		if err := json.Unmarshal(img.Manifest, &m); err != nil {
			t.Fatal(err)
		}
		m["annotations"] = map[string]string{sociIndexOf: index.Digest()}
		if img.Manifest, err = json.Marshal(m); err != nil {
			t.Fatal(err)
		}
	}
	st.push(t, index, "a:index")
	return st.push(t, img, "a:1")
}

// pushRAFS pushes an image that consists of a bootstrap and a blob.
func pushRAFS(t *testing.T, st *stateTest) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), imagetest.Text(1, 300_000), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := rafstest.FromDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	built, err := rafstest.Build(root, rafstest.Options{Version: 6, Compressor: rafstest.Zstd})
	if err != nil {
		t.Fatal(err)
	}
	layers, err := built.Layers()
	if err != nil {
		t.Fatal(err)
	}
	img, err := imagetest.NewImage(layers)
	if err != nil {
		t.Fatal(err)
	}
	return st.push(t, img, "a:1")
}

// pushIndex pushes an index that has an image, which is in the repository already.
func (st *stateTest) pushIndex(t *testing.T, name string, img *imagetest.Image) string {
	t.Helper()
	const kind = "application/vnd.oci.image.index.v1+json"
	body, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": kind, "manifests": []any{map[string]any{
		"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": img.Digest(), "size": len(img.Manifest),
		"platform": map[string]any{"os": "linux", "architecture": runtime.GOARCH},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	repository, tag, _ := strings.Cut(name, ":")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+st.addr+"/v2/"+repository+"/manifests/"+tag, bytes.NewReader(body))
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
		t.Fatal(resp.Status)
	}
	return st.ref(name)
}
