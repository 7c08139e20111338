package chunkstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

// model is what a store may and must hold after the operations so far.
type model struct {
	t    *testing.T
	rnd  *rand.Rand
	dir  string
	s    *Store
	pins map[string][]int
	must map[int]bool // was there while pinned, so it must still be
	rot  map[int]bool // was spoiled, and the store may not know yet
}

const modelChunks = 400

func modelChunk(n int) chunk.Verified {
	return storetest.Chunk(chunk.Algorithm(1+n%2), uint64(n), 1+n*1009%30_000)
}

func (m *model) pinned(n int) bool {
	for _, set := range m.pins {
		if slices.Contains(set, n) {
			return true
		}
	}
	return false
}

func (m *model) put(n int) error {
	v := modelChunk(n)
	err := m.s.Put(v)
	if errors.Is(err, chunk.ErrFull) {
		return nil // pins may take up all the room
	}
	if err == nil && m.pinned(n) && !m.rot[n] {
		m.must[n] = true
	}
	return err
}

func (m *model) read(n int) error {
	v := modelChunk(n)
	there, err := readsAs(m.s, v)
	if !there {
		delete(m.rot, n)
	}
	if err == nil && !there && m.must[n] {
		err = fmt.Errorf("%s is pinned and was there, but is not", v.Ref())
	}
	return err
}

// pin gives an owner a few chunks, so that not all is pinned in the end.
func (m *model) pin() {
	owner := fmt.Sprint("owner ", m.rnd.IntN(4))
	if len(m.pins[owner]) > 30 {
		m.s.Unpin(owner)
		delete(m.pins, owner)
		for n := range m.must {
			if !m.pinned(n) {
				delete(m.must, n)
			}
		}
		return
	}
	set := []int{m.rnd.IntN(modelChunks), m.rnd.IntN(modelChunks), m.rnd.IntN(modelChunks)}
	m.pins[owner] = append(m.pins[owner], set...)
	m.s.Pin(owner, ids(set))
	for _, n := range set {
		if m.s.Has(modelChunk(n).Ref().ID) && !m.rot[n] {
			m.must[n] = true
		}
	}
}

func ids(set []int) func(func(chunk.ID) bool) {
	return func(yield func(chunk.ID) bool) {
		for _, n := range set {
			if !yield(modelChunk(n).Ref().ID) {
				return
			}
		}
	}
}

// reopen ends the store, cleanly or not, opens it again and sets the pins.
func (m *model) reopen() {
	if m.rnd.IntN(2) == 0 {
		crash(m.t, m.s)
	} else {
		closeTest(m.t, m.s)
	}
	m.s = openTest(m.t, m.dir, Config{Limit: 2 << 20, SyncEvery: time.Millisecond})
	for owner, set := range m.pins {
		m.s.Pin(owner, ids(set))
	}
}

func (m *model) corrupt(n int) error {
	v := modelChunk(n)
	if !m.s.Has(v.Ref().ID) {
		return nil
	}
	sec, err := m.s.Section(v.Ref().ID)
	if errors.Is(err, chunk.ErrNotFound) {
		return nil // evicted meanwhile
	}
	if err != nil {
		return err
	}
	flip(m.t, sec.File().Name(), sec.Offset()+m.rnd.Int64N(sec.Len()))
	if err := sec.Close(); err != nil {
		return err
	}
	delete(m.must, n)
	m.rot[n] = true
	if m.rnd.IntN(2) == 0 {
		_, err := m.s.Scrub(m.t.Context(), ScrubOptions{})
		return err
	}
	return nil
}

func (m *model) step() error {
	n := m.rnd.IntN(modelChunks)
	switch k := m.rnd.IntN(1000); {
	case k < 450:
		return m.put(n)
	case k < 900:
		return m.read(n)
	case k < 940:
		m.pin()
	case k < 960:
		return m.corrupt(n)
	case k < 970:
		m.reopen()
	case k < 980:
		return m.s.compact()
	default:
		if err := m.s.Sync(); err != nil {
			return err
		}
		if use := diskUse(m.t, m.dir); use > 2<<20 {
			return fmt.Errorf("files have %d bytes, over the limit", use)
		}
	}
	return nil
}

// TestModel does random operations on a store and on a model of it.
func TestModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	steps := 5000
	if testing.Short() {
		steps = 500
	}
	dir := t.TempDir()
	m := &model{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), dir: dir,
		s:    openTest(t, dir, Config{Limit: 2 << 20, SyncEvery: time.Millisecond}),
		pins: make(map[string][]int), must: make(map[int]bool), rot: make(map[int]bool),
	}
	for i := range steps {
		if err := m.step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	for n := range modelChunks {
		if err := m.read(n); err != nil {
			t.Error(err)
		}
	}
	checkUsedAfterSync(t, m.s, dir)
}
