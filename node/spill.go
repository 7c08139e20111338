package node

import (
	"container/list"
	"sync"

	"graze/chunk"
	"graze/scheduler"
)

// maxSpill bounds the chunks that are held in memory because the store does not
// take them, in bytes.
const maxSpill = 32 << 20

// A spill is a store of chunks that holds those in memory that the store behind
// it can't keep, the last of them: a full disk must not make each small read fetch
// and decode a whole span. It is safe for concurrent use.
type spill struct {
	scheduler.Store
	tight  func() bool                    // whether the disk's last room is for others
	failed func(ref chunk.Ref, err error) // told of chunks that the store did not keep

	mu    sync.Mutex // guards what follows
	bytes int64
	byID  map[chunk.ID]*list.Element
	order *list.List // of *spilled, the last used first
}

type spilled struct {
	id chunk.ID
	p  []byte
}

// newSpill returns a spill in front of a store.
func newSpill(store scheduler.Store, tight func() bool, failed func(chunk.Ref, error)) *spill {
	return &spill{Store: store, tight: tight, failed: failed, byID: make(map[chunk.ID]*list.Element), order: list.New()}
}

// ReadAt implements scheduler.Store.
func (s *spill) ReadAt(id chunk.ID, p []byte, off int64) error {
	err := s.Store.ReadAt(id, p, off)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if e == nil {
		return err
	}
	s.order.MoveToFront(e)
	held := e.Value.(*spilled).p
	if off < 0 || off+int64(len(p)) > int64(len(held)) {
		return err
	}
	copy(p, held[off:])
	return nil
}

// Has implements scheduler.Store.
func (s *spill) Has(id chunk.ID) bool {
	if s.Store.Has(id) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id] != nil
}

// Put implements scheduler.Store. It holds what the store does not keep.
func (s *spill) Put(v chunk.Verified) error {
	err := chunk.ErrFull
	if !s.tight() {
		err = s.Store.Put(v)
	}
	if err == nil {
		return nil
	}
	s.failed(v.Ref(), err)
	s.mu.Lock()
	defer s.mu.Unlock()
	id := v.Ref().ID
	if s.byID[id] == nil {
		s.byID[id] = s.order.PushFront(&spilled{id, append([]byte(nil), v.Bytes()...)})
		s.bytes += int64(v.Ref().Size)
	}
	for s.bytes > maxSpill {
		last := s.order.Back()
		old := s.order.Remove(last).(*spilled)
		delete(s.byID, old.id)
		s.bytes -= int64(len(old.p))
	}
	return nil
}

// Section implements scheduler.Sectioner, for a store that does.
func (s *spill) Section(id chunk.ID) (scheduler.Section, error) {
	if store, ok := s.Store.(scheduler.Sectioner); ok {
		return store.Section(id)
	}
	return nil, chunk.ErrNotFound
}
