package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"graze/chunk"
	"graze/image"
	"graze/origin"
)

// Bounds of the metadata blobs that are read back from the state folder, in
// bytes. They are those of package origin.
const (
	maxManifest = 8 << 20
	maxConfig   = 16 << 20
	maxTree     = 128 << 20
)

// resolvePatience is how long a registry may take to say what a reference means,
// if it is known what the reference meant the last time. It bounds what a
// registry that swallows requests adds to the start of a container.
const resolvePatience = 10 * time.Second

// A Library is what is known of images: their manifests, indexes and views. It
// is safe for concurrent use, by several processes too.
type Library struct {
	dir       string
	blobs     blobDir
	client    *origin.Client
	platform  v1.Platform
	acceptTOC bool // also if nothing vouches for it
	log       *slog.Logger

	stale StalePolicy

	// find answers a lookup, fetch gets a whole small blob, tail reads a layer that
	// has a table of contents at its end, and build makes the index of a layer: by themselves, or with the help of other nodes.
	find  func(ctx context.Context, q lookup) (*finding, error)
	fetch func(ctx context.Context, src blobSource) ([]byte, error)
	tail  func(ctx context.Context, repository string, layer *origin.Layer) image.Ranger
	build func(ctx context.Context, img *Image, n int, opts IndexOptions) (*layerIndex, error)
}

// OpenLibrary opens the library in the folder cfg.State, and makes it if there
// is none. Of cfg it leaves alone what is about chunks. Close it after use.
func OpenLibrary(cfg Config) (*Library, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.State, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	client, err := origin.New(cfg.Origin)
	if err != nil {
		return nil, err
	}
	l := &Library{
		dir:       cfg.State,
		blobs:     blobDir(filepath.Join(cfg.State, "blobs")),
		client:    client,
		platform:  cfg.Platform,
		acceptTOC: cfg.AcceptUnverifiedTOC,
		log:       cfg.Log,
		stale:     cfg.Stale,
	}
	l.find, l.fetch, l.tail, l.build = l.findHere, l.fetchBlob, l.wholeLayer, l.buildIndex
	return l, nil
}

// wholeLayer reads a layer from its registry.
func (l *Library) wholeLayer(_ context.Context, repository string, layer *origin.Layer) image.Ranger {
	return l.client.Blob(repository, layer.Digest, layer.Size)
}

// Close ends what the library does in the background.
func (l *Library) Close() error { return l.client.Close() }

// An Image is an image that has been resolved.
type Image struct {
	*origin.Image

	// Stale is set if the registry did not answer, and the image is what the
	// reference stood for the last time.
	Stale bool

	part bool          // it is without some of its layers
	tag  string        // that it was asked for by; "" if it was asked for by its digest alone
	root v1.Descriptor // what the reference stands for: the manifest, or an index that names it
}

// sources says where the image's layers can be read from.
func (img *Image) sources() []blobSource {
	list := make([]blobSource, len(img.Layers))
	for i, layer := range img.Layers {
		list[i] = blobSource{Repository: img.Repository, Digest: layer.Digest, Size: layer.Size}
	}
	return list
}

// lowest returns the image without the layers above the first n.
func (img *Image) lowest(n int) (*Image, error) {
	if n < 1 || n > len(img.Layers) {
		return nil, fmt.Errorf("%s has %d layers, not %d", img.Reference, len(img.Layers), n)
	}
	part := *img.Image
	part.Layers, part.DiffIDs = img.Layers[:n], img.DiffIDs[:n]
	return &Image{Image: &part, Stale: img.Stale, part: n < len(img.Layers) || img.part, tag: img.tag, root: img.root}, nil
}

// Resolve finds the image that a reference means, and keeps its manifest and
// config. An image that is known needs no network if the reference has its
// digest. While the registry is unavailable, any other reference means what it
// stood for the last time, if that is known and allowed.
func (l *Library) Resolve(ctx context.Context, ref string) (*Image, error) {
	name, err := origin.ParseName(ref)
	if err != nil {
		return nil, err
	}
	q := lookup{manifestLookup, name.String()}
	f := l.foundBlob(q)
	if f == nil {
		if f, err = l.find(ctx, q); err != nil {
			return nil, err
		}
	}
	img, err := origin.OpenImage(ctx, q.Reference, f.Manifests[0], l.platform, documents{l, f.from})
	if err != nil {
		return nil, err
	}
	return &Image{Image: img, Stale: f.stale, tag: name.Tag, root: f.Manifests[0]}, nil
}

// OpenView opens the view of an image. The view is made from the layers' indexes
// the first time, and opened without the network from then on.
func (l *Library) OpenView(ctx context.Context, img *Image, opts IndexOptions) (*View, error) {
	path := l.viewPath(img)
	view, err := l.readView(path)
	switch {
	case err == nil:
		return view, nil
	case errors.Is(err, chunk.ErrCorrupt):
		l.log.Warn("view is damaged and is made again", "path", path, "err", err)
	case !isMissing(err):
		return nil, fmt.Errorf("open the image's view: %w", err)
	}
	if err := l.makeView(ctx, path, img, opts); err != nil {
		return nil, err
	}
	return l.readView(path)
}

// viewPath returns the name of the file that keeps an image's view.
func (l *Library) viewPath(img *Image) string {
	return filepath.Join(l.dir, "views", viewKey(img, l.acceptTOC)+".view")
}

// A View is the view of an image, and where those of its blobs are that are not
// the image's layers.
type View struct {
	*image.View
	blobs []blobSource
}

// readView opens the view in the file path. One whose checkpoints nobody has any
// more is reported as missing.
func (l *Library) readView(path string) (*View, error) {
	view, err := image.OpenView(path)
	if err != nil {
		return nil, err
	}
	var extra viewExtra
	if raw := view.Info().Extra; len(raw) > 0 {
		if err := json.Unmarshal(raw, &extra); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: what %s keeps: %w", chunk.ErrCorrupt, path, err), view.Close())
		}
	}
	for _, b := range extra.Blobs {
		if b.Repository == "" && !l.blobs.has(b.Digest, b.Size) {
			return nil, errors.Join(&chunk.Error{Op: "open", What: string(b.Digest), From: string(l.blobs), Err: chunk.ErrNotFound}, view.Close())
		}
	}
	touch(path)
	return &View{View: view, blobs: extra.Blobs}, nil
}

// makeView opens the indexes of all layers and writes their view to path.
func (l *Library) makeView(ctx context.Context, path string, img *Image, opts IndexOptions) error {
	indexes, err := l.openIndexes(ctx, img, opts)
	if err != nil {
		return err
	}
	var info image.Info
	var extra viewExtra
	layers := make([]*image.Layer, len(indexes))
	for i, x := range indexes {
		layers[i] = x.layer
		info.Layers = append(info.Layers, image.LayerInfo{
			Digest: x.report.Digest,
			Size:   x.report.Size,
			Format: x.report.Format,
			Index:  x.report.Index,
		})
		extra.Blobs = append(extra.Blobs, x.blobs...)
	}
	if info.Extra, err = extra.encode(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := image.WriteView(path, layers, info); err != nil {
		return fmt.Errorf("merge the layers of %s: %w", img.Reference, err)
	}
	// A large image's merge takes a few hundred MB that are not needed again.
	debug.FreeOSMemory()
	return nil
}
