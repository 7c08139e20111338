package main

import (
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"graze/image/imagetest"
)

// A testImage is an image in a clusterRegistry, and what its files must be.
type testImage struct {
	ref    string // as the nodes name it
	layers []string
	size   int64 // of all layers
	files  []wantedFile
}

// A wantedFile is a file that must have a given content.
type wantedFile struct {
	path string
	size int64
	sum  [sha256.Size]byte
}

// clusterLayers are layers of large and small files, of size bytes in all. The
// large ones don't compress, so that what the registry sends is about what goes
// between nodes. The small ones are few enough that to open them on all nodes takes
// the one machine little time. Their contents depend on their names and sizes.
func clusterLayers(name string, size int64) []imagetest.Layer {
	large := []imagetest.Member{imagetest.Dir(name + "/large/")}
	for i := range 8 {
		large = append(large, randomFile(fmt.Sprintf("%s/large/%d", name, i), size/10))
	}
	return []imagetest.Layer{
		{Name: "large", Members: concat(imagetest.Members(imagetest.Dir(name+"/")), imagetest.Members(large...))},
		imagetest.SmallFiles(name+"/small", 250),
		{Name: "middle", Members: imagetest.Members(
			randomFile(name+"/a", size/40), randomFile(name+"/b", size/40), randomFile(name+"/c", size/40), randomFile(name+"/d", size/40))},
	}
}

// randomFile returns a file that doesn't compress. Its contents depend on its
// name and size, and are made as they are read.
func randomFile(name string, size int64) imagetest.Member {
	m := imagetest.File(name, nil)
	m.Header.Size = size
	m.Body = func() io.Reader {
		return io.LimitReader(rand.NewChaCha8(sha256.Sum256([]byte(name))), size)
	}
	return m
}

// randomStart returns the first n bytes of the file that randomFile makes.
func randomStart(name string, n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(p)
	return p
}

// publish pushes an image of layers, with its index.
func (r *clusterRegistry) publish(t testing.TB, name string, layers []imagetest.Layer) *testImage {
	t.Helper()
	img, local := r.pushBare(t, name, layers)
	graze(t, "index", "--state", t.TempDir(), "--push", local)
	return img
}

// pushBare pushes an image of layers without an index. It also returns the name
// that the image has on this host.
func (r *clusterRegistry) pushBare(t testing.TB, name string, layers []imagetest.Layer) (*testImage, string) {
	t.Helper()
	return r.pushAs(t, name, layers, imagetest.Gzip(gzip.BestSpeed))
}

// pushAs is pushBare for any encoding.
func (r *clusterRegistry) pushAs(t testing.TB, name string, layers []imagetest.Layer, e imagetest.Encoding) (*testImage, string) {
	t.Helper()
	img := &testImage{ref: registryAddr + ":5000/" + name + ":1"}
	dir := t.TempDir()
	blobs := make([]imagetest.Blob, len(layers))
	for i, l := range layers {
		var err error
		if blobs[i], err = e.EncodeFile(filepath.Join(dir, fmt.Sprint(i)), l); err != nil {
			t.Fatal(err)
		}
		img.layers = append(img.layers, blobs[i].Digest)
		img.size += blobs[i].Size
		for m := range l.Members {
			if m.Body == nil {
				continue
			}
			f := wantedFile{path: m.Header.Name, size: m.Header.Size}
			h := sha256.New()
			if _, err := io.Copy(h, m.Body()); err != nil {
				t.Fatal(err)
			}
			h.Sum(f.sum[:0])
			img.files = append(img.files, f)
		}
	}
	made, err := imagetest.NewImage(blobs)
	if err != nil {
		t.Fatal(err)
	}
	return img, r.push(t, made, name+":1")
}
