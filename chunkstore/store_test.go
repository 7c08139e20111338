package chunkstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDirEnv); dir != "" {
		crashChild(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

const testLimit = storetest.Limit

// openTest opens the store in dir and closes it at the end of the test.
func openTest(t testing.TB, dir string, cfg Config) *Store {
	t.Helper()
	if cfg.Limit == 0 {
		cfg.Limit = testLimit
	}
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeTest(t, s) })
	return s
}

func closeTest(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (storetest.Store, func(chunk.ID, int64)) {
		s := openTest(t, t.TempDir(), Config{})
		return s, func(id chunk.ID, off int64) { spoil(t, s, id, off) }
	})
}

// spoil changes a byte of a chunk on disk.
func spoil(t testing.TB, s *Store, id chunk.ID, off int64) {
	t.Helper()
	sec, err := s.Section(id)
	if err != nil {
		t.Fatal(err)
	}
	defer sec.Close()
	flip(t, sec.File().Name(), sec.Offset()+off)
}

// flip inverts a byte of a file.
func flip(t testing.TB, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	b[0] = ^b[0]
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// crash ends a store as the end of its process would: nothing is synced or
// logged.
func crash(t testing.TB, s *Store) {
	t.Helper()
	s.closed.Store(true)
	close(s.stop)
	<-s.done
	if err := s.closeFiles(); err != nil {
		t.Error(err)
	}
}

// diskUse adds up the files of a directory.
func diskUse(t testing.TB, dir string) int64 {
	t.Helper()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, e := range names {
		// A file may have been removed since.
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// readsAs returns an error unless s has no such chunk, or has exactly its bytes.
func readsAs(s *Store, v chunk.Verified) (there bool, err error) {
	p := make([]byte, v.Ref().Size)
	switch err := s.ReadAt(v.Ref().ID, p, 0); {
	case errors.Is(err, chunk.ErrNotFound), errors.Is(err, chunk.ErrCorrupt):
		return false, nil
	case err != nil:
		return false, err
	case !bytes.Equal(p, v.Bytes()):
		return false, fmt.Errorf("%s has other bytes", v.Ref())
	}
	return true, nil
}

// put stores the chunks with numbers first to first+n-1 and returns them.
func put(t testing.TB, s *Store, first, n, size int) []chunk.Verified {
	t.Helper()
	var vs []chunk.Verified
	for i := range n {
		v := storetest.Chunk(chunk.SHA256, uint64(first+i), size)
		if err := s.Put(v); err != nil {
			t.Fatal(err)
		}
		vs = append(vs, v)
	}
	return vs
}

// count returns how many of vs are there, and fails the test if one is wrong.
func count(t testing.TB, s *Store, vs []chunk.Verified) (n int) {
	t.Helper()
	for _, v := range vs {
		there, err := readsAs(s, v)
		if err != nil {
			t.Error(err)
		}
		if there {
			n++
		}
	}
	return n
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Config{})
	_, err := Open(dir, Config{})
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), "another directory") {
		t.Errorf("second Open returns %v", err)
	}
	closeTest(t, s)
	closeTest(t, openTest(t, dir, Config{}))
}

func TestClosed(t *testing.T) {
	s := openTest(t, t.TempDir(), Config{})
	v := put(t, s, 0, 1, 100)[0]
	closeTest(t, s)
	for name, err := range map[string]error{
		"Put":    s.Put(storetest.Chunk(chunk.SHA256, 1, 10)),
		"ReadAt": s.ReadAt(v.Ref().ID, nil, 0),
		"Sync":   s.Sync(),
		"Close":  s.Close(),
	} {
		if want := name != "Close"; errors.Is(err, os.ErrClosed) != want {
			t.Errorf("%s after Close returns %v", name, err)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
	}{
		{"limit too small", Config{Limit: MinLimit - 1}},
		{"limit negative", Config{Limit: -1}},
		{"interval negative", Config{SyncEvery: -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if s, err := Open(t.TempDir(), tt.cfg); err == nil {
				closeTest(t, s)
				t.Error("Open takes it")
			}
		})
	}
}

func TestDefaultLimit(t *testing.T) {
	dir := t.TempDir()
	first, err := Open(dir, Config{})
	if err != nil {
		t.Fatal(err)
	}
	limit := first.Stats().Limit
	closeTest(t, first)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if total := int64(st.Blocks) * st.Bsize; limit < MinLimit || limit > total/5*4 {
		t.Errorf("limit is %d of %d bytes", limit, total)
	}
	// The figure stands for good, but gives way to a set limit.
	for _, want := range []int64{limit, testLimit, limit} {
		cfg := Config{Limit: want}
		if want == limit {
			cfg.Limit = 0
		}
		s, err := Open(dir, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Stats().Limit; got != want {
			t.Errorf("limit is %d, not %d", got, want)
		}
		closeTest(t, s)
	}
}

func TestSegmentSize(t *testing.T) {
	for _, tt := range []struct{ limit, want int64 }{
		{1 << 20, 128 << 10},
		{8 << 20, 1 << 20},
		{128 << 20, 16 << 20},
		{1 << 30, 16 << 20},
		{4 << 30, 64 << 20},
		{100 << 30, 256 << 20},
		{512 << 30, 512 << 20},
		{1 << 50, topSegment},
	} {
		if got := segmentSize(tt.limit); got != tt.want {
			t.Errorf("segmentSize(%d) = %d, want %d", tt.limit, got, tt.want)
		}
	}
}

func TestReopen(t *testing.T) {
	for _, how := range []struct {
		name string
		end  func(testing.TB, *Store)
	}{{"close", closeTest}, {"crash", crash}} {
		t.Run(how.name, func(t *testing.T) {
			dir := t.TempDir()
			var all []chunk.Verified
			for i := range 5 {
				s := openTest(t, dir, Config{})
				if n := count(t, s, all); n != len(all) {
					t.Fatalf("after restart %d, %d of %d chunks are there", i, n, len(all))
				}
				all = append(all, put(t, s, 100*i, 3, 30_000)...)
				s.Pin("p", slices.Values([]chunk.ID{all[len(all)-1].Ref().ID}))
				if n := s.Stats().Segments; n > int(numLanes) {
					t.Errorf("restarts leave %d segments behind", n)
				}
				how.end(t, s)
			}
		})
	}
}

// IDs ranges over all that is there, also when the store is used meanwhile.
func TestIDs(t *testing.T) {
	s := openTest(t, t.TempDir(), Config{})
	want := make(map[chunk.ID]bool)
	for i := range 200 {
		v := chunk.SHA256.Name([]byte{byte(i), 1})
		if err := s.Put(v); err != nil {
			t.Fatal(err)
		}
		want[v.Ref().ID] = true
	}
	for id := range s.IDs() {
		if !want[id] || !s.Has(id) {
			t.Errorf("%s is not there, or comes twice", id)
		}
		delete(want, id)
	}
	if len(want) > 0 {
		t.Errorf("%d chunks are missing", len(want))
	}
	for range s.IDs() {
		break
	}
}

func TestSection(t *testing.T) {
	s := openTest(t, t.TempDir(), Config{})
	v := put(t, s, 0, 1, 50_000)[0]
	sec, err := s.Section(v.Ref().ID)
	if err != nil {
		t.Fatal(err)
	}
	defer sec.Close()
	for n := 1; s.Has(v.Ref().ID); n++ {
		put(t, s, n, 1, 50_000)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, sec.Len())
	if _, err := sec.File().ReadAt(p, sec.Offset()); err != nil || !bytes.Equal(p, v.Bytes()) {
		t.Errorf("a section that is evicted reads other bytes, error %v", err)
	}
	if err := errors.Join(sec.Close(), sec.Close()); err != nil {
		t.Error(err)
	}
	if _, err := s.Section(v.Ref().ID); !errors.Is(err, chunk.ErrNotFound) {
		t.Errorf("Section of a chunk that is gone returns %v", err)
	}
}

func TestSectionOfRot(t *testing.T) {
	s := openTest(t, t.TempDir(), Config{})
	v := put(t, s, 0, 1, 500_000)[0]
	spoil(t, s, v.Ref().ID, 499_999)
	if _, err := s.Section(v.Ref().ID); !errors.Is(err, chunk.ErrCorrupt) {
		t.Errorf("Section of a rotted chunk returns %v", err)
	}
	if st := s.Stats(); st.Corrupt != 1 || st.Chunks != 0 {
		t.Errorf("stats are %+v", st)
	}
}

// TestDropStays checks that a chunk that was dropped does not come back.
func TestDropStays(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Config{})
	v := put(t, s, 0, 1, 50_000)[0]
	spoil(t, s, v.Ref().ID, 0)
	if err := s.ReadAt(v.Ref().ID, make([]byte, 1), 0); !errors.Is(err, chunk.ErrCorrupt) {
		t.Fatal(err)
	}
	closeTest(t, s)
	if openTest(t, dir, Config{}).Has(v.Ref().ID) {
		t.Error("the chunk is back")
	}
}

// checkUsed compares the store's count of its bytes with the files. It must have
// been synced.
func checkUsed(t testing.TB, s *Store, dir string) {
	t.Helper()
	s.evictMu.Lock() // so that no background eviction is under way
	defer s.evictMu.Unlock()
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if used, files := s.used.Load(), diskUse(t, dir); used != files {
		t.Errorf("store counts %d bytes, but its files have %d", used, files)
	}
}

func checkUsedAfterSync(t testing.TB, s *Store, dir string) {
	t.Helper()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	checkUsed(t, s, dir)
}

func TestMemoryPerChunk(t *testing.T) {
	const n = 300_000
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var x index
	x.init(0)
	var sum [chunk.SumSize]byte
	for i := range n {
		binary.LittleEndian.PutUint64(sum[:], uint64(i)*0x9e3779b97f4a7c15)
		id, err := chunk.NewID(chunk.SHA256, sum)
		if err != nil {
			t.Fatal(err)
		}
		x.set(id, loc{seg: 1, off: uint32(i), size: 1})
	}
	per := (heap() - before) / n
	t.Logf("%d bytes a chunk", per)
	if per > 100 {
		t.Errorf("index takes %d bytes a chunk, over 100", per)
	}
	runtime.KeepAlive(&x)
}

func TestReadAllocates(t *testing.T) {
	s := openTest(t, t.TempDir(), Config{})
	v := put(t, s, 0, 1, 100_000)[0]
	p := make([]byte, 10_000)
	if n := testing.AllocsPerRun(100, func() {
		if err := s.ReadAt(v.Ref().ID, p, 5000); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("ReadAt allocates %v times", n)
	}
}

// TestSyncInTime checks that what was put is logged without a call of Sync.
func TestSyncInTime(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openTest(t, dir, Config{SyncEvery: time.Minute})
		put(t, s, 0, 10, 1000)
		time.Sleep(61 * time.Second) // fake time
		synctest.Wait()
		s.flushMu.Lock()
		entries := s.logEntries
		s.flushMu.Unlock()
		if entries != 10 {
			t.Errorf("log has %d entries, not 10", entries)
		}
		closeTest(t, s)
	})
}
