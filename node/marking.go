package node

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/chunk"
	"graze/origin"
)

// A marking finds the files of a library that images in use need: for their next
// mount, here or by another node, without a registry.
type marking struct {
	*Library
	files  map[string]bool // by their paths
	images map[chunk.Blob]bool
	layers map[chunk.Blob]bool
}

func newMarking(l *Library) *marking {
	return &marking{l, make(map[string]bool), make(map[chunk.Blob]bool), make(map[chunk.Blob]bool)}
}

// image marks what the folder has of the lowest layers of an image, whose reference
// has its digest; of all layers, if their number is 0.
func (m *marking) image(ctx context.Context, ref string, layers int) {
	name, err := origin.ParseName(ref)
	if err != nil || name.Digest == "" {
		return
	}
	m.images[name.Digest] = true
	m.manifest(name.Digest)
	f := m.foundBlob(lookup{manifestLookup, name.String()})
	if f == nil {
		return
	}
	found, err := origin.OpenImage(ctx, ref, f.Manifests[0], m.platform, keptDocuments{m.blobs})
	if err != nil {
		return // not all of it is here, and it is not mounted
	}
	img := &Image{Image: found}
	if layers != 0 {
		if img, err = img.lowest(layers); err != nil {
			return
		}
	}
	m.view(img)
}

// tree marks what an image needs that is open.
func (m *marking) tree(t *Tree) {
	m.images[t.Image.Digest] = true
	m.manifest(t.Image.Digest)
	m.view(t.Image)
	for _, b := range t.View.blobs {
		m.blob(b.Digest)
	}
}

// view marks the view of an image, and has its layers' indexes be marked.
func (m *marking) view(img *Image) {
	m.files[m.viewPath(img)] = true
	for _, layer := range img.Layers {
		m.layers[layer.Digest] = true
	}
}

// blob marks a blob. It reports whether it was not marked before.
func (m *marking) blob(d chunk.Blob) bool {
	path, err := m.blobs.path(d)
	if err != nil || m.files[path] {
		return false
	}
	m.files[path] = true
	return true
}

// manifest marks a manifest or an index, and all that it names.
func (m *marking) manifest(d chunk.Blob) {
	if !m.blob(d) {
		return
	}
	parsed := m.peekManifest(d)
	switch {
	case parsed == nil:
	case parsed.Index != nil:
		for _, child := range parsed.Index.Manifests {
			m.manifest(chunk.Blob(child.Digest.String()))
		}
	default:
		m.blob(chunk.Blob(parsed.Image.Config.Digest.String()))
		for _, layer := range parsed.Image.Layers {
			m.blob(chunk.Blob(layer.Digest.String()))
		}
		if named := parsed.Image.Annotations[sociIndexOf]; named != "" {
			m.manifest(chunk.Blob(named))
		}
	}
}

// peekManifest returns a manifest or an index that the folder has, or nil.
func (m *marking) peekManifest(d chunk.Blob) *origin.Manifest {
	f, err := m.blobs.peek(d)
	if err != nil {
		return nil
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return nil
	}
	parsed, err := origin.ParseManifest(raw)
	if err != nil {
		return nil
	}
	return parsed
}

// records marks the indexes of the layers in use.
func (m *marking) records() {
	eachRecord(filepath.Join(m.dir, "layers"), func(path string) {
		var r struct { // a layerRecord, or a tailRecord
			Layer, Tree, Checkpoints, Tail chunk.Blob
		}
		if peekRecord(path, &r) != nil || !m.layers[r.Layer] {
			return
		}
		m.files[path] = true
		for _, d := range []chunk.Blob{r.Tree, r.Checkpoints, r.Tail} {
			m.blob(d)
		}
	})
}

// findings marks what registries have said of images in use: which tags stand for
// them, and which indexes they have.
func (m *marking) findings() {
	eachRecord(filepath.Join(m.dir, "refs"), func(path string) {
		f := new(finding)
		if peekRecord(path, f) != nil || f.check(f.lookup) != nil {
			return
		}
		if !m.isAbout(f) {
			return
		}
		m.files[path] = true
		for _, d := range f.Manifests {
			m.manifest(chunk.Blob(d.Digest.String()))
		}
	})
}

// isAbout reports whether a finding is about an image in use, or an index of one.
func (m *marking) isAbout(f *finding) bool {
	name, err := origin.ParseName(f.Reference)
	if err != nil {
		return false
	}
	if f.Kind == indexesLookup {
		return m.images[name.Digest]
	}
	digest := chunk.Blob(f.Manifests[0].Digest.String())
	if path, err := m.blobs.path(digest); err == nil && m.files[path] {
		return true
	}
	return m.names(digest)
}

// names reports whether a manifest or an index names an image in use, or has tables of
// contents of its layers.
func (m *marking) names(d chunk.Blob) bool {
	parsed := m.peekManifest(d)
	if parsed == nil {
		return false
	}
	if parsed.Index != nil {
		return slices.ContainsFunc(parsed.Index.Manifests, func(d v1.Descriptor) bool { return m.images[chunk.Blob(d.Digest.String())] })
	}
	return slices.ContainsFunc(parsed.Image.Layers, func(d v1.Descriptor) bool { return m.layers[chunk.Blob(d.Annotations[externalOf])] })
}

// eachRecord calls f with the name of each record in a folder.
func eachRecord(dir string, f func(path string)) {
	names, _ := os.ReadDir(dir) // whoever removes files lists them too, and reports errors
	for _, n := range names {
		if strings.HasSuffix(n.Name(), ".json") && !isIncomplete(n.Name()) {
			f(filepath.Join(dir, n.Name()))
		}
	}
}

// keptDocuments are the manifests and configs that the folder has.
type keptDocuments struct{ blobDir }

// Manifest implements origin.Documents.
func (d keptDocuments) Manifest(_ context.Context, _ string, desc v1.Descriptor) ([]byte, error) {
	return d.read(chunk.Blob(desc.Digest.String()), maxManifest)
}

// Config implements origin.Documents.
func (d keptDocuments) Config(_ context.Context, _ string, desc v1.Descriptor) ([]byte, error) {
	return d.read(chunk.Blob(desc.Digest.String()), maxConfig)
}
