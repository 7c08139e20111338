package node

import (
	"context"
	"iter"

	"graze/chunk"
)

// fetchByPeers returns a whole blob as one chunk, whose name is the blob's digest:
// so it comes from the node that has it, and from the registry once for all.
func (n *Node) fetchByPeers(ctx context.Context, src blobSource) ([]byte, error) {
	id, err := chunk.ParseID(string(src.Digest))
	if err != nil || src.Size <= 0 || src.Size > chunk.MaxSize {
		return n.fetchBlob(ctx, src)
	}
	defer n.catalog.add([]blobSource{src})()
	p := make([]byte, src.Size)
	blob := wholeBlob{src.Digest, chunk.Ref{ID: id, Size: int32(src.Size)}}
	_, err = n.sched.Reader(blob).ReadAt(ctx, 1, p, 0)
	return p, err
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
