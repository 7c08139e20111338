package node

import (
	"context"
	"errors"
	"fmt"
	"io"

	"graze/chunk"
	"graze/chunkstore"
	"graze/dht"
	"graze/peer"
	"graze/scheduler"
	"graze/wire"
)

// This file joins the scheduler, which decides who is asked, with the members,
// who they are, and the peer package, which moves the bytes. Each has types of its
// own for what goes between nodes: they are translated here.

// homesPerSpan is how many homes of a span the scheduler gets to know.
const homesPerSpan = 4

// Route implements scheduler.Cluster.
func (m *members) Route(span *chunk.Span, dst *scheduler.Route) {
	view, key := m.dht.View(), dht.HomeKey(span)
	var room [dht.MaxHomes]*dht.Member
	for _, home := range view.AppendRackHomes(room[:0], key, m.rack, homesPerSpan) {
		dst.Rack = append(dst.Rack, home.ID)
	}
	for _, home := range view.AppendClusterHomes(room[:0], key, homesPerSpan) {
		dst.Cluster = append(dst.Cluster, home.ID)
	}
	for _, home := range view.Former(key, homesPerSpan) {
		dst.Former = append(dst.Former, home.ID)
	}
	if m.outside != nil {
		var room [wire.MaxImages]chunk.Blob
		dst.Outside = m.outside.appendHolders(dst.Outside, m.catalog.appendImages(room[:0], span))
	}
	dst.Epoch = view.Epoch()
}

// Self implements scheduler.Cluster.
func (m *members) Self() chunk.PeerID { return m.host.ID() }

// Place implements scheduler.Cluster.
func (m *members) Place(id chunk.PeerID) (scheduler.Place, bool) {
	member := m.dht.View().Member(id)
	switch {
	case member != nil:
		return scheduler.Place{Rack: member.Rack, Zone: member.Zone}, true
	case m.outside != nil:
		return m.outside.place(id)
	}
	return scheduler.Place{}, false
}

// A share is the part of the cluster's homes that a node has in one view.
type share struct {
	view *dht.View
	part float64
}

// Share implements scheduler.Cluster: a node's part of the registry's budget is
// its part of the homes.
func (m *members) Share() float64 {
	view := m.dht.View()
	if s := m.share.Load(); s != nil && s.view == view {
		return s.part
	}
	total := 0.0
	for _, member := range view.Members() {
		total += weight(&member)
	}
	s := &share{view, weight(view.Self()) / max(total, 1)}
	m.share.Store(s)
	return s.part
}

// weight returns a member's weight, or that of its role.
func weight(m *dht.Member) float64 {
	switch {
	case m.Weight != 0:
		return float64(m.Weight)
	case m.Role == dht.Seed:
		return dht.SeedWeight
	}
	return dht.DefaultWeight
}

// Fetch implements scheduler.Peers.
func (m *members) Fetch(ctx context.Context, to chunk.PeerID, req *scheduler.PeerRequest, got func(*scheduler.PeerAnswer, io.Reader) error) error {
	target := peer.Target{ID: to}
	if member := m.dht.View().Member(to); member != nil {
		target.Addr = member.Bulk
	} else if m.outside != nil {
		if holder, ok := m.outside.node(to); ok {
			target.Addr = holder.bulk
		}
	}
	out := &wire.Request{
		Class:    req.Class,
		Deadline: req.Deadline,
		Mode:     wire.Mode(req.Mode),
		Level:    req.Level,
		Via:      req.Via,
		Epoch:    req.Epoch,
		Items:    make([]wire.Item, len(req.Items)),
	}
	for i, item := range req.Items {
		out.Items[i] = wire.Item{Span: item.Span, Parts: item.Parts}
		if req.Mode == scheduler.ModeHome {
			out.Repositories = m.catalog.appendRepositories(out.Repositories, &item.Span)
			out.Images = m.catalog.appendImages(out.Images, &item.Span)
		}
	}
	err := m.host.Fetch(ctx, target, out, func(a *wire.Answer, body io.Reader) error {
		in := &scheduler.PeerAnswer{
			Item: a.Item, Part: a.Part, Status: scheduler.Status(a.Status),
			Size: a.Size, Wait: a.Wait, Reason: a.Reason,
		}
		for _, h := range a.Holders {
			in.Holders = append(in.Holders, h.ID)
		}
		return got(in, body)
	})
	if errors.Is(err, peer.ErrProtocol) {
		err = fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
	}
	return err
}

// A server answers the requests of other nodes.
type server struct{ node *Node }

// ServeChunks implements peer.Handler.
func (s server) ServeChunks(ctx context.Context, from chunk.PeerID, req *wire.Request, w *peer.Responder) error {
	in := &scheduler.PeerRequest{
		Class:    req.Class,
		Deadline: req.Deadline,
		Mode:     scheduler.Mode(req.Mode),
		Level:    req.Level,
		Via:      req.Via,
		Epoch:    req.Epoch,
		Items:    make([]scheduler.PeerItem, len(req.Items)),
	}
	for i, item := range req.Items {
		in.Items[i] = scheduler.PeerItem{Span: item.Span, Parts: item.Parts}
		if req.Mode == wire.Home {
			s.node.catalog.hint(&item.Span, req.Repositories, req.Images)
		}
	}
	if o := s.node.members.outside; o != nil && req.Mode == wire.Home {
		o.find(ctx, req.Images)
	}
	return s.node.sched.Serve(ctx, from, in, responder{s.node.members, w})
}

// A responder sends the scheduler's answers.
type responder struct {
	members *members
	w       *peer.Responder
}

// Section implements scheduler.Responder.
func (r responder) Section(item, part int, s scheduler.Section) error {
	return r.w.Bytes(item, part, s)
}

// Bytes implements scheduler.Responder.
func (r responder) Bytes(item, part int, p []byte) error { return r.w.Data(item, part, p) }

// Answer implements scheduler.Responder.
func (r responder) Answer(a *scheduler.PeerAnswer) error {
	out := wire.Answer{Status: wire.Status(a.Status), Wait: a.Wait, Reason: wire.CutReason(a.Reason)}
	view := r.members.dht.View()
	for _, id := range a.Holders {
		if m := view.Member(id); m != nil {
			out.Holders = append(out.Holders, wire.Holder{ID: id, Addr: m.Bulk})
		}
	}
	return r.w.Status(a.Item, a.Part, out)
}

// sectionStore is the chunk store with sections as the scheduler wants them.
type sectionStore struct{ *chunkstore.Store }

// Section implements scheduler.Sectioner.
func (s sectionStore) Section(id chunk.ID) (scheduler.Section, error) { return s.Store.Section(id) }
