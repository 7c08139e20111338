package chunkstore

import (
	"cmp"
	"iter"
	"sync"
	"sync/atomic"

	"graze/chunk"
)

// A loc says where the record of a chunk lies.
type loc struct {
	seg  uint32 // number of the segment
	off  uint32 // of the record in the segment
	size uint32 // of the chunk
}

// end returns the offset of the first byte after the record.
func (l loc) end() int64 { return int64(l.off) + recordSize(l.size) }

// compare orders locations as they follow each other on disk.
func (l loc) compare(m loc) int {
	return cmp.Or(cmp.Compare(l.seg, m.seg), cmp.Compare(l.off, m.off))
}

const numShards = 64

// An index maps chunks to where they lie. It is split, so that walking over it
// delays no reader.
type index struct {
	chunks atomic.Int64
	bytes  atomic.Int64 // of the chunks, without headers
	shards [numShards]shard
}

type shard struct {
	mu sync.RWMutex
	m  map[chunk.ID]loc // guarded by mu
}

// init makes the maps, with room for n chunks.
func (x *index) init(n int) {
	for i := range x.shards {
		x.shards[i].m = make(map[chunk.ID]loc, n/numShards)
	}
}

func (x *index) shard(id chunk.ID) *shard {
	sum := id.Sum()
	return &x.shards[sum[0]%numShards]
}

func (x *index) get(id chunk.ID) (loc, bool) {
	sh := x.shard(id)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	l, ok := sh.m[id]
	return l, ok
}

// set maps id to l, whatever it was before.
func (x *index) set(id chunk.ID, l loc) {
	sh := x.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if old, ok := sh.m[id]; ok {
		x.count(-1, old)
	}
	sh.m[id] = l
	x.count(1, l)
}

// move maps id to to if it is still mapped to from.
func (x *index) move(id chunk.ID, from, to loc) bool {
	sh := x.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l, ok := sh.m[id]; !ok || l != from {
		return false
	}
	sh.m[id] = to
	return true
}

// removeUnless forgets id if it is still mapped to l and held does not object.
// Who makes held return true is safe from removal thereafter.
func (x *index) removeUnless(id chunk.ID, l loc, held func(chunk.ID) bool) bool {
	sh := x.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if now, ok := sh.m[id]; !ok || now != l || held(id) {
		return false
	}
	delete(sh.m, id)
	x.count(-1, l)
	return true
}

// remove forgets id if it is still mapped to l.
func (x *index) remove(id chunk.ID, l loc) bool {
	return x.removeUnless(id, l, func(chunk.ID) bool { return false })
}

func (x *index) count(n int64, l loc) {
	x.chunks.Add(n)
	x.bytes.Add(n * int64(l.size))
}

// IDs ranges over the chunks that the store has. Those that come or go meanwhile
// may be missing, or be there.
func (s *Store) IDs() iter.Seq[chunk.ID] {
	return func(yield func(chunk.ID) bool) {
		var ids []chunk.ID
		for i := range numShards {
			ids = ids[:0]
			s.index.eachOf(i, func(id chunk.ID, _ loc) { ids = append(ids, id) })
			for _, id := range ids {
				if !yield(id) {
					return
				}
			}
		}
	}
}

// each calls f for every chunk, while it holds the lock of a part of the index:
// f must be quick and must not use the index.
func (x *index) each(f func(chunk.ID, loc)) {
	for i := range x.shards {
		x.eachOf(i, f)
	}
}

// eachOf is each for one of the numShards parts.
func (x *index) eachOf(i int, f func(chunk.ID, loc)) {
	sh := &x.shards[i]
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	for id, l := range sh.m {
		f(id, l)
	}
}
