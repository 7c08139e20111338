package chunkstore

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

// TestQuota has readers hold on to segments while more is put than the limit.
func TestQuota(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Config{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var newest atomic.Int64
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := storetest.Chunk(chunk.SHA256, uint64(newest.Load()), 40_000)
				if sec, err := s.Section(v.Ref().ID); err == nil {
					if _, err := readsAs(s, v); err != nil {
						t.Error(err)
					}
					sec.Close()
				}
			}
		})
	}
	for i := range 5 * testLimit / 40_000 {
		put(t, s, i, 1, 40_000)
		newest.Store(int64(i))
		if use := diskUse(t, dir); use > testLimit {
			t.Fatalf("files have %d bytes, over the limit of %d", use, testLimit)
		}
	}
	close(stop)
	wg.Wait()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	checkUsed(t, s, dir)
	if use := diskUse(t, dir); use < testLimit/2 {
		t.Errorf("only %d bytes of the limit of %d are used", use, testLimit)
	}
}

// TestLowerLimit checks that a limit that shrank holds from the first put on,
// and that pins set before that are heeded.
func TestLowerLimit(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Config{})
	all := put(t, s, 0, 100, 60_000)
	closeTest(t, s)
	s = openTest(t, dir, Config{Limit: 2 << 20})
	if n := count(t, s, all); n != len(all) {
		t.Fatalf("Open evicts: %d of %d chunks are there", n, len(all))
	}
	s.Pin("p", slices.Values([]chunk.ID{all[0].Ref().ID, all[50].Ref().ID}))
	put(t, s, 1000, 1, 60_000)
	if use := diskUse(t, dir); use > 2<<20 {
		t.Errorf("files have %d bytes, over the limit", use)
	}
	if n := count(t, s, []chunk.Verified{all[0], all[50]}); n != 2 {
		t.Errorf("%d of 2 pinned chunks are there", n)
	}
}

// TestLogStaysSmall checks that the index log does not grow with what is gone.
func TestLogStaysSmall(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Config{Limit: MinLimit})
	for i := range 12 {
		put(t, s, 1000*i, 1000, 3000)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if s.mostlyDead() {
			if err := s.compact(); err != nil {
				t.Fatal(err)
			}
		}
	}
	info, err := os.Stat(s.path(indexName))
	if err != nil {
		t.Fatal(err)
	}
	if n := info.Size() / entrySize; n > 2*s.Stats().Chunks+4096+1000 {
		t.Errorf("index has %d entries for %d chunks", n, s.Stats().Chunks)
	}
	last := put(t, s, 50_000, 100, 3000)
	checkUsedAfterSync(t, s, dir)
	closeTest(t, s)
	s = openTest(t, dir, Config{Limit: MinLimit})
	if n := count(t, s, last); n != len(last) {
		t.Errorf("%d of %d chunks are there after compaction", n, len(last))
	}
}
