package scheduler

// Nodes outside the cluster that are said to hold an image are asked for its
// chunks when the origin would be next: by the cluster home, for all, and only
// for what they hold.

// askOutside has sr, of level 2, ask such a node. It reports false when none is
// left to be asked.
func (st *state) askOutside(sr *search) bool {
	if !sr.outside {
		sr.outside = true
		st.hint(sr, sr.target.route.Outside)
	}
	p := st.pickHolder(sr)
	if p == nil {
		return false
	}
	st.send(sr, p, ModeHeld)
	return true
}

// probeAgain has the nodes that may hold f's chunks be asked once more: the origin
// did not answer, and one of them may be back, or be new. It reports whether
// anybody is asked.
func (st *state) probeAgain(f *fetch) bool {
	if st.cluster == nil || causeOf(f.failures.last) != unavailable {
		return false
	}
	f.probed = false
	if !st.probes(f) {
		return false
	}
	f.stage = probing
	for _, w := range f.wants {
		if f.stage == probing && f.brings(w) && len(w.asks) > 0 && w.search == nil {
			st.probe(w, f.class)
		}
	}
	st.probedAll(f)
	return true
}
