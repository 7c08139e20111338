package snapshotter

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxHistory bounds how many images are remembered for Stats.
const maxHistory = 1000

// Stats say what the snapshotter has done since it was opened.
type Stats struct {
	// Layers counts those that containerd has asked for, by what was answered.
	Layers map[Reason]int64

	// Images has the last decision about each image, the latest first.
	Images []ImageStats

	// Views is how many views are in use: as many are mounted.
	Views int
}

// ImageStats say how an image is served.
type ImageStats struct {
	Name   string // by digest, if that is known
	Reason Reason
	Err    string // what was wrong, if anything was
	Time   time.Time
}

// history remembers what was decided.
type history struct {
	mu     sync.Mutex // guards what follows
	layers map[Reason]int64
	images map[string]ImageStats
}

// add notes a decision about a layer. It reports whether it says something new of
// the image.
func (h *history) add(i ImageStats) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.layers == nil {
		h.layers, h.images = map[Reason]int64{}, map[string]ImageStats{}
	}
	h.layers[i.Reason]++
	old, known := h.images[i.Name]
	h.images[i.Name] = i
	if len(h.images) > maxHistory {
		oldest := i
		for _, other := range h.images {
			if other.Time.Before(oldest.Time) {
				oldest = other
			}
		}
		delete(h.images, oldest.Name)
	}
	return !known || old.Reason != i.Reason
}

// Stats returns the snapshotter's figures.
func (s *Snapshotter) Stats() Stats {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	return Stats{
		Layers: maps.Clone(s.history.layers),
		Images: slices.SortedFunc(maps.Values(s.history.images), func(a, b ImageStats) int {
			return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(a.Name, b.Name))
		}),
		Views: s.views.inUse(),
	}
}

// tell notes what was decided about a layer, and logs what is new.
func (s *Snapshotter) tell(w wanted, d *decision) {
	i := ImageStats{Name: cmp.Or(d.image.Name, w.image(), "layer "+string(w.Chain)), Reason: d.reason, Time: time.Now()}
	if d.err != nil {
		i.Err = d.err.Error()
	}
	if !s.history.add(i) {
		return
	}
	switch d.reason {
	case Lazy:
		s.log.Info("image is served lazily", "image", i.Name)
	case ByPolicy, Small, Fetched:
		s.log.Info("image is pulled", "image", i.Name, "reason", i.Reason)
	default:
		s.log.Warn("image is not served lazily", "image", i.Name, "reason", i.Reason, "err", d.err)
	}
}
