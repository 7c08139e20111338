package storetest

import (
	"fmt"
	"iter"
	"slices"
	"sync"

	"graze/chunk"
)

// Memory is a Store in memory, with the semantics of the one on disk. It is for
// tests of what uses a store.
type Memory struct {
	limit int64 // bytes of all chunks

	mu     sync.Mutex
	chunks map[chunk.ID]*held    // guarded by mu
	clock  []chunk.ID            // in the order in which eviction looks; guarded by mu
	used   int64                 // guarded by mu
	put    int64                 // bytes ever stored; guarded by mu
	owners map[string][]chunk.ID // guarded by mu
	pins   map[chunk.ID]int      // guarded by mu
}

// held is a chunk in memory.
type held struct {
	p    []byte
	born int64 // Memory.put when it was stored
	read bool  // since eviction last looked at it
	bad  []int64
}

// NewMemory returns an empty store that holds at most limit bytes of chunks.
func NewMemory(limit int64) *Memory {
	return &Memory{
		limit:  limit,
		chunks: make(map[chunk.ID]*held),
		owners: make(map[string][]chunk.ID),
		pins:   make(map[chunk.ID]int),
	}
}

// Put stores a copy of the chunk, unless it is there already. It fails with
// chunk.ErrFull if all the others are pinned.
func (m *Memory) Put(v chunk.Verified) error {
	ref := v.Ref()
	if ref.ID.IsZero() {
		return fmt.Errorf("put of the zero chunk")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.chunks[ref.ID] != nil {
		return nil
	}
	for looked := 0; m.used+int64(ref.Size) > m.limit; looked++ {
		// After two rounds every chunk that is not pinned has had its chance.
		if int64(ref.Size) > m.limit || looked > 2*len(m.clock) {
			return &chunk.Error{Op: "store", What: ref.String(), Err: chunk.ErrFull}
		}
		id := m.clock[0]
		m.clock = m.clock[1:]
		if c := m.chunks[id]; m.pins[id] > 0 || c.read {
			c.read = false
			m.clock = append(m.clock, id)
			continue
		}
		m.used -= int64(len(m.chunks[id].p))
		delete(m.chunks, id)
	}
	m.chunks[ref.ID] = &held{p: slices.Clone(v.Bytes()), born: m.put}
	m.put += int64(ref.Size)
	m.clock = append(m.clock, ref.ID)
	m.used += int64(ref.Size)
	return nil
}

// ReadAt fills p with the bytes of a chunk from off on.
func (m *Memory) ReadAt(id chunk.ID, p []byte, off int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.chunks[id]
	if c == nil {
		return &chunk.Error{Op: "read", What: id.String(), Err: chunk.ErrNotFound}
	}
	if off < 0 || off > int64(len(c.p)) || int64(len(p)) > int64(len(c.p))-off {
		return &chunk.Error{Op: "read", What: id.String(),
			Err: fmt.Errorf("bytes %d to %d are not within its %d", off, off+int64(len(p)), len(c.p))}
	}
	if slices.ContainsFunc(c.bad, func(at int64) bool { return at >= off && at < off+int64(len(p)) }) {
		m.used -= int64(len(c.p))
		delete(m.chunks, id)
		m.clock = slices.DeleteFunc(m.clock, func(other chunk.ID) bool { return other == id })
		return &chunk.Error{Op: "read", What: id.String(), Err: chunk.ErrCorrupt}
	}
	// A read that comes soon after the put is the one that it was put for.
	c.read = c.read || m.put-c.born > m.limit/8
	copy(p, c.p[off:])
	return nil
}

// Has reports whether the chunk is there.
func (m *Memory) Has(id chunk.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.chunks[id] != nil
}

// Pin keeps chunks from being evicted until Unpin is called with owner.
func (m *Memory) Pin(owner string, ids iter.Seq[chunk.ID]) {
	set := slices.Collect(ids)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owners[owner] = append(m.owners[owner], set...)
	for _, id := range set {
		m.pins[id]++
	}
}

// Unpin takes back all pins of owner.
func (m *Memory) Unpin(owner string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range m.owners[owner] {
		if m.pins[id]--; m.pins[id] == 0 {
			delete(m.pins, id)
		}
	}
	delete(m.owners, owner)
}

// Chunks yields the chunks that were there when it was called, in no order.
func (m *Memory) Chunks() iter.Seq[chunk.Ref] {
	m.mu.Lock()
	defer m.mu.Unlock()
	refs := make([]chunk.Ref, 0, len(m.chunks))
	for id, c := range m.chunks {
		refs = append(refs, chunk.Ref{ID: id, Size: int32(len(c.p))})
	}
	return slices.Values(refs)
}

// Corrupt makes reads of the byte at off of a chunk find it rotted. The chunk
// must be there.
func (m *Memory) Corrupt(id chunk.ID, off int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.chunks[id]
	c.bad = append(c.bad, off)
}
