package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"graze/chunk"
	"graze/dht"
)

// askHoldingTime bounds the question what a node outside holds.
const askHoldingTime = 3 * time.Second

// A holding is what a node says of itself to one outside its gossip pool that
// asks for an image: where it serves chunks, and how much of the image it has.
type holding struct {
	Bulk   string `json:"bulk"`
	Name   string `json:"name,omitempty"`
	Rack   string `json:"rack,omitempty"`
	Zone   string `json:"zone,omitempty"`
	Chunks int64  `json:"chunks"` // of the image, or its spans; 0 if the node does not have it
	Have   int64  `json:"have"`   // of them
}

// tenths returns how much of the image is there, from 0 to 10.
func (h *holding) tenths() int {
	if h.Chunks <= 0 {
		return 0
	}
	return int(10 * min(max(h.Have, 0), h.Chunks) / h.Chunks)
}

// check returns an error unless h, which a stranger sent, can be used.
func (h *holding) check() error {
	m := dht.Member{Name: h.Name, Rack: h.Rack, Zone: h.Zone, Bulk: h.Bulk}
	if err := m.Check(); err != nil {
		return fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
	}
	return nil
}

// askHolding asks a node outside the pool what it has of an image.
func (m *members) askHolding(ctx context.Context, id chunk.PeerID, image chunk.Blob) (*holding, error) {
	ctx, cancel := context.WithTimeout(ctx, askHoldingTime)
	defer cancel()
	reply, err := m.tell(ctx, &dht.Member{ID: id, Name: string(id)}, notice{Kind: holdingNotice, Image: image})
	if err != nil {
		return nil, err
	}
	if reply.Holding == nil {
		return nil, fmt.Errorf("%w: node %s does not say what it holds", chunk.ErrCorrupt, id)
	}
	return reply.Holding, reply.Holding.check()
}

// onHoldingNotice says what the node has of an image.
func (n *Node) onHoldingNotice(image chunk.Blob) noticeReply {
	self := n.members.dht.View().Self()
	h := &holding{Bulk: self.Bulk, Name: self.Name, Rack: self.Rack, Zone: self.Zone}
	n.mu.Lock()
	for _, m := range n.mounts {
		if m.info.Digest == image && h.Chunks == 0 {
			h.Chunks, h.Have = int64(m.tree.View.NumChunks()), m.local()
		}
	}
	n.mu.Unlock()
	if n.seeds != nil {
		for _, s := range n.seeds.List() {
			if digestOf(s.Reference) == image && s.Spans > 0 {
				h.Chunks, h.Have = int64(s.Spans), int64(s.Have)
			}
		}
	}
	return noticeReply{Holding: h}
}

// held returns the images that others may find this node by: those that are
// mounted, and those that it holds whole as a seed.
func (n *Node) held() []chunk.Blob {
	var list []chunk.Blob
	n.mu.Lock()
	for _, m := range n.mounts {
		list = append(list, m.info.Digest)
	}
	n.mu.Unlock()
	if n.seeds == nil {
		return list
	}
	for _, s := range n.seeds.List() {
		if s.Spans > 0 && s.Have == s.Spans {
			list = append(list, digestOf(s.Reference))
		}
	}
	return list
}

// digestOf returns the digest of a reference that has one.
func digestOf(ref string) chunk.Blob {
	_, digest, _ := strings.Cut(ref, "@")
	return chunk.Blob(digest)
}
