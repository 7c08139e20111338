package scheduler

import (
	"slices"

	"graze/chunk"
)

// probes reports whether others are to be asked for f's chunks before the
// origin, and makes f ready for that.
func (st *state) probes(f *fetch) bool {
	if st.cluster == nil || f.probed {
		return false
	}
	f.probed = true
	t := st.aim(&f.span)
	route := &Route{Former: slices.Clone(t.route.Former), Cluster: t.route.Cluster, Outside: t.route.Outside, Epoch: t.route.Epoch}
	if st.standsIn(t) || st.now.Before(st.settling.until) {
		for _, id := range t.route.Cluster {
			if !slices.Contains(route.Former, id) {
				route.Former = append(route.Former, id)
			}
		}
	}
	f.route = route
	usable := func(id chunk.PeerID) bool {
		if id == st.self || slices.Contains(f.via, id) {
			return false
		}
		p := st.peer(id)
		return p != nil && p.usable(st.now, true)
	}
	return st.directory != nil || slices.ContainsFunc(route.Former, usable) || slices.ContainsFunc(route.Outside, usable)
}

// standsIn reports whether another node is first in line for a span. Then, as after
// a change of the members or at its start, this node asks those next in line: they
// have been home in its place, or are homes of other racks and got the chunks from
// the node that was home. Word of who holds what may not have got around yet.
func (st *state) standsIn(t *target) bool {
	return len(t.route.Cluster) > 0 && t.route.Cluster[0] != st.self
}

// probe has former homes be asked for w's chunk.
func (st *state) probe(w *want, c chunk.Class) {
	f := w.fetch
	part := slices.Index(f.wants, w)
	t := &target{span: f.span, route: *f.route}
	if st.target != nil && sameSpan(&st.target.span, &f.span) &&
		slices.Equal(st.target.route.Former, f.route.Former) && slices.Equal(st.target.route.Outside, f.route.Outside) {
		t = st.target
	}
	st.target = t
	sr := st.newSearch(w, t, part, originLevel, f.via)
	for _, a := range w.asks {
		sr.interest[a.req.class]++
		sr.class = min(sr.class, a.req.class)
	}
	w.search = sr
	f.probes++
	st.seek(sr)
}

// probedAll has f go to the origin once nobody else is left to be asked.
func (st *state) probedAll(f *fetch) {
	if f.stage != probing || f.probes > 0 || f.left == 0 {
		return
	}
	f.class = f.wanted()
	if f.class == none {
		st.drop(f)
		return
	}
	f.stage = queued
	st.lane(&f.span).queue.push(f)
}

// demote has readers of a fetch that the origin does not answer look for its
// chunks at the homes again, if the node is not home itself. f is parked, and stays so
// unless it ends.
func (st *state) demote(f *fetch) {
	if st.cluster == nil {
		return
	}
	t := st.aim(&f.span)
	if len(t.route.Cluster) == 0 || t.route.Cluster[0] == st.self {
		return
	}
	f.class = none // f is parked: whoever comes back to it at once raises it, and puts it nowhere
	for part, w := range f.wants {
		if !f.brings(w) {
			continue
		}
		asks := w.asks
		w.asks = nil
		for _, a := range asks {
			f.interest[a.req.class]--
		}
		for _, a := range asks {
			if a.req.class != chunk.Demand || a.req.level >= clusterLevel || a.req.once {
				w.asks = append(w.asks, a)
				f.interest[a.req.class]++
				continue
			}
			st.restart(a, f, part)
		}
	}
	f.class = f.wanted()
}

// restart has an ask that waited on f wait on work of the lowest level that it
// may wait on.
func (st *state) restart(a ask, f *fetch, part int) {
	level := a.req.level + 1
	w := st.wants[level][f.span.Parts[part].ID]
	if w == nil {
		w = st.search(&miss{span: f.span, part: part}, level, a.req.via)
	}
	w.asks = append(w.asks, a)
	if !a.req.loose {
		a.req.wants = append(a.req.wants, w)
	}
	st.want(w, a.req.class)
}

// misled reports whether an ask that work on the span tried has failed for knows
// the chunk in another span: another node, which began the work, may have lied
// about where the chunk is.
func (st *state) misled(a ask, tried *chunk.Span, err error) bool {
	return st.cluster != nil && causeOf(err) != unavailable && !a.req.once && !equalSpan(&a.miss.span, tried)
}

// rejoin has an ask start again.
func (st *state) rejoin(a ask) {
	w := st.join(a, a.req.level)
	if !a.req.loose {
		a.req.wants = append(a.req.wants, w)
	}
}

// equalSpan reports whether a and b say the same.
func equalSpan(a, b *chunk.Span) bool {
	if a.Blob != b.Blob || a.Off != b.Off || a.Len != b.Len || a.Start != b.Start || a.Bits != b.Bits ||
		a.Codec != b.Codec || !slices.Equal(a.Parts, b.Parts) || (a.Window == nil) != (b.Window == nil) {
		return false
	}
	if a.Window == nil {
		return true
	}
	v, w := a.Window, b.Window
	return v.Part == w.Part && v.Off == w.Off && v.Len == w.Len && v.Span.Window == nil && w.Span.Window == nil &&
		equalSpan(&v.Span, &w.Span)
}
