package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

// fullStore keeps nothing.
type fullStore struct{ noStore }

// numbered returns a chunk of a MiB that is different for each number.
func numbered(n uint64) chunk.Verified {
	return chunk.SHA256.Name(bytes.Repeat(binary.LittleEndian.AppendUint64(nil, n), 1<<17))
}

func TestSpill(t *testing.T) {
	failed := 0
	s := newSpill(fullStore{}, roomy, func(_ chunk.Ref, err error) {
		if !errors.Is(err, chunk.ErrFull) {
			t.Errorf("told of %v", err)
		}
		failed++
	})
	for i := range uint64(100) {
		if err := s.Put(numbered(i)); err != nil {
			t.Fatal(err)
		}
		if s.bytes > maxSpill || int64(s.order.Len())<<20 != s.bytes || len(s.byID) != s.order.Len() {
			t.Fatalf("%d bytes, %d chunks, %d of them known by name", s.bytes, s.order.Len(), len(s.byID))
		}
	}
	if failed != 100 {
		t.Errorf("told of %d chunks that were not kept, not 100", failed)
	}
	p := make([]byte, 10)
	for _, row := range []struct {
		n    uint64
		have bool
	}{{99, true}, {68, true}, {67, false}, {0, false}} {
		v := numbered(row.n)
		err := s.ReadAt(v.Ref().ID, p, 100)
		if s.Has(v.Ref().ID) != row.have || (err == nil) != row.have || row.have && !bytes.Equal(p, v.Bytes()[100:110]) {
			t.Errorf("chunk %d: held %v, %v", row.n, s.Has(v.Ref().ID), err)
		}
	}
	if err := s.ReadAt(numbered(99).Ref().ID, p, 1<<20-5); err == nil {
		t.Error("a read beyond the chunk's end did not fail")
	}
	// What was just read stays longer.
	if err := s.ReadAt(numbered(68).Ref().ID, p, 0); err != nil {
		t.Error(err)
	}
	if err := s.Put(numbered(100)); err != nil {
		t.Fatal(err)
	}
	if !s.Has(numbered(68).Ref().ID) || s.Has(numbered(69).Ref().ID) {
		t.Error("the chunk that was used last is not the one that stays")
	}
}

// roomy is a disk that has room.
func roomy() bool { return false }

// TestSpillBehaves: with a store that has room, a spill is that store.
func TestSpillBehaves(t *testing.T) {
	store := storetest.NewMemory(1 << 30)
	s := newSpill(store, roomy, func(ref chunk.Ref, err error) { t.Errorf("%s: %v", ref, err) })
	v := numbered(7)
	if err := s.Put(v); err != nil {
		t.Fatal(err)
	}
	if s.order.Len() != 0 || !store.Has(v.Ref().ID) || !s.Has(v.Ref().ID) {
		t.Error("a chunk for which there is room was not put into the store, or held as well")
	}
}
