package chunkstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

func TestScrub(t *testing.T) {
	s := openTest(t, t.TempDir(), Config{})
	all := put(t, s, 0, 20, 50_000)
	spoil(t, s, all[3].Ref().ID, 10)
	spoil(t, s, all[7].Ref().ID, 49_999)
	rep, err := s.Scrub(t.Context(), ScrubOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := Report{Chunks: 20, Bytes: 1_000_000, Corrupt: []chunk.ID{all[3].Ref().ID, all[7].Ref().ID}}
	if diff := cmp.Diff(want, rep, cmp.Comparer(func(a, b chunk.ID) bool { return a == b })); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if n := count(t, s, all); n != 18 {
		t.Errorf("%d chunks are left, not 18", n)
	}
	if st := s.Stats(); st.Corrupt != 2 {
		t.Errorf("stats count %d corrupt chunks, not 2", st.Corrupt)
	}
}

// TestScrubDigest spoils a chunk in a way that its block checksums don't show.
func TestScrubDigest(t *testing.T) {
	s := openTest(t, t.TempDir(), Config{})
	a, b := storetest.Chunk(chunk.SHA256, 1, 5000), storetest.Chunk(chunk.SHA256, 2, 5000)
	if err := s.Put(a); err != nil {
		t.Fatal(err)
	}
	sec, err := s.Section(a.Ref().ID)
	if err != nil {
		t.Fatal(err)
	}
	forged := append(appendRecordHead(nil, a.Ref().ID, b.Bytes()), b.Bytes()...)
	if _, err := s.heads[laneFresh].f.WriteAt(forged, sec.Offset()-dataOffset(5000)); err != nil {
		t.Fatal(err)
	}
	sec.Close()
	rep, err := s.Scrub(t.Context(), ScrubOptions{})
	if err != nil || len(rep.Corrupt) != 1 || s.Has(a.Ref().ID) {
		t.Errorf("Scrub reports %+v, %v", rep, err)
	}
}

func TestScrubRate(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, dir, Config{})
		put(t, s, 0, 16, 64<<10)
		start := time.Now()
		if _, err := s.Scrub(t.Context(), ScrubOptions{Rate: 256 << 10}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 3999*time.Millisecond || d > 4001*time.Millisecond {
			t.Errorf("1 MiB at 256 KiB/s took %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1100*time.Millisecond)
		defer cancel()
		rep, err := s.Scrub(ctx, ScrubOptions{Rate: 256 << 10})
		if !errors.Is(err, context.DeadlineExceeded) || rep.Chunks != 5 {
			t.Errorf("interrupted Scrub returns %+v, %v", rep, err)
		}
		closeTest(t, s)
	})
}
