package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"

	"graze/chunk"
	"graze/dht"
	"graze/image"
	"graze/origin"
)

// The table of contents of a layer that has one is at the layer's end. Its digest is in
// the manifest, so any node can have it from any other: the home of the layer asks
// the registry for the end of the layer, and the others copy it from there.

// A tailRecord says what the end of a layer is, from the table of contents on.
type tailRecord struct {
	Layer chunk.Blob `json:"layer"`
	Off   int64      `json:"off"` // in the layer
	Tail  chunk.Blob `json:"tail"`
	Size  int64      `json:"size"` // of the tail: the layer ends with it
}

// check returns an error unless the record can be of a layer.
func (r *tailRecord) check(layer *origin.Layer) error {
	if r.Layer != layer.Digest || r.Off < 0 || r.Size <= 0 || r.Size > maxTree || r.Off+r.Size != layer.Size {
		return fmt.Errorf("%w: end of layer %s: bytes %d+%d of %d", chunk.ErrCorrupt, layer.Digest, r.Off, r.Size, layer.Size)
	}
	return nil
}

// A wantedTail names a layer whose end is asked for.
type wantedTail struct {
	Repository string     `json:"repository"`
	Layer      chunk.Blob `json:"layer"`
	Size       int64      `json:"size"`
	MediaType  string     `json:"mediaType"`
	Known      bool       `json:"known,omitempty"`

	// Annotations are those of the layer that are about its table of contents.
	Annotations map[string]string `json:"annotations"`
}

// tailPath returns the name of the file that keeps the record of a layer's end.
func (l *Library) tailPath(layer chunk.Blob) string {
	return filepath.Join(l.dir, "layers", fileName("tail "+string(layer))+".json")
}

// tailByPeers returns a reader of a layer whose end comes from its home. It is the
// Library's tail of a node in a cluster.
func (n *Node) tailByPeers(ctx context.Context, repository string, layer *origin.Layer) image.Ranger {
	blob := n.client.Blob(repository, layer.Digest, layer.Size)
	p, err := n.layerTail(ctx, repository, layer)
	if err != nil {
		return failedRanger{blob, err}
	}
	return &tailRanger{blob, layer.Size - int64(len(p)), p}
}

// A failedRanger is a blob of which nothing can be read.
type failedRanger struct {
	image.Ranger
	err error
}

// ReadRange implements image.Ranger.
func (r failedRanger) ReadRange(context.Context, int64, int64) (io.ReadCloser, error) {
	return nil, r.err
}

// A tailRanger is a blob whose end is at hand.
type tailRanger struct {
	image.Ranger
	off  int64
	tail []byte
}

// ReadRange implements image.Ranger.
func (r *tailRanger) ReadRange(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if off < r.off || n < 0 || off-r.off > int64(len(r.tail))-n {
		return r.Ranger.ReadRange(ctx, off, n)
	}
	return io.NopCloser(bytes.NewReader(r.tail[off-r.off:][:n])), nil
}

// layerTail returns the end of a layer: from the state folder, from the layer's home
// or another node that has it, or from the registry.
func (n *Node) layerTail(ctx context.Context, repository string, layer *origin.Layer) ([]byte, error) {
	if p, err := n.keptTail(layer); err == nil {
		return p, nil
	}
	want := &wantedTail{Repository: repository, Layer: layer.Digest, Size: layer.Size,
		MediaType: layer.MediaType, Annotations: contentsAnnotations(layer.Annotations)}
	key := dht.HomeKey(&chunk.Span{Blob: layer.Digest, Len: layer.Size})
	view := n.members.dht.View()
	if homes := view.ClusterHomes(key, 1); len(homes) == 1 && homes[0].ID != n.members.host.ID() {
		p, err := n.tailFrom(ctx, homes[0], want, layer)
		if err == nil || ctx.Err() != nil {
			return p, err
		}
		n.log.Warn("table of contents could not be had from the layer's home", "layer", layer.Digest, "home", homes[0].Name, "err", err)
	}
	return n.tailHere(ctx, want, layer)
}

// keptTail returns the end of a layer that the state folder has.
func (n *Node) keptTail(layer *origin.Layer) ([]byte, error) {
	var rec tailRecord
	if err := readRecord(n.tailPath(layer.Digest), &rec); err != nil {
		return nil, err
	}
	if err := rec.check(layer); err != nil {
		return nil, err
	}
	return n.blobs.read(rec.Tail, maxTree)
}

// tailFrom copies the end of a layer from another node, and checks it.
func (n *Node) tailFrom(ctx context.Context, from *dht.Member, want *wantedTail, layer *origin.Layer) ([]byte, error) {
	reply, err := n.members.tell(ctx, from, notice{Kind: tailNotice, Tail: want})
	if err != nil {
		return nil, err
	}
	if reply.Tail == nil {
		return nil, fmt.Errorf("%w: node %s answers without an answer", chunk.ErrCorrupt, from.Name)
	}
	if err := reply.Tail.check(layer); err != nil {
		return nil, err
	}
	p, err := n.copyWhole(ctx, from.ID, blobSource{Digest: reply.Tail.Tail, Size: reply.Tail.Size})
	if err != nil {
		return nil, err
	}
	r := &tailRanger{n.client.Blob(want.Repository, want.Layer, want.Size), reply.Tail.Off, p}
	if _, err := openContents(ctx, r, layer, false); err != nil {
		return nil, err
	}
	return p, writeRecord(n.tailPath(layer.Digest), reply.Tail)
}

// tailHere gets the end of a layer, once for all who ask this node for it: from any
// member that has it, or else from the registry.
func (n *Node) tailHere(ctx context.Context, want *wantedTail, layer *origin.Layer) ([]byte, error) {
	unlock, err := n.copying.lock(ctx, layer.Digest)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if p, err := n.keptTail(layer); err == nil {
		return p, nil
	}
	known := *want
	known.Known = true
	for m := range n.askAll(ctx, dht.HomeKey(&chunk.Span{Blob: layer.Digest, Len: layer.Size}), notice{Kind: tailNotice, Tail: &known}) {
		if p, err := n.tailFrom(ctx, m, &known, layer); err == nil {
			return p, nil
		}
	}
	rec := &recorder{Ranger: n.client.Blob(want.Repository, layer.Digest, layer.Size)}
	if _, err := openContents(ctx, rec, layer, false); err != nil {
		return nil, err
	}
	p, err := rec.tail()
	if err != nil {
		return nil, err
	}
	d, err := n.blobs.write(p)
	if err == nil {
		size := int64(len(p))
		err = writeRecord(n.tailPath(layer.Digest), &tailRecord{Layer: layer.Digest, Off: layer.Size - size, Tail: d, Size: size})
	}
	return p, err
}

// onTailNotice gives another node the end of a layer.
func (n *Node) onTailNotice(ctx context.Context, want *wantedTail) (noticeReply, error) {
	if want == nil || want.Size <= 0 {
		return noticeReply{}, errors.New("the end of a layer is asked for, but not of which")
	}
	layer := &origin.Layer{Digest: want.Layer, Size: want.Size, MediaType: want.MediaType, Annotations: want.Annotations}
	var err error
	if want.Known {
		_, err = n.keptTail(layer)
	} else {
		_, err = n.tailHere(ctx, want, layer)
	}
	if err != nil {
		return noticeReply{}, err
	}
	rec := new(tailRecord)
	return noticeReply{Tail: rec}, readRecord(n.tailPath(layer.Digest), rec)
}

// A recorder keeps what is read of a blob.
type recorder struct {
	image.Ranger

	mu    sync.Mutex // guards parts
	parts map[int64]*bytes.Buffer
}

// ReadRange implements image.Ranger.
func (r *recorder) ReadRange(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	body, err := r.Ranger.ReadRange(ctx, off, n)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.parts == nil {
		r.parts = make(map[int64]*bytes.Buffer)
	}
	part := new(bytes.Buffer)
	r.parts[off] = part
	return &recorded{io.TeeReader(body, part), body}, nil
}

// A recorded is a range that is recorded, all of it, whatever of it is read.
type recorded struct {
	io.Reader
	body io.Closer
}

// Close implements io.Closer.
func (r *recorded) Close() error {
	_, err := io.Copy(io.Discard, r.Reader)
	return errors.Join(err, r.body.Close())
}

// tail returns what was read, which must be the end of the blob.
func (r *recorder) tail() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var tail []byte
	for end := r.Size(); ; {
		found := false
		for off, part := range r.parts {
			if off+int64(part.Len()) == end && part.Len() > 0 {
				tail, end, found = append(part.Bytes(), tail...), off, true
			}
		}
		if !found {
			break
		}
	}
	if len(tail) == 0 || len(tail) > maxTree {
		return nil, fmt.Errorf("the end of a layer that was read has %d bytes", len(tail))
	}
	return tail, nil
}
