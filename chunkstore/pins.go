package chunkstore

import (
	"iter"
	"slices"
	"sync"

	"graze/chunk"
)

// pins are the chunks that must not be evicted, by who said so.
type pins struct {
	mu      sync.RWMutex
	owners  map[string][]chunk.ID // guarded by mu
	counts  map[chunk.ID]int32    // guarded by mu
	changes uint64                // guarded by mu
}

// Pin keeps chunks from being evicted until Unpin is called with the same owner,
// such as the name of an image. A chunk may be pinned before it is stored, and by
// many owners. Pinning adds to what the owner has pinned before. When Pin
// returns, those chunks that Has reports stay.
func (s *Store) Pin(owner string, ids iter.Seq[chunk.ID]) {
	set := slices.Collect(ids) // outside the lock: ids is the caller's code
	p := &s.pins
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes++
	p.owners[owner] = append(p.owners[owner], set...)
	for _, id := range set {
		p.counts[id]++
	}
}

// Unpin takes back all pins of owner. The chunks that nobody else has pinned may
// be evicted from now on.
func (s *Store) Unpin(owner string) {
	p := &s.pins
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes++
	for _, id := range p.owners[owner] {
		if p.counts[id]--; p.counts[id] == 0 {
			delete(p.counts, id)
		}
	}
	delete(p.owners, owner)
}

func (p *pins) has(id chunk.ID) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.counts[id] > 0
}

// state returns the number of pinned chunks, and a number that is different
// after each change.
func (p *pins) state() (chunks int, changes uint64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.counts), p.changes
}
