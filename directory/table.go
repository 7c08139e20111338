package directory

import (
	"encoding/binary"
	"sync"

	"graze/chunk"
)

// A Key names a chunk by the first 8 bytes of its digest. Chunks that share a key
// are taken for each other, which costs a request.
type Key uint64

// KeyOf returns the key of a chunk.
func KeyOf(id chunk.ID) Key {
	sum := id.Sum()
	return Key(binary.BigEndian.Uint64(sum[:]))
}

const (
	// maxHolders is how many holders of a chunk are remembered, the last ones.
	maxHolders = 4
	// maxNodes bounds the nodes that are told apart.
	maxNodes = 1 << 16
)

// holders are the numbers of nodes, the one that was heard of last first. A
// number of 0 is none.
type holders [maxHolders]uint16

// A table maps keys to holders. It has two halves: what is used is in the young
// one. When that is full it becomes the old one, and what was in the old one is
// forgotten.
type table struct {
	limit int // keys in both halves

	mu         sync.Mutex // guards what follows
	young, old map[Key]holders
	numbers    map[chunk.PeerID]uint16
	nodes      []chunk.PeerID // by number less 1
}

func newTable(limit int) *table {
	return &table{limit: limit, young: make(map[Key]holders), numbers: make(map[chunk.PeerID]uint16)}
}

// note remembers that a node says that it holds chunks.
func (t *table) note(from chunk.PeerID, keys []Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.numberLocked(from)
	for _, key := range keys {
		h, _ := t.getLocked(key)
		t.putLocked(key, h.with(n))
	}
}

// with returns h with n as the first.
func (h holders) with(n uint16) holders {
	next := holders{n}
	i := 1
	for _, have := range h {
		if have != n && i < maxHolders {
			next[i] = have
			i++
		}
	}
	return next
}

// appendHolders appends the nodes that say that they hold a chunk.
func (t *table) appendHolders(dst []chunk.PeerID, key Key) []chunk.PeerID {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, ok := t.getLocked(key)
	if !ok {
		return dst
	}
	t.putLocked(key, h)
	for _, n := range h {
		if n != 0 {
			dst = append(dst, t.nodes[n-1])
		}
	}
	return dst
}

func (t *table) getLocked(key Key) (h holders, ok bool) {
	if h, ok = t.young[key]; !ok {
		h, ok = t.old[key]
	}
	return h, ok
}

func (t *table) putLocked(key Key, h holders) {
	if len(t.young) >= max(1, t.limit/2) {
		if _, ok := t.young[key]; !ok {
			t.young, t.old = make(map[Key]holders), t.young
		}
	}
	t.young[key] = h
	delete(t.old, key)
}

// numberLocked returns the number of a node. A table that has met too many nodes
// begins anew.
func (t *table) numberLocked(id chunk.PeerID) uint16 {
	if n := t.numbers[id]; n != 0 {
		return n
	}
	if len(t.nodes) == maxNodes-1 {
		clear(t.young)
		clear(t.numbers)
		t.old, t.nodes = nil, nil
	}
	t.nodes = append(t.nodes, id)
	n := uint16(len(t.nodes))
	t.numbers[id] = n
	return n
}

// len returns the number of chunks that are known.
func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.young) + len(t.old)
}
