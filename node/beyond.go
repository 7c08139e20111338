package node

import (
	"context"

	"graze/chunk"
	"graze/dht"
	"graze/origin"
)

// beyond returns nodes outside the pool that may have the metadata of an image,
// for when neither the pool nor a registry has it: the holders of the image with a
// digest, if there is one, or all that are known.
func (n *Node) beyond(ctx context.Context, image chunk.Blob) []*dht.Member {
	if n.members == nil || n.members.outside == nil {
		return nil
	}
	o := n.members.outside
	if image != "" {
		o.find(ctx, []chunk.Blob{image})
	}
	var list []*dht.Member
	for id, h := range o.known() {
		if len(list) < maxAskedHolders {
			list = append(list, &dht.Member{ID: id, Name: h.name})
		}
	}
	return list
}

// image returns the digest of the image that a lookup is about, or "".
func (q lookup) image() chunk.Blob {
	name, err := origin.ParseName(q.Reference)
	if err != nil {
		return ""
	}
	return name.Digest
}
