package chunkstore

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

// A damaged is a store that was closed, for tests that damage its files.
type damaged struct {
	t    *testing.T
	dir  string
	all  []chunk.Verified
	locs []loc // of all
}

const damagedChunks = 60 // of damagedSize each, in three segments and a bit

const damagedSize = 50_000

func newDamaged(t *testing.T) *damaged {
	d := &damaged{t: t, dir: t.TempDir()}
	s := openTest(t, d.dir, Config{})
	d.all = put(t, s, 0, damagedChunks, damagedSize)
	for _, v := range d.all {
		l, ok := s.index.get(v.Ref().ID)
		if !ok {
			t.Fatal("chunk is not there")
		}
		d.locs = append(d.locs, l)
	}
	closeTest(t, s)
	return d
}

func (d *damaged) index() string            { return filepath.Join(d.dir, indexName) }
func (d *damaged) segment(n int) string     { return segmentPath(d.dir, d.locs[n].seg) }
func (d *damaged) flipIndex(off int64)      { flip(d.t, d.index(), off) }
func (d *damaged) flip(n int, at int64)     { flip(d.t, d.segment(n), int64(d.locs[n].off)+at) }
func (d *damaged) truncate(n int, at int64) { d.resize(d.segment(n), int64(d.locs[n].off)+at) }

func (d *damaged) resize(path string, size int64) {
	d.t.Helper()
	if err := os.Truncate(path, size); err != nil {
		d.t.Fatal(err)
	}
}

func (d *damaged) append(path string, p []byte) {
	d.t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(p); err != nil {
		d.t.Fatal(err)
	}
}

func (d *damaged) remove(path string) {
	d.t.Helper()
	if err := os.Remove(path); err != nil {
		d.t.Fatal(err)
	}
}

// sharing returns how many chunks lie in the segment of chunk n.
func (d *damaged) sharing(n int) (chunks int) {
	for _, l := range d.locs {
		if l.seg == d.locs[n].seg {
			chunks++
		}
	}
	return chunks
}

// What TestDamage expects to lose, other than a number of chunks.
const (
	allOfFirst = -1 - iota // the chunks of the first segment
	allOfLast
)

// TestDamage damages the files of a closed store in every kind of place, with
// and without the index, and checks that no more is lost than was hit, that
// nothing wrong is served, and that the store goes on working.
func TestDamage(t *testing.T) {
	const mid, last = damagedChunks / 2, damagedChunks - 1
	garbage := make([]byte, 10_000)
	rand.NewChaCha8([32]byte{}).Read(garbage)
	for _, tt := range []struct {
		name   string
		damage func(*damaged)
		lost   int
	}{
		{"nothing", func(*damaged) {}, 0},
		{"index empty", func(d *damaged) { d.resize(d.index(), 0) }, 0},
		{"index cut in the header", func(d *damaged) { d.resize(d.index(), 10) }, 0},
		{"index cut behind the header", func(d *damaged) { d.resize(d.index(), fileHeaderSize) }, 0},
		{"index cut in an entry", func(d *damaged) { d.resize(d.index(), fileHeaderSize+entrySize*20+7) }, 0},
		{"index cut between entries", func(d *damaged) { d.resize(d.index(), fileHeaderSize+entrySize*20) }, 0},
		{"index header flipped", func(d *damaged) { d.flipIndex(13) }, 0},
		{"index magic flipped", func(d *damaged) { d.flipIndex(0) }, 0},
		{"index first entry flipped", func(d *damaged) { d.flipIndex(fileHeaderSize + 1) }, 0},
		{"index middle entry flipped", func(d *damaged) { d.flipIndex(fileHeaderSize + entrySize*mid + 41) }, 0},
		{"index last entry flipped", func(d *damaged) { d.flipIndex(fileHeaderSize + entrySize*last + 51) }, 0},
		{"index with garbage behind", func(d *damaged) { d.append(d.index(), garbage) }, 0},
		{"index with zeros behind", func(d *damaged) { d.append(d.index(), make([]byte, 5000)) }, 0},
		{"segment header flipped", func(d *damaged) { flip(d.t, d.segment(mid), 3) }, 0},
		{"segment number flipped", func(d *damaged) { flip(d.t, d.segment(last), 12) }, 0},
		{"segment cut in the header", func(d *damaged) { d.resize(d.segment(0), 9) }, allOfFirst},
		{"segment cut behind the header", func(d *damaged) { d.resize(d.segment(0), fileHeaderSize) }, allOfFirst},
		{"segment empty", func(d *damaged) { d.resize(d.segment(0), 0) }, allOfFirst},
		{"segment gone", func(d *damaged) { d.remove(d.segment(0)) }, allOfFirst},
		{"last segment cut in the header", func(d *damaged) { d.truncate(last, 20) }, 1},
		{"last segment cut in the table", func(d *damaged) { d.truncate(last, recordHeaderSize+5) }, 1},
		{"last segment cut in the chunk", func(d *damaged) { d.truncate(last, 30_000) }, 1},
		{"last segment cut before the record", func(d *damaged) { d.truncate(last, 0) }, 1},
		{"last segment with garbage behind", func(d *damaged) { d.append(d.segment(last), garbage) }, 0},
		{"last segment with zeros behind", func(d *damaged) { d.append(d.segment(last), make([]byte, 100_000)) }, 0},
		{"sealed segment with garbage behind", func(d *damaged) { d.append(d.segment(0), garbage) }, 0},
		{"last segment shrunk and rotten", func(d *damaged) {
			d.truncate(last, 20)
			for n, l := range d.locs[:last] {
				if l.seg == d.locs[last].seg {
					d.flip(n, recordHeaderSize)
				}
			}
		}, allOfLast},
		{"record magic flipped", func(d *damaged) { d.flip(mid, 0) }, 1},
		{"record algorithm flipped", func(d *damaged) { d.flip(mid, 4) }, 1},
		{"record size flipped", func(d *damaged) { d.flip(mid, 9) }, 1},
		{"record digest flipped", func(d *damaged) { d.flip(mid, 20) }, 1},
		{"record checksum flipped", func(d *damaged) { d.flip(mid, 45) }, 1},
		{"first record flipped", func(d *damaged) { d.flip(0, 1) }, 1},
		{"table flipped", func(d *damaged) { d.flip(mid, recordHeaderSize+6) }, 1},
		{"first byte flipped", func(d *damaged) { d.flip(mid, dataOffset(damagedSize)) }, 1},
		{"last byte flipped", func(d *damaged) { d.flip(last, recordSize(damagedSize)-1) }, 1},
	} {
		for _, index := range []string{"kept", "lost"} {
			t.Run(tt.name+"/index="+index, func(t *testing.T) {
				d := newDamaged(t)
				tt.damage(d)
				if index == "lost" {
					d.remove(d.index())
				}
				switch tt.lost {
				case allOfFirst:
					d.check(d.sharing(0))
				case allOfLast:
					d.check(d.sharing(last))
				default:
					d.check(tt.lost)
				}
			})
		}
	}
}

// check opens the store three times, with a crash between, and puts new chunks.
func (d *damaged) check(lost int) {
	d.t.Helper()
	s := openTest(d.t, d.dir, Config{})
	if n := count(d.t, s, d.all); n != len(d.all)-lost {
		d.t.Errorf("%d of %d chunks are there, not %d", n, len(d.all), len(d.all)-lost)
	}
	more := put(d.t, s, 1000, 5, damagedSize)
	checkUsedAfterSync(d.t, s, d.dir)
	more = append(more, put(d.t, s, 2000, 5, damagedSize)...)
	crash(d.t, s)
	for range 2 {
		s = openTest(d.t, d.dir, Config{})
		if n := count(d.t, s, more); n != len(more) {
			d.t.Errorf("%d of %d chunks put after the damage are there", n, len(more))
		}
		if n := count(d.t, s, d.all); n != len(d.all)-lost {
			d.t.Errorf("after a restart %d of %d chunks are there, not %d", n, len(d.all), len(d.all)-lost)
		}
		closeTest(d.t, s)
	}
}

// TestLargestChunk checks that a chunk may be larger than a segment.
func TestLargestChunk(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Config{Limit: 64 << 20})
	all := put(t, s, 0, 2, chunk.MaxSize)
	all = append(all, put(t, s, 2, 1, 100)...)
	closeTest(t, s)
	for range 2 {
		s = openTest(t, dir, Config{Limit: 64 << 20})
		if n := count(t, s, all); n != len(all) {
			t.Errorf("%d of %d chunks are there", n, len(all))
		}
		crash(t, s)
		if err := os.Remove(filepath.Join(dir, indexName)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestVersions checks that files of another version are left alone.
func TestVersions(t *testing.T) {
	other := func(magic string) []byte {
		b := encodeFileHeader(magic, 1)
		b[8] = 2
		binary.LittleEndian.PutUint32(b[20:], checksum(b[:20]))
		return b
	}
	for _, tt := range []struct {
		name string
		file string
		text []byte
	}{
		{"segment", "00000001.seg", other(segmentMagic)},
		{"index", indexName, other(indexMagic)},
		{"meta", metaName, []byte(`{"format":"` + metaFormat + `","version":2}`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			s := openTest(t, dir, Config{})
			put(t, s, 0, 3, 1000)
			closeTest(t, s)
			path := filepath.Join(dir, tt.file)
			if err := os.WriteFile(path, tt.text, 0o600); err != nil {
				t.Fatal(err)
			}
			before := diskUse(t, dir)
			s, err := Open(dir, Config{Limit: testLimit})
			if err == nil {
				closeTest(t, s)
			}
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "version 2") {
				t.Errorf("Open returns %v", err)
			}
			if diskUse(t, dir) != before {
				t.Error("Open has changed files")
			}
		})
	}
}

func TestDamagedMeta(t *testing.T) {
	for _, text := range []string{"", "{", "[]", `{"format":"x"}`, `{"format":"` + metaFormat + `","version":1,"limit":-1}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, metaName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(dir, Config{}); err == nil {
			closeTest(t, s)
			t.Errorf("Open takes a %s of %q", metaName, text)
		}
	}
}

// TestPowerCut checks what is left when what was not synced is lost in part.
func TestPowerCut(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(rnd *rand.Rand, tail []byte) []byte
	}{
		{"all", func(_ *rand.Rand, tail []byte) []byte { return nil }},
		{"zeros", func(_ *rand.Rand, tail []byte) []byte { clear(tail); return tail }},
		{"some pages", func(rnd *rand.Rand, tail []byte) []byte {
			for i := 0; i < len(tail); i += 4096 {
				if rnd.IntN(10) == 0 {
					clear(tail[i:min(i+4096, len(tail))])
				}
			}
			return tail
		}},
		{"a part", func(rnd *rand.Rand, tail []byte) []byte { return tail[:rnd.IntN(len(tail))] }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			rnd := rand.New(rand.NewPCG(seed, 0))
			dir := t.TempDir()
			s := openTest(t, dir, Config{SyncEvery: time.Hour})
			synced := put(t, s, 0, 30, 50_000)
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			later := put(t, s, 1000, 30, 50_000)
			tails := make(map[string]int64)
			for _, g := range *s.segs.Load() {
				tails[g.f.Name()] = g.durable.Load()
			}
			crash(t, s)
			for path, off := range tails {
				p, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if int64(len(p)) == off {
					continue
				}
				p = append(p[:off:off], tt.lose(rnd, p[off:])...)
				if err := os.WriteFile(path, p, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s = openTest(t, dir, Config{})
			if n := count(t, s, synced); n != len(synced) {
				t.Errorf("%d of %d chunks are there that were synced", n, len(synced))
			}
			t.Logf("%d of %d chunks are there that were not", count(t, s, later), len(later))
			if st := s.Stats(); st.Corrupt != 0 {
				t.Errorf("%d chunks were believed that are corrupt", st.Corrupt)
			}
			if n := count(t, s, put(t, s, 1000, 30, 50_000)); n != 30 {
				t.Errorf("%d of 30 chunks are there after they were put again", n)
			}
			checkUsedAfterSync(t, s, dir)
		})
	}
}

// TestNestedRecord checks that a chunk that holds the bytes of a record does no
// harm when it is damaged itself.
func TestNestedRecord(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Config{})
	inner := storetest.Chunk(chunk.SHA256, 1, 3000)
	forged := appendRecordHead(nil, inner.Ref().ID, make([]byte, 200_000)) // claims what follows
	p := append(append(forged, appendRecordHead(nil, inner.Ref().ID, inner.Bytes())...), inner.Bytes()...)
	outer, err := chunk.Ref{ID: chunk.SHA256.Sum(p), Size: int32(len(p))}.Verify(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(outer); err != nil {
		t.Fatal(err)
	}
	l, _ := s.index.get(outer.Ref().ID)
	path := segmentPath(dir, l.seg)
	after := put(t, s, 10, 5, 60_000)
	closeTest(t, s)
	flip(t, path, int64(l.off))
	if err := os.Remove(filepath.Join(dir, indexName)); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, Config{})
	if n := count(t, s, append(after, inner)); n != 6 {
		t.Errorf("%d of 6 chunks are there", n)
	}
}
