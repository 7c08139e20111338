package chunkstore

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

// segmentBytes returns a segment with chunks of the given sizes.
func segmentBytes(sizes ...int) []byte {
	b := encodeFileHeader(segmentMagic, 1)
	for i, size := range sizes {
		v := storetest.Chunk(chunk.Algorithm(1+i%2), uint64(i), size)
		b = appendRecordHead(b, v.Ref().ID, v.Bytes())
		b = append(b, v.Bytes()...)
	}
	return b
}

// FuzzScan checks that a scan believes only records whose chunks have their
// digests, and that they can be read back.
func FuzzScan(f *testing.F) {
	f.Add(segmentBytes(1, 10, 4096, 5000), int64(fileHeaderSize))
	f.Add(segmentBytes(10, 10)[:150], int64(fileHeaderSize))
	f.Add(append(segmentBytes(100), segmentBytes(3)...), int64(0))
	f.Add(bytes.Repeat([]byte(recordMagic), 50), int64(3))
	f.Fuzz(func(t *testing.T, data []byte, from int64) {
		size := int64(len(data))
		if from < 0 || from > size {
			return
		}
		sc := scanRecords(bytes.NewReader(data), 1, from, size)
		if sc.err != nil {
			t.Fatalf("scan: %v", sc.err)
		}
		at := from
		for _, r := range sc.records {
			if int64(r.loc.off) < at {
				t.Fatalf("record at %d begins before %d", r.loc.off, at)
			}
			at = r.loc.end()
			p := data[at-int64(r.loc.size) : at]
			if _, err := (chunk.Ref{ID: r.id, Size: int32(len(p))}).Verify(p); err != nil {
				t.Fatalf("record at %d: %v", r.loc.off, err)
			}
		}
		if sc.end != at {
			t.Fatalf("scan ends at %d, its last record at %d", sc.end, at)
		}
		if !sc.damaged && at != size {
			t.Fatalf("scan finds no damage between %d and %d", at, size)
		}
	})
}

// FuzzEntries checks that the log's decoder takes only what its encoder makes.
func FuzzEntries(f *testing.F) {
	id := storetest.Chunk(chunk.BLAKE3, 1, 10).Ref().ID
	var seed []byte
	for _, k := range []kind{kindPut, kindDrop, kindMark} {
		e := entry{kind: k, id: id, loc: loc{seg: 1, off: 24, size: 10}}
		if k == kindMark {
			e.id, e.loc.size = chunk.ID{}, 0
		}
		seed = appendEntry(seed, e)
	}
	f.Add(seed)
	f.Add(seed[:100])
	f.Fuzz(func(t *testing.T, data []byte) {
		// A valid checksum lets the fuzzer past it.
		for i := 0; i+entrySize <= len(data); i += entrySize {
			e := data[i : i+entrySize]
			copy(e[48:], binary.LittleEndian.AppendUint32(nil, checksum(e[:48])))
		}
		var again []byte
		err := readEntries(bytes.NewReader(data), func(e entry) { again = appendEntry(again, e) })
		if !bytes.HasPrefix(data, again) {
			t.Fatalf("entries are encoded as %x, not as %x", again, data)
		}
		if err == nil && len(again) != len(data) {
			t.Fatalf("no error for %d bytes behind the entries", len(data)-len(again))
		}
	})
}

// FuzzIndexFile opens a store with an index of any bytes, and checks that it
// still has its chunks.
func FuzzIndexFile(f *testing.F) {
	head := encodeFileHeader(indexMagic, 9)
	id := storetest.Chunk(chunk.SHA256, 0, 500).Ref().ID
	for _, l := range []loc{{1, 24, 500}, {1, 25, 500}, {1, 1 << 31, 500}, {7, 24, 500}, {1 << 31, 24, 500}} {
		f.Add(appendEntry(bytes.Clone(head), entry{kindPut, id, l}))
		f.Add(appendEntry(bytes.Clone(head), entry{kindDrop, id, l}))
		f.Add(appendEntry(bytes.Clone(head), entry{kind: kindMark, loc: loc{seg: l.seg, off: l.off}}))
	}
	segment := segmentBytes(500, 600)
	f.Fuzz(func(t *testing.T, index []byte) {
		dir := t.TempDir()
		for name, b := range map[string][]byte{indexName: index, "00000001.seg": segment} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(dir, Config{Limit: MinLimit})
		if err != nil {
			return // another version
		}
		defer closeTest(t, s)
		for i, alg := range []chunk.Algorithm{chunk.SHA256, chunk.BLAKE3} {
			v := storetest.Chunk(alg, uint64(i), 500+100*i)
			if _, err := readsAs(s, v); err != nil {
				t.Error(err)
			}
			if err := s.Put(v); err != nil {
				t.Fatal(err)
			}
			if there, err := readsAs(s, v); !there || err != nil {
				t.Errorf("chunk is not there after Put: %v", err)
			}
		}
	})
}
