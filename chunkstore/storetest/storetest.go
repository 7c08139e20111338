// Package storetest says by tests what every store of chunks must do, and has a
// store in memory for the tests of what uses one.
//
// [Run] is called by the tests of each store. [Memory] is safe for concurrent
// use, copies what it is given, and evicts in the way of the store on disk, one
// chunk at a time.
package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"graze/chunk"
)

// A Store is what Run tests.
type Store interface {
	Put(v chunk.Verified) error
	ReadAt(id chunk.ID, p []byte, off int64) error
	Has(id chunk.ID) bool
	Pin(owner string, ids iter.Seq[chunk.ID])
	Unpin(owner string)
	Chunks() iter.Seq[chunk.Ref]
}

// Limit is the limit, in bytes, of the stores that Run asks for. They must have
// room for at least a half of it in chunks of 64 KiB, and not for more than it.
const Limit = 8 << 20

// An Open returns an empty store with the given limit, and a function that spoils
// a byte of a chunk that is there. It uses t to clean up.
type Open func(t *testing.T) (s Store, corrupt func(id chunk.ID, off int64))

// Chunk returns the chunk that seed and size determine.
func Chunk(alg chunk.Algorithm, seed uint64, size int) chunk.Verified {
	p := make([]byte, size)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	rand.NewChaCha8(key).Read(p) // never fails
	v, err := chunk.Ref{ID: alg.Sum(p), Size: int32(size)}.Verify(p)
	if err != nil {
		panic(err)
	}
	return v
}

// Run tests the stores that open returns.
func Run(t *testing.T, open Open) {
	for _, tt := range []struct {
		name string
		test func(*testing.T, Store, func(chunk.ID, int64))
	}{
		{"read", testRead},
		{"missing", testMissing},
		{"out of range", testRange},
		{"zero chunk", testZero},
		{"put twice", testPutTwice},
		{"put at once", testConcurrentPut},
		{"algorithms", testAlgorithms},
		{"caller's buffer", testBuffer},
		{"corrupt", testCorrupt},
		{"evict", testEvict},
		{"hot chunks survive", testHot},
		{"pins survive", testPins},
		{"full of pins", testFull},
		{"shared pins", testSharedPins},
		{"too large", testTooLarge},
		{"concurrent", testConcurrent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, corrupt := open(t)
			tt.test(t, s, corrupt)
		})
	}
}

func mustPut(t *testing.T, s Store, v chunk.Verified) {
	t.Helper()
	if err := s.Put(v); err != nil {
		t.Fatalf("Put: %v", err)
	}
}

// check fails the test unless s returns exactly v.
func check(t *testing.T, s Store, v chunk.Verified) {
	t.Helper()
	p := make([]byte, v.Ref().Size)
	if err := s.ReadAt(v.Ref().ID, p, 0); err != nil {
		t.Fatalf("ReadAt: %v", err)
	}
	if !bytes.Equal(p, v.Bytes()) {
		t.Fatalf("ReadAt of %s returns other bytes", v.Ref())
	}
}

func checkNotFound(t *testing.T, s Store, id chunk.ID) {
	t.Helper()
	if s.Has(id) {
		t.Error("Has reports a chunk that must not be there")
	}
	if err := s.ReadAt(id, make([]byte, 1), 0); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("ReadAt returns %v, not ErrNotFound", err)
	}
}

func testRead(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	for i, size := range []int{1, 4095, 4096, 4097, 8192, 100_000, 256 << 10} {
		v := Chunk(chunk.SHA256, uint64(i), size)
		mustPut(t, s, v)
		if !s.Has(v.Ref().ID) {
			t.Fatalf("chunk of %d bytes is not there after Put", size)
		}
		for _, off := range []int{0, 1, 4095, 4096, 4097, size - 1, size} {
			for _, n := range []int{0, 1, 4095, 4096, 4097, 8191, size} {
				if off > size || n > size-off {
					continue
				}
				p := make([]byte, n)
				if err := s.ReadAt(v.Ref().ID, p, int64(off)); err != nil {
					t.Fatalf("ReadAt(%d bytes at %d of %d): %v", n, off, size, err)
				}
				if !bytes.Equal(p, v.Bytes()[off:off+n]) {
					t.Fatalf("ReadAt(%d bytes at %d of %d) returns other bytes", n, off, size)
				}
			}
		}
	}
}

func testMissing(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	mustPut(t, s, Chunk(chunk.SHA256, 1, 10))
	checkNotFound(t, s, Chunk(chunk.SHA256, 2, 10).Ref().ID)
	checkNotFound(t, s, chunk.ID{})
}

func testRange(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	v := Chunk(chunk.SHA256, 1, 5000)
	mustPut(t, s, v)
	for _, r := range []struct{ off, n int64 }{{-1, 1}, {0, 5001}, {5000, 1}, {4999, 2}, {1 << 40, 0}, {1<<63 - 1, 1}} {
		err := s.ReadAt(v.Ref().ID, make([]byte, r.n), r.off)
		if err == nil || errors.Is(err, chunk.ErrNotFound) || errors.Is(err, chunk.ErrCorrupt) {
			t.Errorf("ReadAt(%d bytes at %d of 5000) returns %v", r.n, r.off, err)
		}
	}
	check(t, s, v)
}

func testZero(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	if err := s.Put(chunk.Verified{}); err == nil {
		t.Error("Put takes the zero value of Verified")
	}
}

func testPutTwice(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	v := Chunk(chunk.BLAKE3, 1, 70_000)
	mustPut(t, s, v)
	mustPut(t, s, v)
	if got := slices.Collect(s.Chunks()); !slices.Equal(got, []chunk.Ref{v.Ref()}) {
		t.Errorf("Chunks yields %v", got)
	}
	check(t, s, v)
}

func testConcurrentPut(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	v := Chunk(chunk.BLAKE3, 1, 256<<10)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := s.Put(v); err != nil {
				t.Errorf("Put: %v", err)
			}
		})
	}
	wg.Wait()
	check(t, s, v)
}

func testAlgorithms(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	a, b := Chunk(chunk.SHA256, 1, 5000), Chunk(chunk.BLAKE3, 1, 5000)
	mustPut(t, s, a)
	checkNotFound(t, s, b.Ref().ID)
	mustPut(t, s, b)
	check(t, s, a)
	check(t, s, b)
}

func testBuffer(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	v := Chunk(chunk.SHA256, 1, 5000)
	mustPut(t, s, v)
	clear(v.Bytes())
	check(t, s, Chunk(chunk.SHA256, 1, 5000))
}

func testCorrupt(t *testing.T, s Store, corrupt func(chunk.ID, int64)) {
	good, bad := Chunk(chunk.SHA256, 1, 50_000), Chunk(chunk.SHA256, 2, 50_000)
	mustPut(t, s, good)
	mustPut(t, s, bad)
	corrupt(bad.Ref().ID, 20_000)
	p := make([]byte, 4096)
	if err := s.ReadAt(bad.Ref().ID, p, 0); err != nil {
		t.Errorf("a block that is sound can't be read: %v", err)
	} else if !bytes.Equal(p, bad.Bytes()[:4096]) {
		t.Error("a block that is sound has other bytes")
	}
	if err := s.ReadAt(bad.Ref().ID, make([]byte, 50_000), 0); !errors.Is(err, chunk.ErrCorrupt) {
		t.Fatalf("ReadAt of a rotted chunk returns %v, not ErrCorrupt", err)
	}
	checkNotFound(t, s, bad.Ref().ID)
	check(t, s, good)
	mustPut(t, s, bad)
	check(t, s, bad)
}

const pieceSize = 64 << 10

// piece returns one of the chunks that the tests of eviction use.
func piece(n int) chunk.Verified { return Chunk(chunk.BLAKE3, uint64(n), pieceSize) }

// fill puts n chunks with the numbers from first on, and fails the test if more
// stay than the limit allows.
func fill(t *testing.T, s Store, first, n int) {
	t.Helper()
	for i := range n {
		mustPut(t, s, piece(first+i))
	}
	var sum int64
	for ref := range s.Chunks() {
		sum += int64(ref.Size)
	}
	if sum > Limit {
		t.Fatalf("store holds %d bytes, over its limit of %d", sum, Limit)
	}
}

func testEvict(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	n := 3 * Limit / pieceSize
	fill(t, s, 0, n)
	checkNotFound(t, s, piece(0).Ref().ID)
	kept := 0
	for i := range n {
		if s.Has(piece(i).Ref().ID) {
			check(t, s, piece(i))
			kept++
		}
	}
	if kept < Limit/pieceSize/2 {
		t.Errorf("only %d of %d chunks are kept, though there is room for %d", kept, n, Limit/pieceSize)
	}
	check(t, s, piece(n-1))
}

func testHot(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	const hot = 16
	fill(t, s, 0, hot)
	for n := hot; n < 4*Limit/pieceSize; n++ {
		// Chunks that are read again and again survive those that are read
		// once, right after they were put.
		fill(t, s, n, 1)
		check(t, s, piece(n))
		check(t, s, piece(n%hot))
	}
}

func pinned(first, n int) iter.Seq[chunk.ID] {
	return func(yield func(chunk.ID) bool) {
		for i := range n {
			if !yield(piece(first + i).Ref().ID) {
				return
			}
		}
	}
}

func testPins(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	const before, after = 8, 8 // some are pinned before they are there
	fill(t, s, 0, before)
	s.Pin("image", pinned(0, before+after))
	fill(t, s, before, 3*Limit/pieceSize)
	for i := range before + after {
		check(t, s, piece(i))
	}
	s.Unpin("image")
	// More than once round, since the reads above give a second chance.
	fill(t, s, 10_000, 8*Limit/pieceSize)
	for i := range before + after {
		checkNotFound(t, s, piece(i).Ref().ID)
	}
}

func testFull(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	n := 2 * Limit / pieceSize
	s.Pin("image", pinned(0, n))
	var err error
	stored := 0
	for err == nil && stored < n {
		if err = s.Put(piece(stored)); err == nil {
			stored++
		}
	}
	if !errors.Is(err, chunk.ErrFull) {
		t.Fatalf("after %d pinned chunks, Put returns %v, not ErrFull", stored, err)
	}
	if s.Has(piece(stored).Ref().ID) {
		t.Error("a chunk for which Put returned ErrFull is there")
	}
	if err := s.Put(piece(stored + 1)); !errors.Is(err, chunk.ErrFull) {
		t.Errorf("Put in a store that is full returns %v", err)
	}
	for i := range stored {
		check(t, s, piece(i))
	}
	mustPut(t, s, piece(0))
	s.Unpin("image")
	mustPut(t, s, piece(stored))
	check(t, s, piece(stored))
}

func testSharedPins(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	fill(t, s, 0, 2)
	s.Pin("a", pinned(0, 2))
	s.Pin("b", pinned(0, 1))
	s.Pin("b", pinned(0, 1))
	s.Unpin("a")
	s.Unpin("never pinned")
	fill(t, s, 10, 3*Limit/pieceSize)
	check(t, s, piece(0))
	checkNotFound(t, s, piece(1).Ref().ID)
	s.Unpin("b")
	fill(t, s, 10_000, 8*Limit/pieceSize)
	checkNotFound(t, s, piece(0).Ref().ID)
}

func testTooLarge(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	mustPut(t, s, piece(0))
	if err := s.Put(Chunk(chunk.BLAKE3, 1, chunk.MaxSize)); !errors.Is(err, chunk.ErrFull) {
		t.Errorf("Put of a chunk over the limit returns %v, not ErrFull", err)
	}
	check(t, s, piece(0))
}

// testConcurrent has many readers and writers of more than the store can hold.
func testConcurrent(t *testing.T, s Store, _ func(chunk.ID, int64)) {
	all := make([]chunk.Verified, 2*Limit/pieceSize)
	for i := range all {
		all[i] = piece(i)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			if err := churn(s, all, rand.New(rand.NewPCG(uint64(w), 0))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// churn reads chunks at random, and puts those that are missing.
func churn(s Store, all []chunk.Verified, rnd *rand.Rand) error {
	p := make([]byte, 10_000)
	for range 1000 {
		v := all[rnd.IntN(len(all))]
		off := rnd.IntN(pieceSize - len(p))
		err := s.ReadAt(v.Ref().ID, p, int64(off))
		if errors.Is(err, chunk.ErrNotFound) {
			err = s.Put(v)
		} else if err == nil && !bytes.Equal(p, v.Bytes()[off:off+len(p)]) {
			err = fmt.Errorf("ReadAt of %s at %d returns other bytes", v.Ref(), off)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
