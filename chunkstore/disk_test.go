package chunkstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

// TestWriteFails checks that a store whose files can't be written tries another,
// then reports it, and goes on serving reads.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Config{})
	first := put(t, s, 0, 3, 10_000)
	readOnly, err := os.Open(s.heads[laneFresh].f.Name())
	if err != nil {
		t.Fatal(err)
	}
	s.appendMu.Lock()
	good := s.heads[laneFresh].f
	s.heads[laneFresh].f = readOnly
	s.appendMu.Unlock()
	t.Cleanup(func() { good.Close() })
	first = append(first, put(t, s, 10, 3, 10_000)...)
	if n := s.Stats().Segments; n != 2 {
		t.Errorf("store has %d segments, not a second", n)
	}
	checkUsedAfterSync(t, s, dir)

	// Now no file can be made at all.
	s.appendMu.Lock()
	s.dir += "/gone"
	s.sealLocked(laneFresh)
	s.appendMu.Unlock()
	if err := s.Put(storetest.Chunk(chunk.SHA256, 20, 10)); !errors.Is(err, chunk.ErrFull) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Put returns %v", err)
	}
	if n := count(t, s, first); n != 6 {
		t.Errorf("%d of 6 chunks are there", n)
	}
	if st := s.Stats(); st.WriteErrors != 1 {
		t.Errorf("%d write errors are counted, not 1", st.WriteErrors)
	}
	s.dir = dir
}

// TestSyncFails checks that nothing of a segment is logged once its sync has
// failed, so that the next Open checks it.
func TestSyncFails(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Config{SyncEvery: time.Hour})
	all := put(t, s, 0, 3, 10_000)
	g := s.heads[laneFresh]
	fd := g.fd
	g.fd = -1
	if err := s.Sync(); err == nil {
		t.Error("Sync succeeds without a file")
	}
	g.fd = fd
	all = append(all, put(t, s, 10, 3, 10_000)...)
	checkUsedAfterSync(t, s, dir)
	if s.logEntries != 3 || s.Stats().SyncErrors != 1 {
		t.Errorf("log has %d entries, not 3; %d sync errors, not 1", s.logEntries, s.Stats().SyncErrors)
	}
	crash(t, s)
	s = openTest(t, dir, Config{})
	if n := count(t, s, all); n != len(all) {
		t.Errorf("%d of %d chunks are there", n, len(all))
	}
}

// mountSmall mounts a tmpfs of size bytes for the test.
func mountSmall(t *testing.T, size int) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := mountTmpfs(dir, size); err != nil {
		t.Skipf("can't mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestDiskFull has a store on a disk that is smaller than its limit.
func TestDiskFull(t *testing.T) {
	dir := mountSmall(t, 6<<20)
	s := openTest(t, dir, Config{Limit: 16 << 20})
	all := put(t, s, 0, 300, 50_000) // each succeeds, by evicting
	if n := count(t, s, all); n < 40 || n > 130 {
		t.Errorf("%d of 300 chunks are there", n)
	}
	if !s.Has(all[299].Ref().ID) {
		t.Error("the last chunk is not there")
	}

	s.Pin("all", func(yield func(chunk.ID) bool) {
		for ref := range s.Chunks() {
			if !yield(ref.ID) {
				return
			}
		}
	})
	pinned := slices.Collect(s.Chunks())
	filler, err := os.Create(dir + "/filler")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(filler, zeros{})
	if filler.Close(); !diskFull(err) {
		t.Fatal(err)
	}
	if err := s.Put(storetest.Chunk(chunk.SHA256, 9999, 50_000)); !errors.Is(err, chunk.ErrFull) {
		t.Errorf("Put on a full disk returns %v", err)
	}
	for _, ref := range pinned {
		p := make([]byte, ref.Size)
		if err := s.ReadAt(ref.ID, p, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := ref.Verify(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	put(t, s, 9999, 1, 50_000)
	checkUsedAfterSync(t, s, dir)
	closeTest(t, s)
	s = openTest(t, dir, Config{Limit: 16 << 20})
	for _, ref := range pinned {
		if !s.Has(ref.ID) {
			t.Errorf("%s is lost", ref)
		}
	}
	closeTest(t, s)
}

// zeros yields zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestReadOnly opens a store on a read-only file system.
func TestReadOnly(t *testing.T) {
	dir := mountSmall(t, 6<<20)
	closeTest(t, openTest(t, dir, Config{}))
	if err := remountReadOnly(dir); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, Config{Limit: testLimit})
	if err == nil || !strings.Contains(err.Error(), "must be writable") {
		t.Errorf("Open returns %v", err)
	}
}

func mountTmpfs(dir string, size int) error {
	return unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
}

func remountReadOnly(dir string) error {
	return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// unmount also works while something in dir is still open.
func unmount(dir string) error { return unix.Unmount(dir, unix.MNT_DETACH) }
