package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"graze/chunk"
	"graze/image"
	"graze/image/targz"
)

// ErrNoIndex: a layer has no index that could be used.
var ErrNoIndex = errors.New("layer has no index")

// IndexOptions say how the indexes of an image's layers are come by.
type IndexOptions struct {
	// Build allows to make the index of a layer that has none, for which the
	// whole layer is read.
	Build bool

	// Progress is called while indexes are made, by several goroutines at once.
	Progress func(p Progress)

	// own has indexes of SOCI passed over, as graze's own is to be made, which reads
	// less at a time.
	own bool

	// Keep gets every chunk of a layer whose index is made, as the whole layer
	// passes by anyway. It is called by several goroutines at once.
	Keep func(v chunk.Verified)
}

// A Progress says how much of a layer has been read.
type Progress struct {
	Layer chunk.Blob
	Done  int64 // bytes of the blob
	Total int64
}

// A LayerReport says by which index a layer is served, and why.
type LayerReport struct {
	Digest      chunk.Blob   `json:"digest"`
	Size        int64        `json:"size"`
	Format      image.Format `json:"format"`
	Index       string       `json:"index"`                 // where the index came from, for a person
	Tree        int64        `json:"tree,omitempty"`        // bytes of graze's own index
	Checkpoints int64        `json:"checkpoints,omitempty"` // likewise
}

// A layerIndex is an opened index of a layer, or of a whole image.
type layerIndex struct {
	layer  *image.Layer
	report LayerReport
	blobs  []blobSource // where those are that the image has besides its layers
	record *layerRecord // of graze's own index
}

// openKept opens the index of a layer that the folder has: one that was made
// here, of bytes that the layer's digest vouches for, serves every image; one
// that was published, only images of the repository that it comes from.
func (l *Library) openKept(img *Image, n int) (*layerIndex, error) {
	x, err := l.openRecord(img.Layers[n].Digest, "", img.DiffIDs[n])
	if isMissing(err) {
		x, err = l.openRecord(img.Layers[n].Digest, img.Repository, img.DiffIDs[n])
	}
	return x, err
}

// openRecord opens the index of a layer that comes from a repository; from here,
// if that is empty. One that is not whole is reported as missing.
func (l *Library) openRecord(layer chunk.Blob, repository string, diffID chunk.Blob) (*layerIndex, error) {
	var rec layerRecord
	switch err := readRecord(l.recordPath(layer, repository), &rec); {
	case errors.Is(err, chunk.ErrCorrupt):
		l.log.Warn("record of an index is damaged and is made again", "layer", layer, "err", err)
		return nil, fs.ErrNotExist
	case err != nil:
		return nil, err
	}
	if rec.Layer != layer || rec.Repository != repository {
		return nil, fs.ErrNotExist
	}
	tree, err := l.blobs.read(rec.Tree, maxTree)
	if err != nil {
		return nil, err
	}
	if rec.Checkpoints != "" && rec.Repository == "" && !l.blobs.has(rec.Checkpoints, rec.CheckpointsSize) {
		return nil, &chunk.Error{Op: "open", What: string(rec.Checkpoints), From: string(l.blobs), Err: chunk.ErrNotFound}
	}
	return l.openTree(rec, tree, diffID)
}

// openPublished gets the tree that a published index consists of, keeps it, and
// opens it. The checkpoints stay where they are until they are needed.
func (l *Library) openPublished(ctx context.Context, rec layerRecord, diffID chunk.Blob) (*layerIndex, error) {
	tree, err := l.fetchTree(ctx, rec)
	if err != nil {
		return nil, err
	}
	x, err := l.openTree(rec, tree, diffID)
	if err != nil {
		return nil, err
	}
	if _, err := l.blobs.write(tree); err != nil {
		return nil, fmt.Errorf("keep the index: %w", err)
	}
	if err := writeRecord(l.recordPath(rec.Layer, rec.Repository), &rec); err != nil {
		return nil, fmt.Errorf("keep the index: %w", err)
	}
	return x, nil
}

// openTree opens a tree that has been checked against the record's digest. It
// must be of the layer that the image names, and that layer must unpack to what
// the image's config says.
func (l *Library) openTree(rec layerRecord, tree []byte, diffID chunk.Blob) (*layerIndex, error) {
	info, err := targz.ReadInfo(tree)
	if err != nil {
		return nil, fmt.Errorf("index %s of layer %s: %w", rec.Tree, rec.Layer, err)
	}
	if info.Layer.Digest != rec.Layer || info.DiffID != diffID {
		return nil, fmt.Errorf("%w: index %s is of layer %s, which unpacks to %s; the image has layer %s, which unpacks to %s",
			chunk.ErrCorrupt, rec.Tree, info.Layer.Digest, info.DiffID, rec.Layer, diffID)
	}
	if info.Checkpoints.Size > 0 && info.Checkpoints != (targz.Blob{Digest: rec.Checkpoints, Size: rec.CheckpointsSize}) {
		return nil, fmt.Errorf("%w: index %s of layer %s comes without its checkpoints %s", chunk.ErrCorrupt, rec.Tree, rec.Layer, info.Checkpoints.Digest)
	}
	layer, err := targz.Open(tree)
	if err != nil {
		return nil, fmt.Errorf("index %s of layer %s: %w", rec.Tree, rec.Layer, err)
	}
	x := &layerIndex{
		layer:  layer,
		record: &rec,
		report: LayerReport{Index: rec.Origin, Tree: rec.TreeSize, Checkpoints: rec.CheckpointsSize},
	}
	if rec.Checkpoints != "" {
		x.blobs = []blobSource{{Repository: rec.Repository, Digest: rec.Checkpoints, Size: rec.CheckpointsSize}}
	}
	return x, nil
}

// buildIndex makes the index of a layer by reading all of it, and keeps it.
func (l *Library) buildIndex(ctx context.Context, img *Image, n int, opts IndexOptions) (*layerIndex, error) {
	layer := &img.Layers[n]
	src, err := l.client.Blob(img.Repository, layer.Digest, layer.Size).ReadRange(ctx, 0, layer.Size)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	tree, err := l.blobs.create()
	if err != nil {
		return nil, err
	}
	defer tree.abort()
	checkpoints, err := l.blobs.create()
	if err != nil {
		return nil, err
	}
	defer checkpoints.abort()

	cfg := targz.Config{Keep: opts.Keep}
	if opts.Progress != nil {
		cfg.Progress = func(done int64) { opts.Progress(Progress{Layer: layer.Digest, Done: done, Total: layer.Size}) }
	}
	info, err := targz.Build(ctx, src, tree, checkpoints, cfg)
	if err != nil {
		return nil, err
	}
	if info.Layer.Digest != layer.Digest {
		return nil, &chunk.Error{Op: "index", What: string(layer.Digest), From: img.Repository,
			Err: fmt.Errorf("%w: digest is %s", chunk.ErrCorrupt, info.Layer.Digest)}
	}
	if info.DiffID != img.DiffIDs[n] {
		return nil, fmt.Errorf("%w: layer unpacks to %s, the image's config says %s", chunk.ErrCorrupt, info.DiffID, img.DiffIDs[n])
	}
	rec := layerRecord{Layer: layer.Digest, TreeSize: tree.size, Origin: "made here"}
	if rec.Tree, err = tree.commit(); err != nil {
		return nil, fmt.Errorf("keep the index: %w", err)
	}
	if rec.CheckpointsSize = checkpoints.size; rec.CheckpointsSize > 0 {
		if rec.Checkpoints, err = checkpoints.commit(); err != nil {
			return nil, fmt.Errorf("keep the index: %w", err)
		}
	}
	if err := writeRecord(l.recordPath(layer.Digest, ""), &rec); err != nil {
		return nil, fmt.Errorf("keep the index: %w", err)
	}
	return l.openRecord(layer.Digest, "", img.DiffIDs[n])
}

// recordPath returns the name of the file that says which index serves a layer
// to the images of a repository; to all images, if that is empty.
func (l *Library) recordPath(layer chunk.Blob, repository string) string {
	name := string(layer)
	if repository != "" {
		name += " " + repository
	}
	return filepath.Join(l.dir, "layers", fileName(name)+".json")
}
