package dht

import (
	"context"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"

	"graze/chunk"
)

// maxAbsent is the number of images that are remembered as not found.
const maxAbsent = 1024

// absentees are images that were not found shortly before. The zero value is
// empty.
type absentees struct {
	until map[chunk.Blob]time.Time
}

func (a *absentees) has(b chunk.Blob) bool { return time.Now().Before(a.until[b]) }

func (a *absentees) add(b chunk.Blob, d time.Duration) {
	if a.until == nil {
		a.until = make(map[chunk.Blob]time.Time)
	}
	now := time.Now()
	if len(a.until) >= maxAbsent {
		for old, t := range a.until {
			if !now.Before(t) {
				delete(a.until, old)
			}
		}
	}
	if len(a.until) >= maxAbsent {
		clear(a.until) // so many in so short a time: none is worth much
	}
	a.until[b] = now.Add(d)
}

// A recordStore is a datastore in memory with a bounded number of records. What
// is too much is dropped without an error, as a record is only a hint.
type recordStore struct {
	ds.Batching
	limit int

	mu   sync.Mutex
	keys map[ds.Key]struct{} // guarded by mu
}

func newRecordStore(limit int) *recordStore {
	return &recordStore{
		Batching: dssync.MutexWrap(ds.NewMapDatastore()),
		limit:    limit,
		keys:     make(map[ds.Key]struct{}),
	}
}

// Put keeps a record if there is room.
func (s *recordStore) Put(ctx context.Context, k ds.Key, v []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[k]; !ok && len(s.keys) >= s.limit {
		return nil
	}
	s.keys[k] = struct{}{}
	return s.Batching.Put(ctx, k, v)
}

// Delete drops a record.
func (s *recordStore) Delete(ctx context.Context, k ds.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, k)
	return s.Batching.Delete(ctx, k)
}

// Batch returns a batch that goes through Put and Delete.
func (s *recordStore) Batch(context.Context) (ds.Batch, error) { return ds.NewBasicBatch(s), nil }
