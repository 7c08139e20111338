package node

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"slices"

	"graze/chunk"
	"graze/copies"
	"graze/dht"
)

// A shared image is one of which the node keeps its share, for package copies.
type shared struct {
	*whole
	print string
	epoch uint64 // of the members that Share went by
}

// openShare opens an image of which the node is to keep a share.
func (n *Node) openShare(ctx context.Context, ref string) (copies.Image, error) {
	w, err := n.openWhole(ctx, ref)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	var b []byte
	for i := range uint32(w.Tree.View.NumSpans()) {
		span := w.Tree.View.Span(i)
		b = append(b[:0], span.Blob...)
		b = binary.BigEndian.AppendUint64(b, uint64(span.Off))
		b = binary.BigEndian.AppendUint64(b, uint64(span.Len))
		h.Write(b)
	}
	return &shared{whole: w, print: hex.EncodeToString(h.Sum(nil)[:16])}, nil
}

// View implements copies.Image.
func (s *shared) View() string { return s.print }

// Spans implements copies.Image.
func (s *shared) Spans() int { return s.Tree.View.NumSpans() }

// Share implements copies.Image.
func (s *shared) Share(n int) []uint32 {
	view := s.node.members.dht.View()
	s.epoch = view.Epoch()
	ranks := make([][]uint32, n)
	var room [dht.MaxHomes]*dht.Member
	for i := range uint32(s.Spans()) {
		span := s.Tree.View.Span(i)
		for rank, home := range view.AppendClusterHomes(room[:0], dht.HomeKey(&span), n) {
			if home.ID == s.node.members.host.ID() {
				ranks[rank] = append(ranks[rank], i)
			}
		}
	}
	return slices.Concat(ranks...)
}

// Changed implements copies.Image.
func (s *shared) Changed() bool { return s.node.members.dht.View().Epoch() != s.epoch }

// Bytes implements copies.Image.
func (s *shared) Bytes(n uint32) (bytes int64) {
	for _, part := range s.Tree.View.Span(n).Parts {
		bytes += int64(part.Size)
	}
	return bytes
}

// Chunks implements copies.Image.
func (s *shared) Chunks(n uint32) iter.Seq[chunk.ID] {
	return func(yield func(chunk.ID) bool) {
		for _, part := range s.Tree.View.Span(n).Parts {
			if !yield(part.ID) {
				return
			}
		}
	}
}

// seedsWhole reports whether the node holds a whole image as a seed.
func (n *Node) seedsWhole(ref string) bool { return n.seeds != nil && n.seeds.Has(ref) }
