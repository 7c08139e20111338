package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	libp2p "github.com/libp2p/go-libp2p/core/peer"

	"graze/chunk"
	"graze/dht"
	"graze/origin"
)

// A layer without any index is indexed by one node for all: its home. Whoever
// needs the index asks the home by a notice; if the home has none it makes it,
// and those who ask meanwhile wait for that. The two blobs of the index are then
// copied from the node that made them.
const (
	blobProtocol = "/graze/blob/1"

	// fromNode marks, among the repositories that may have a blob, a node that has
	// it: checkpoints that a member has made are in no registry. No repository has
	// a complete name that begins so.
	fromNode = "node/"
)

// A wantedIndex names a layer whose index is asked for.
type wantedIndex struct {
	Repository string     `json:"repository"`
	Layer      chunk.Blob `json:"layer"`
	Size       int64      `json:"size"`
	DiffID     chunk.Blob `json:"diffID"`
	Known      bool       `json:"known,omitempty"` // it is not to be made
}

// sharedIndex returns the index of a layer that has none, made by the layer's
// home for the whole cluster. It is the Library's build of a node in a cluster.
func (n *Node) sharedIndex(ctx context.Context, img *Image, i int, opts IndexOptions) (*layerIndex, error) {
	layer := &img.Layers[i]
	homes := n.members.dht.View().ClusterHomes(dht.HomeKey(&chunk.Span{Blob: layer.Digest, Len: layer.Size}), 1)
	if len(homes) == 0 || homes[0].ID == n.members.host.ID() {
		return n.indexHere(ctx, img, i, opts)
	}
	x, err := n.indexFrom(ctx, homes[0], img, i, false)
	if err != nil && ctx.Err() == nil {
		n.log.Warn("index could not be had from the layer's home and is made here", "layer", layer.Digest, "home", homes[0].Name, "err", err)
		return n.indexHere(ctx, img, i, opts)
	}
	return x, err
}

// indexHere makes the index of a layer, unless somebody has done so meanwhile.
func (n *Node) indexHere(ctx context.Context, img *Image, i int, opts IndexOptions) (*layerIndex, error) {
	layer := &img.Layers[i]
	unlock, err := n.building.lock(ctx, layer.Digest)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if x, err := n.openRecord(layer.Digest, "", img.DiffIDs[i]); err == nil || !isMissing(err) {
		return x, err
	}
	if x := n.knownIndex(ctx, img, i); x != nil {
		return x, nil
	}
	x, err := n.buildIndex(ctx, img, i, opts)
	if err == nil {
		// Whoever has the index asks for the chunks, and this node has them.
		n.directory.Flush(ctx)
	}
	return x, err
}

// knownIndex returns the index of a layer that any other member has; nil if none
// is found. The layer's home may be another node now than when the index was made,
// and the registry away.
func (n *Node) knownIndex(ctx context.Context, img *Image, i int) *layerIndex {
	if !n.sharesIndexes {
		return nil
	}
	layer := &img.Layers[i]
	key := dht.HomeKey(&chunk.Span{Blob: layer.Digest, Len: layer.Size})
	for m := range n.askAll(ctx, key, notice{Kind: indexNotice, Index: wantIndex(img, i, true)}) {
		x, err := n.indexFrom(ctx, m, img, i, true)
		if err == nil {
			return x
		}
		n.log.Warn("index of a member is not used", "layer", layer.Digest, "node", m.Name, "err", err)
	}
	return nil
}

// askAll sends a notice to the homes of key and to other members, 24 in all, at the
// same time, and yields those that don't answer with an error, as they answer.
func (n *Node) askAll(ctx context.Context, key dht.Key, msg notice) iter.Seq[*dht.Member] {
	return func(yield func(*dht.Member) bool) {
		view := n.members.dht.View()
		list := appendOthers(view.ClusterHomes(key, dht.MaxHomes), view, uint64(key), knownNodes)
		ctx, cancel := context.WithTimeout(ctx, knownPatience)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		answers := make(chan *dht.Member, len(list))
		for _, m := range list {
			wg.Go(func() {
				if m.ID != n.members.host.ID() {
					if _, err := n.members.tell(ctx, m, msg); err == nil {
						answers <- m
						return
					}
				}
				answers <- nil
			})
		}
		for range list {
			if m := <-answers; m != nil && !yield(m) {
				return
			}
		}
	}
}

// wantIndex asks for the index of layer i, or for one that is known only.
func wantIndex(img *Image, i int, known bool) *wantedIndex {
	layer := &img.Layers[i]
	return &wantedIndex{Repository: img.Repository, Layer: layer.Digest, Size: layer.Size, DiffID: img.DiffIDs[i], Known: known}
}

// indexFrom gets the index of a layer from the node that makes it, or has it, and
// keeps it.
func (n *Node) indexFrom(ctx context.Context, home *dht.Member, img *Image, i int, known bool) (*layerIndex, error) {
	layer := &img.Layers[i]
	reply, err := n.members.tell(ctx, home, notice{Kind: indexNotice, Index: wantIndex(img, i, known)})
	if err != nil {
		return nil, err
	}
	if reply.Index == nil || reply.Index.Layer != layer.Digest {
		return nil, fmt.Errorf("%w: node %s answers with no index of the layer", chunk.ErrCorrupt, home.Name)
	}
	rec := *reply.Index
	rec.Repository, rec.Origin = "", fmt.Sprintf("made by node %s (%s)", home.Name, home.ID)
	if known {
		rec.Origin = fmt.Sprintf("made by a member, and had from node %s (%s)", home.Name, home.ID)
	}
	if rec.TreeSize > maxTree || rec.CheckpointsSize > maxTree {
		return nil, fmt.Errorf("%w: node %s answers with an index of %d and %d bytes", chunk.ErrCorrupt, home.Name, rec.TreeSize, rec.CheckpointsSize)
	}
	if err := n.copyBlob(ctx, home.ID, rec.Tree, rec.TreeSize); err != nil {
		return nil, err
	}
	if rec.Checkpoints != "" {
		if err := n.copyBlob(ctx, home.ID, rec.Checkpoints, rec.CheckpointsSize); err != nil {
			return nil, err
		}
	}
	if err := writeRecord(n.recordPath(layer.Digest, ""), &rec); err != nil {
		return nil, fmt.Errorf("keep the index: %w", err)
	}
	return n.openRecord(layer.Digest, "", img.DiffIDs[i])
}

// onIndexNotice gives another node the index of a layer that this node is the
// home of.
func (n *Node) onIndexNotice(ctx context.Context, want *wantedIndex) (noticeReply, error) {
	if want == nil || !n.sharesIndexes {
		return noticeReply{}, errors.New("the node makes no indexes for others")
	}
	img := &Image{Image: &origin.Image{
		Reference:  want.Repository,
		Repository: want.Repository,
		Layers:     []origin.Layer{{Digest: want.Layer, Size: want.Size}},
		DiffIDs:    []chunk.Blob{want.DiffID},
	}}
	var x *layerIndex
	var err error
	if want.Known {
		x, err = n.openRecord(want.Layer, "", want.DiffID)
	} else {
		x, err = n.indexHere(ctx, img, 0, IndexOptions{Keep: n.keep})
	}
	if err != nil {
		return noticeReply{}, err
	}
	return noticeReply{Index: x.record}, nil
}

// copyBlob copies a small blob from another node, unless it is here.
func (n *Node) copyBlob(ctx context.Context, from chunk.PeerID, digest chunk.Blob, size int64) error {
	if n.blobs.has(digest, size) {
		return nil
	}
	id, err := libp2p.Decode(string(from))
	if err != nil {
		return err
	}
	dial, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	s, err := n.members.host.P2P().NewStream(dial, id, blobProtocol)
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { s.Reset() })
	defer stop()
	if err := errors.Join(writeJSON(s, digest), s.CloseWrite()); err != nil {
		return err
	}
	w, err := n.blobs.create()
	if err != nil {
		return err
	}
	defer w.abort()
	if _, err := io.Copy(w, io.LimitReader(s, maxTree+1)); err != nil {
		return err
	}
	if w.digest() != digest {
		return &chunk.Error{Op: "copy", What: string(digest), From: string(from), Err: chunk.ErrCorrupt}
	}
	_, err = w.commit()
	return err
}

// serveBlob answers a node that wants a small blob. One that is not here is an
// answer without bytes, which no digest fits.
func (n *Node) serveBlob(s network.Stream) {
	defer s.Close()
	var digest chunk.Blob
	err := errors.Join(s.SetDeadline(time.Now().Add(time.Minute)), readJSON(s, &digest))
	if err == nil {
		err = n.sendBlob(s, digest)
	}
	if err != nil && !isMissing(err) {
		s.Reset()
	}
}

// sendBlob writes a blob to w, from the state folder or as the chunk that it is.
func (n *Node) sendBlob(w io.Writer, digest chunk.Blob) error {
	err := n.blobs.check(digest)
	if err == nil {
		f, err := n.blobs.open(digest)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	}
	if !isMissing(err) || n.store == nil {
		return err
	}
	id, err := chunk.ParseID(string(digest))
	if err != nil {
		return err
	}
	section, err := n.store.Section(id)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, io.NewSectionReader(section.File(), section.Offset(), section.Len()))
	return errors.Join(err, section.Close())
}

// fetchFromNode copies a blob from a node that a request says has it.
func (n *Node) fetchFromNode(ctx context.Context, repository string, digest chunk.Blob) error {
	return n.copyBlob(ctx, chunk.PeerID(strings.TrimPrefix(repository, fromNode)), digest, -1)
}
