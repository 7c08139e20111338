package node

import (
	"context"
	"slices"
	"strings"
	"sync"

	"graze/dht"
)

// A Presence says how much of an image is where it need not be fetched from the
// registry.
type Presence struct {
	Content                // of the image's view
	Local   Content        `json:"local"`
	Peers   []PeerPresence `json:"peers"`
}

// A PeerPresence says how much a member of the cluster has of an image that is mounted
// there, or that it holds as a seed.
type PeerPresence struct {
	Node   string `json:"node"`
	Chunks int64  `json:"chunks"` // of the image, or its spans
	Have   int64  `json:"have"`   // of them
}

// Presence returns where an image is. Indexes are not made for that.
func (n *Node) Presence(ctx context.Context, ref string) (Presence, error) {
	p := Presence{Peers: []PeerPresence{}}
	img, err := n.Resolve(ctx, ref)
	if err != nil {
		return p, err
	}
	view, err := n.OpenView(ctx, img, IndexOptions{})
	if err != nil {
		return p, err
	}
	for i := range uint32(view.NumChunks()) {
		c, _ := view.Chunk(i)
		p.add(c.Size)
		if n.store != nil && n.store.Has(c.ID) {
			p.Local.add(c.Size)
		}
	}
	if err := view.Close(); err != nil || n.members == nil {
		return p, err
	}
	p.Peers = n.holders(ctx, img)
	return p, ctx.Err()
}

// holders asks the other members, up to maxAskedHolders of them at the same time,
// what they have of an image.
func (n *Node) holders(ctx context.Context, img *Image) []PeerPresence {
	view := n.members.dht.View()
	asked := appendOthers(nil, view, uint64(blobKey(img.Digest)), maxAskedHolders)
	var mu sync.Mutex // guards list
	list := []PeerPresence{}
	var wg sync.WaitGroup
	for _, m := range asked {
		if m.ID == n.members.host.ID() {
			continue
		}
		wg.Go(func() {
			h, err := n.members.askHolding(ctx, m.ID, img.Digest)
			if err != nil || h.Chunks == 0 {
				return // a member that does not answer gives nothing either
			}
			mu.Lock()
			defer mu.Unlock()
			list = append(list, PeerPresence{Node: memberName(m), Chunks: h.Chunks, Have: min(h.Have, h.Chunks)})
		})
	}
	wg.Wait()
	slices.SortFunc(list, func(a, b PeerPresence) int { return strings.Compare(a.Node, b.Node) })
	return list
}

// memberName returns what a member is called.
func memberName(m *dht.Member) string {
	if m.Name != "" {
		return m.Name
	}
	return string(m.ID)
}
