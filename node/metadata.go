package node

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/dht"
)

// Manifests, configs and the trees of indexes are content: each has a digest, by
// which it has a home. One node asks the registry for it, and the others get it
// from there.

const (
	// holdersAfter is how long the homes of a blob may take before other nodes are
	// asked whether they have it: while a registry is away, homes wait for it.
	holdersAfter = 2 * time.Second
	// maxAskedHolders bounds the nodes that are asked.
	maxAskedHolders = 24
)

// fetchByPeers returns a whole small blob: from its home, which asks the registry
// once for all; or from any other node that has it, if that takes long. It is the
// Library's fetch of a node in a cluster.
func (n *Node) fetchByPeers(ctx context.Context, src blobSource) ([]byte, error) {
	fetch := n.fetchChunk
	if id, err := chunk.ParseID(string(src.Digest)); err != nil || id.Algorithm() != chunk.SHA256 || src.Size <= 0 || src.Size > chunk.MaxSize {
		fetch = n.fetchLarge
	}
	holder := src.holder
	src.holder = ""
	if holder != "" {
		if p, err := n.copyWhole(ctx, holder, src); err == nil {
			return p, nil
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan []byte, 2)
	var g errgroup.Group
	failed := make(chan struct{}) // closed when the homes have failed
	g.Go(func() error {
		p, err := fetch(ctx, src)
		if err != nil {
			close(failed)
			return err
		}
		got <- p
		cancel()
		return nil
	})
	g.Go(func() error {
		select {
		case <-failed:
		case <-time.After(holdersAfter):
		case <-ctx.Done():
			return nil
		}
		if p, err := n.fromHolders(ctx, src); err == nil {
			got <- p
			cancel()
		}
		return nil // what the homes have said counts
	})
	err := g.Wait()
	select {
	case p := <-got:
		return p, nil
	default:
		return nil, err
	}
}

// fetchChunk returns a whole blob as one chunk, whose name is the blob's digest.
func (n *Node) fetchChunk(ctx context.Context, src blobSource) ([]byte, error) {
	id, err := chunk.ParseID(string(src.Digest))
	if err != nil {
		return nil, err
	}
	defer n.catalog.add([]blobSource{src})()
	p := make([]byte, src.Size)
	blob := wholeBlob{src.Digest, chunk.Ref{ID: id, Size: int32(src.Size)}}
	_, err = n.sched.Reader(blob).ReadAt(ctx, 1, p, 0)
	return p, err
}

// fetchLarge returns a blob that is too large for a chunk: its home is told to
// have it, and it is copied from there.
func (n *Node) fetchLarge(ctx context.Context, src blobSource) ([]byte, error) {
	for _, home := range n.members.dht.View().ClusterHomes(blobKey(src.Digest), lookupHomes) {
		if home.ID == n.members.host.ID() {
			break // it is for this node to fetch it
		}
		_, err := n.members.tell(ctx, home, notice{Kind: blobNotice, Blob: &src})
		var p []byte
		if err == nil {
			p, err = n.copyWhole(ctx, home.ID, src)
		}
		var said *noticeError
		if err == nil || ctx.Err() != nil || errors.As(err, &said) && errors.Is(err, chunk.ErrUnavailable) {
			return p, err
		}
		n.log.Warn("blob could not be had from its home", "blob", src.Digest, "home", home.Name, "err", err)
	}
	return n.fetchOnce(ctx, src)
}

// fetchOnce fetches a large blob from the registry, once for all who ask this node
// for it, and keeps it.
func (n *Node) fetchOnce(ctx context.Context, src blobSource) ([]byte, error) {
	unlock, err := n.copying.lock(ctx, src.Digest)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if p, err := n.blobs.read(src.Digest, maxTree); !isMissing(err) {
		return p, err
	}
	p, err := n.fetchBlob(ctx, src)
	if err != nil {
		return nil, err
	}
	_, err = n.blobs.write(p)
	return p, err
}

// onBlobNotice has this node have a large blob, for others to copy.
func (n *Node) onBlobNotice(ctx context.Context, src *blobSource) error {
	if src == nil || src.Size <= chunk.MaxSize || src.Size > maxTree {
		return errors.New("a blob is asked for whose size can't be")
	}
	_, err := n.fetchOnce(ctx, *src)
	return err
}

// fromHolders returns a blob from any node that has it: its homes are asked first,
// then some other members, then nodes outside the pool.
func (n *Node) fromHolders(ctx context.Context, src blobSource) ([]byte, error) {
	view := n.members.dht.View()
	list := view.ClusterHomes(blobKey(src.Digest), dht.MaxHomes)
	list = append(appendOthers(list, view, uint64(blobKey(src.Digest)), maxAskedHolders), n.beyond(ctx, src.image)...)
	for _, m := range list {
		if m.ID == n.members.host.ID() {
			continue
		}
		if p, err := n.copyWhole(ctx, m.ID, src); err == nil || ctx.Err() != nil {
			return p, err
		}
	}
	return nil, &chunk.Error{Op: "fetch", What: string(src.Digest), From: "other nodes", Err: chunk.ErrNotFound}
}

// copyWhole returns a blob from a node that may have it.
func (n *Node) copyWhole(ctx context.Context, from chunk.PeerID, src blobSource) ([]byte, error) {
	if err := n.copyBlob(ctx, from, src.Digest, src.Size); err != nil {
		return nil, err
	}
	p, err := n.blobs.read(src.Digest, maxTree)
	if err == nil && src.Size > 0 && int64(len(p)) != src.Size {
		return nil, fmt.Errorf("%w: blob %s has %d bytes, not %d", chunk.ErrCorrupt, src.Digest, len(p), src.Size)
	}
	return p, err
}

// blobKey is what the homes of a whole blob are found by.
func blobKey(digest chunk.Blob) dht.Key { return dht.HomeKey(&chunk.Span{Blob: digest}) }

// appendOthers appends members to list that are not in it until it has most of
// them, from a place on that key decides.
func appendOthers(list []*dht.Member, view *dht.View, key uint64, most int) []*dht.Member {
	has := make(map[chunk.PeerID]bool, len(list))
	for _, m := range list {
		has[m.ID] = true
	}
	all := view.Members()
	start := int(key % uint64(len(all)))
	for i := range all {
		if m := &all[(start+i)%len(all)]; !has[m.ID] && len(list) < most {
			list = append(list, m)
		}
	}
	return list
}

// A wholeBlob is the layout of one file that is a blob, in one chunk.
type wholeBlob struct {
	digest chunk.Blob
	ref    chunk.Ref
}

// Extents implements scheduler.Layout.
func (b wholeBlob) Extents(uint64, int64, int64) iter.Seq[chunk.Extent] {
	return func(yield func(chunk.Extent) bool) { yield(chunk.Extent{Len: int64(b.ref.Size)}) }
}

// Chunk implements scheduler.Layout.
func (b wholeBlob) Chunk(uint32) (chunk.Ref, uint32) { return b.ref, 0 }

// Span implements scheduler.Layout.
func (b wholeBlob) Span(uint32) chunk.Span {
	return chunk.Span{Blob: b.digest, Len: int64(b.ref.Size), Codec: chunk.Raw, Parts: []chunk.Part{{Ref: b.ref}}}
}

// NumSpans implements scheduler.Layout.
func (b wholeBlob) NumSpans() int { return 1 }
