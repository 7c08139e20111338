package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"graze/image/imagetest"
	"graze/origin"
)

// unannotated is an eStargz image whose manifest does not vouch for the tables of
// contents.
func unannotated(t testing.TB) *imagetest.Image {
	t.Helper()
	img := smallImage(t, imagetest.EStargz("estargz"))
	for i := range img.Layers {
		img.Layers[i].Annotations = nil
	}
	img, err := imagetest.NewImage(img.Layers)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestUnverifiedTOC: a table of contents that nothing vouches for is used by those
// only who allow it, also if another did before on the same state folder.
func TestUnverifiedTOC(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, unannotated(t), "small:1")
	state := t.TempDir()

	out, code := grazeCode(t, "ls", "--state", state, "--index", "require", ref, "/etc")
	if code != 1 || !strings.Contains(out, "TOC has no digest in the manifest") {
		t.Fatalf("without permission: exit code %d\n%s", code, out)
	}
	var stderr strings.Builder
	if code := run(t.Context(), []string{"ls", "--state", state, "--index", "require", "--unverified-toc", "accept", ref, "/etc"}, &strings.Builder{}, &stderr); code != 0 {
		t.Fatalf("with permission: exit code %d\n%s", code, &stderr)
	}
	if !strings.Contains(stderr.String(), "does not vouch") {
		t.Errorf("no warning about a table of contents that is taken on trust:\n%s", &stderr)
	}
	if out, code := grazeCode(t, "ls", "--state", state, "--index", "require", ref, "/etc"); code != 1 {
		t.Errorf("without permission, after another had it: exit code %d\n%s", code, out)
	}
	if out := graze(t, "cat", "--state", state, ref, "/etc/motd"); out != "hello\n" {
		t.Errorf("with an index of our own, cat prints %q", out)
	}
}

// TestBadReferrer: artifacts that claim to be the image's index and are not keep
// nobody from the image.
func TestBadReferrer(t *testing.T) {
	reg := startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	ref := reg.push(t, img, "small:1")
	client, err := origin.New(origin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	garbage := string(imagetest.Random(2, 1000))
	h, _, err := v1.SHA256(strings.NewReader(garbage))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := v1.NewHash(img.Digest())
	if err != nil {
		t.Fatal(err)
	}
	bad := &origin.Artifact{
		Type:    "application/vnd.graze.index.v1",
		Subject: v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: subject, Size: int64(len(img.Manifest))},
	}
	for _, layer := range img.Layers {
		bad.Blobs = append(bad.Blobs, origin.ArtifactBlob{
			Descriptor: v1.Descriptor{
				MediaType:   "application/vnd.graze.index.tree.v1",
				Digest:      h,
				Size:        int64(len(garbage)),
				Annotations: map[string]string{"graze.index.layer": layer.Digest},
			},
			Content: strings.NewReader(garbage),
		})
	}
	if _, err := client.PushArtifact(t.Context(), reg.addr+"/small", bad); err != nil {
		t.Fatal(err)
	}
	if out, code := grazeCode(t, "ls", "--state", t.TempDir(), "--index", "require", ref); code != 1 || !strings.Contains(out, "not a tree of graze's index") {
		t.Errorf("with the bad index alone: exit code %d\n%s", code, out)
	}
	if out := graze(t, "cat", "--state", t.TempDir(), "--index", "build", ref, "/etc/motd"); out != "hello\n" {
		t.Errorf("where the index may be built, cat prints %q", out)
	}
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	if out := graze(t, "cat", "--state", t.TempDir(), "--index", "require", ref, "/etc/motd"); out != "hello\n" {
		t.Errorf("with a good index beside the bad one, cat prints %q", out)
	}
}

// TestDamagedState damages each kind of file in a state folder. The image can be
// read all the same, with the right bytes.
func TestDamagedState(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
	want := string(imagetest.Random(1, 5<<20))
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	for _, row := range []struct {
		name  string
		index string // how the state came by the index
		files string
		hurt  func(name string) error
	}{
		{"views lost", "require", "views/*", os.Remove},
		{"views cut", "require", "views/*", cut},
		{"views flipped", "require", "views/*", flip},
		{"blobs lost", "require", "blobs/sha256/*", os.Remove},
		{"blobs cut", "require", "blobs/sha256/*", cut},
		{"blobs flipped", "require", "blobs/sha256/*", flip},
		{"layers lost", "require", "layers/*", os.Remove},
		{"refs lost", "require", "refs/*", os.Remove},
		{"refs cut", "require", "refs/*", cut},
		{"own blobs lost", "build", "blobs/sha256/*", os.Remove},
		{"own blobs cut", "build", "blobs/sha256/*", cut},
		{"own blobs and views lost", "build", "[bv]*/*", os.RemoveAll},
	} {
		t.Run(row.name, func(t *testing.T) {
			state := t.TempDir()
			if out := graze(t, "cat", "--state", state, "--index", row.index, ref, "/big/random"); out != want {
				t.Fatal("cat prints other bytes before anything was damaged")
			}
			files, err := filepath.Glob(filepath.Join(state, row.files))
			if err != nil || len(files) == 0 {
				t.Fatalf("no files to damage: %v", err)
			}
			for _, name := range files {
				if err := row.hurt(name); err != nil {
					t.Fatal(err)
				}
			}
			if out := graze(t, "cat", "--state", state, "--index", row.index, ref, "/big/random"); out != want {
				t.Error("cat prints other bytes")
			}
		})
	}
}

// cut takes the last byte off a file.
func cut(name string) error {
	st, err := os.Stat(name)
	if err != nil || st.Size() == 0 {
		return err
	}
	return os.Truncate(name, st.Size()-1)
}

// flip flips a bit in the middle of a file.
func flip(name string) error {
	p, err := os.ReadFile(name)
	if err != nil || len(p) == 0 {
		return err
	}
	p[len(p)/2] ^= 1
	return os.WriteFile(name, p, 0o600)
}

// TestMovedRegistry: an image that is served from elsewhere later, with its index,
// is read from there.
func TestMovedRegistry(t *testing.T) {
	old, moved := startRegistry(t), startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	state := t.TempDir()
	for _, reg := range []*testRegistry{old, moved} {
		graze(t, "index", "--state", t.TempDir(), "--push", reg.push(t, img, "small:1"))
	}
	graze(t, "ls", "--state", state, "--index", "require", old.addr+"/small:1")
	old.stop()
	out := graze(t, "cat", "--state", state, "--index", "require", moved.addr+"/small:1", "/big/random")
	if out != string(imagetest.Random(1, 5<<20)) {
		t.Error("cat prints other bytes")
	}
}

// TestRegistryGone: what was resolved before can be looked at without the
// registry, by tag with a warning, and by digest.
func TestRegistryGone(t *testing.T) {
	reg := startRegistry(t)
	img := smallImage(t, imagetest.Gzip(6))
	ref := reg.push(t, img, "small:1")
	state := t.TempDir()
	graze(t, "ls", "--state", state, ref)
	reg.stop()
	var stdout, stderr strings.Builder
	if code := run(t.Context(), []string{"ls", "--state", state, ref}, &stdout, &stderr); code != 0 {
		t.Fatalf("by tag: exit code %d\n%s", code, &stderr)
	}
	if !strings.Contains(stderr.String(), "registry is unavailable") || !strings.Contains(stdout.String(), "etc") {
		t.Errorf("by tag, ls prints\n%s%s", &stdout, &stderr)
	}
	if out := graze(t, "ls", "--state", state, reg.addr+"/small@"+img.Digest(), "/etc"); !strings.Contains(out, "motd") {
		t.Errorf("by digest, ls prints\n%s", out)
	}
	if out, code := grazeCode(t, "ls", "--state", t.TempDir(), ref); code != 1 || !strings.Contains(out, reg.addr) {
		t.Errorf("on a folder that knows nothing: exit code %d\n%s", code, out)
	}
}

// TestBuildKeepsChunks: the layer that is read to be indexed is not fetched again
// to be read.
func TestBuildKeepsChunks(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.Gzip(6)), "small:1")
	m := mount(t, ref, "--state", t.TempDir(), "--index", "build")
	before := reg.blobBytes(t)
	if _, err := os.ReadFile(filepath.Join(m.dir, "big/random")); err != nil {
		t.Fatal(err)
	}
	if after := reg.blobBytes(t); after != before {
		t.Errorf("%d more requests for blobs", after.Requests-before.Requests)
	}
}

// TestNothingToPublish: an image of eStargz layers needs no index of ours.
func TestNothingToPublish(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, smallImage(t, imagetest.EStargz("estargz")), "small:1")
	var r indexResult
	if err := json.Unmarshal([]byte(graze(t, "index", "--state", t.TempDir(), "--push", "--json", ref)), &r); err != nil {
		t.Fatal(err)
	}
	if r.Pushed != "" || len(r.Layers) != 2 || r.Layers[0].Format != "estargz" {
		t.Errorf("index prints %+v", r)
	}
}
