package node

import (
	"context"
	"errors"
	"fmt"
	"io"
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
}

// layerLocks lets one party at a time make the index of a layer.
type layerLocks struct {
	mu    sync.Mutex // guards locks
	locks map[chunk.Blob]*layerLock
}

type layerLock struct {
	held  chan struct{} // has a value while the lock is held
	users int           // that hold it or wait
}

// lock waits for the lock of a layer and returns what gives it back.
func (l *layerLocks) lock(ctx context.Context, layer chunk.Blob) (unlock func(), err error) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = make(map[chunk.Blob]*layerLock)
	}
	one := l.locks[layer]
	if one == nil {
		one = &layerLock{held: make(chan struct{}, 1)}
		l.locks[layer] = one
	}
	one.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.locks, layer)
		}
	}
	select {
	case one.held <- struct{}{}:
		return func() {
			<-one.held
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// sharedIndex returns the index of a layer that has none, made by the layer's
// home for the whole cluster. It is the Library's build of a node in a cluster.
func (n *Node) sharedIndex(ctx context.Context, img *Image, i int, opts IndexOptions) (*layerIndex, error) {
	layer := &img.Layers[i]
	homes := n.members.dht.View().ClusterHomes(dht.HomeKey(&chunk.Span{Blob: layer.Digest, Len: layer.Size}), 1)
	if len(homes) == 0 || homes[0].ID == n.members.host.ID() {
		return n.indexHere(ctx, img, i, opts)
	}
	x, err := n.indexFrom(ctx, homes[0], img, i)
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
	return n.buildIndex(ctx, img, i, opts)
}

// indexFrom gets the index of a layer from the node that makes it, and keeps it.
func (n *Node) indexFrom(ctx context.Context, home *dht.Member, img *Image, i int) (*layerIndex, error) {
	layer := &img.Layers[i]
	reply, err := n.members.tell(ctx, home, notice{Kind: indexNotice, Index: &wantedIndex{
		Repository: img.Repository, Layer: layer.Digest, Size: layer.Size, DiffID: img.DiffIDs[i],
	}})
	if err != nil {
		return nil, err
	}
	if reply.Index == nil || reply.Index.Layer != layer.Digest {
		return nil, fmt.Errorf("%w: node %s answers with no index of the layer", chunk.ErrCorrupt, home.Name)
	}
	rec := *reply.Index
	rec.Repository, rec.Origin = "", fmt.Sprintf("made by node %s (%s)", home.Name, home.ID)
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
	x, err := n.indexHere(ctx, img, 0, IndexOptions{Keep: n.keep})
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
		err = n.blobs.check(digest)
	}
	if isMissing(err) {
		return
	}
	if err == nil {
		f, openErr := n.blobs.open(digest)
		if err = openErr; err == nil {
			defer f.Close()
			_, err = io.Copy(s, f)
		}
	}
	if err != nil {
		s.Reset()
	}
}

// fetchFromNode copies a blob from a node that a request says has it.
func (n *Node) fetchFromNode(ctx context.Context, repository string, digest chunk.Blob) error {
	return n.copyBlob(ctx, chunk.PeerID(strings.TrimPrefix(repository, fromNode)), digest, -1)
}
