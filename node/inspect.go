package node

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"graze/chunk"
	"graze/image"
)

// An Inspection is what can be said of an image without reading its files.
type Inspection struct {
	Reference string         `json:"reference"`
	Digest    chunk.Blob     `json:"digest"`
	Platform  string         `json:"platform"`
	Size      int64          `json:"size"` // of all layers' blobs in bytes
	Layers    []LayerIndexes `json:"layers"`
	Whole     []FoundIndex   `json:"whole"` // indexes of all of the image at once

	// Content is what the indexes that are used have of chunks; Repeated is how much
	// of that is there more than once.
	Content  Content `json:"content"`
	Repeated Content `json:"repeated"`

	// Shared is what the image has in common with others.
	Shared []Common `json:"shared"`

	chunks map[chunk.ID]int32 // their sizes
	view   string             // where its view is kept
}

// LayerIndexes are the indexes that were found of a layer, the one that serves it
// before those that come later.
type LayerIndexes struct {
	Digest  chunk.Blob   `json:"digest"`
	Size    int64        `json:"size"`
	Indexes []FoundIndex `json:"indexes"`
}

// A FoundIndex is an index that is there.
type FoundIndex struct {
	Format image.Format `json:"format,omitempty"`
	Index  string       `json:"index,omitempty"` // where it is from, for a person
	Used   bool         `json:"used"`
	Why    string       `json:"why,omitempty"`  // it is not used
	Size   int64        `json:"size,omitempty"` // of its blobs in bytes, if it has some of its own
	Spans  int          `json:"spans"`
	Content

	table *image.Table
}

// A Content is a number of chunks.
type Content struct {
	Chunks int64 `json:"chunks"`
	Bytes  int64 `json:"bytes"`
}

// add counts a chunk.
func (c *Content) add(size int32) {
	c.Chunks++
	c.Bytes += int64(size)
}

// A Common is what an image has in common with another one.
type Common struct {
	With string `json:"with"`
	Content
}

// Inspect looks for all indexes of an image, those too that are not needed.
func (l *Library) Inspect(ctx context.Context, img *Image) (*Inspection, error) {
	in := &Inspection{Reference: img.Reference, Digest: img.Digest, Platform: img.Platform.String(), Whole: []FoundIndex{}, Shared: []Common{}}
	for _, layer := range img.Layers {
		in.Size += layer.Size
		in.Layers = append(in.Layers, LayerIndexes{Digest: layer.Digest, Size: layer.Size, Indexes: []FoundIndex{}})
	}
	in.view = l.viewPath(img)
	s := l.newSearch(ctx, img, IndexOptions{})
	list := make([]*layerIndex, len(img.Layers))
	whole := false // an index of all of the image is used
	for _, src := range s.sources() {
		if src.whole != nil {
			x, err := src.whole(ctx)
			found, err := foundIndex(x, err, !whole && missing(list) >= 0)
			if err != nil {
				return nil, err
			}
			if found == nil {
				continue
			}
			if found.Used {
				whole = true
				in.dropUsed()
			}
			in.Whole = append(in.Whole, *found)
			continue
		}
		for i := range list {
			x, err := src.layer(ctx, i)
			found, err := foundIndex(x, err, !whole && list[i] == nil)
			if err != nil {
				return nil, fmt.Errorf("layer %d of %s: %w", i+1, img.Reference, err)
			}
			if found == nil {
				continue
			}
			if list[i] == nil {
				list[i] = x
			}
			in.Layers[i].Indexes = append(in.Layers[i].Indexes, *found)
		}
	}
	in.count()
	return in, nil
}

// foundIndex describes what a source has answered; nil if it has none. used says that
// it is used if it can be.
func foundIndex(x *layerIndex, err error, used bool) (*FoundIndex, error) {
	if r, ok := errors.AsType[refusal](err); ok {
		return &FoundIndex{Why: fmt.Sprintf("%.500v", r.error)}, nil
	}
	if x == nil || err != nil {
		return nil, err
	}
	f := &FoundIndex{Format: x.layer.Format, Index: x.report.Index, Used: used, Size: x.report.Tree + x.report.Checkpoints, table: &x.layer.Table}
	if !used {
		f.Why = "another one comes first"
	}
	f.Spans = len(f.table.Spans)
	for i := range f.table.Chunks {
		f.add(f.table.Chunks[i].Size)
	}
	return f, nil
}

// dropUsed notes that an index of all of the image is used and not those of single
// layers.
func (in *Inspection) dropUsed() {
	for _, l := range in.Layers {
		for i := range l.Indexes {
			if f := &l.Indexes[i]; f.Used {
				f.Used, f.Why = false, "not all layers have one, and there is an index of all of the image"
			}
		}
	}
}

// count goes over the chunks of the indexes that are used.
func (in *Inspection) count() {
	in.chunks = make(map[chunk.ID]int32)
	lists := [][]FoundIndex{in.Whole}
	for _, l := range in.Layers {
		lists = append(lists, l.Indexes)
	}
	for _, list := range lists {
		for i := range list {
			if !list[i].Used {
				continue
			}
			for _, c := range list[i].table.Chunks {
				in.Content.add(c.Size)
				if _, ok := in.chunks[c.ID]; ok {
					in.Repeated.add(c.Size)
				}
				in.chunks[c.ID] = c.Size
			}
		}
	}
}

// Compare notes what each of some images has in common with each other one, and with
// what the state folder has of still others.
func (l *Library) Compare(list []*Inspection) error {
	for _, in := range list {
		for _, other := range list {
			if other != in {
				in.share(other.Reference, maps.Keys(other.chunks))
			}
		}
	}
	dir := filepath.Join(l.dir, "views")
	names, err := os.ReadDir(dir)
	if err != nil && !isMissing(err) {
		return err
	}
	known := make(map[*Inspection]map[chunk.ID]bool)
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), ".view") {
			continue
		}
		if err := compareView(filepath.Join(dir, n.Name()), list, known); err != nil {
			return err
		}
	}
	for _, in := range list {
		if len(known[in]) > 0 {
			in.share("other images in the state folder", maps.Keys(known[in]))
		}
	}
	return nil
}

// share notes which of the given chunks the image has.
func (in *Inspection) share(with string, ids iter.Seq[chunk.ID]) {
	c := Common{With: with}
	for id := range ids {
		if size, ok := in.chunks[id]; ok {
			c.add(size)
		}
	}
	in.Shared = append(in.Shared, c)
}

// compareView adds the chunks of a view to those that are known besides each image,
// unless it is the view of one of them.
func compareView(path string, list []*Inspection, known map[*Inspection]map[chunk.ID]bool) error {
	for _, in := range list {
		if in.view == path {
			return nil
		}
	}
	v, err := image.OpenView(path)
	if errors.Is(err, chunk.ErrCorrupt) || isMissing(err) {
		return nil // it is made again when it is needed
	}
	if err != nil {
		return err
	}
	for i := range uint32(v.NumChunks()) {
		ref, _ := v.Chunk(i)
		for _, in := range list {
			if _, ok := in.chunks[ref.ID]; ok {
				if known[in] == nil {
					known[in] = make(map[chunk.ID]bool)
				}
				known[in][ref.ID] = true
			}
		}
	}
	return v.Close()
}
