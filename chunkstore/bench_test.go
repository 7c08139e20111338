package chunkstore

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"graze/chunk"
	"graze/chunkstore/storetest"
)

const benchSize = 256 << 10

func openBench(b *testing.B, dir string, limit int64) *Store {
	b.Helper()
	s, err := Open(dir, Config{Limit: limit})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { closeTest(b, s) })
	return s
}

// BenchmarkPut stores 256 KiB chunks, evicting all the time once the store is
// full; file=plain writes the same to a file.
func BenchmarkPut(b *testing.B) {
	const limit = 1 << 30
	v := storetest.Chunk(chunk.SHA256, 0, benchSize)
	b.Run("file=store", func(b *testing.B) {
		s := openBench(b, b.TempDir(), limit)
		b.SetBytes(benchSize)
		b.ReportAllocs()
		var sum [chunk.SumSize]byte
		for n := uint64(0); b.Loop(); n++ {
			// The name of each chunk differs, at no cost of hashing.
			binary.LittleEndian.PutUint64(sum[:], n*0x9e3779b97f4a7c15)
			id, err := chunk.NewID(chunk.SHA256, sum)
			if err != nil {
				b.Fatal(err)
			}
			if err := s.put(laneFresh, id, v.Bytes()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("file=plain", func(b *testing.B) {
		f := createBench(b)
		b.SetBytes(benchSize)
		b.ReportAllocs()
		for off := int64(0); b.Loop(); off += benchSize {
			if off >= limit {
				off = 0
				if err := f.Truncate(0); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := f.WriteAt(v.Bytes(), off); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("file=store/present", func(b *testing.B) {
		s := openBench(b, b.TempDir(), limit)
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Put(v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func createBench(b *testing.B) *os.File {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "plain"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return f
}

// BenchmarkReadAt reads chunks in the page cache at random places, from the
// store and, with file=plain, from a file of the same size.
func BenchmarkReadAt(b *testing.B) {
	const chunks, size = 64, 1 << 20
	s := openBench(b, b.TempDir(), 1<<30)
	plain := createBench(b)
	var ids []chunk.ID
	for n := range chunks {
		v := storetest.Chunk(chunk.BLAKE3, uint64(n), size)
		if err := s.Put(v); err != nil {
			b.Fatal(err)
		}
		if _, err := plain.WriteAt(v.Bytes(), int64(n)*size); err != nil {
			b.Fatal(err)
		}
		ids = append(ids, v.Ref().ID)
	}
	for _, file := range []struct {
		name string
		read func(n int, p []byte, off int64) error
	}{
		{"store", func(n int, p []byte, off int64) error { return s.ReadAt(ids[n], p, off) }},
		{"plain", func(n int, p []byte, off int64) error {
			_, err := plain.ReadAt(p, int64(n)*size+off)
			return err
		}},
	} {
		for _, n := range []int{4 << 10, 128 << 10, 1 << 20} {
			name := fmt.Sprintf("size=%dKiB/file=%s", n>>10, file.name)
			b.Run(name, func(b *testing.B) {
				p := make([]byte, n)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					off := rand.Int64N(size-int64(n)+1) &^ (blockSize - 1)
					if err := file.read(rand.IntN(chunks), p, off); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(name+"/parallel", func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					p := make([]byte, n)
					for pb.Next() {
						off := rand.Int64N(size-int64(n)+1) &^ (blockSize - 1)
						if err := file.read(rand.IntN(chunks), p, off); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

// BenchmarkSection opens and closes the section of a chunk in the page cache.
func BenchmarkSection(b *testing.B) {
	s := openBench(b, b.TempDir(), 1<<30)
	v := storetest.Chunk(chunk.SHA256, 0, benchSize)
	if err := s.Put(v); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		sec, err := s.Section(v.Ref().ID)
		if err != nil {
			b.Fatal(err)
		}
		if err := sec.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen opens a store of 300,000 chunks, with its index log and, for
// log=lost, from the segments alone.
func BenchmarkOpen(b *testing.B) {
	const chunks, size = 300_000, 400
	dir := b.TempDir()
	s := openBench(b, dir, 1<<30)
	for n := range chunks {
		if err := s.Put(storetest.Chunk(chunk.SHA256, uint64(n), size)); err != nil {
			b.Fatal(err)
		}
	}
	closeTest(b, s)
	for _, log := range []string{"kept", "lost"} {
		b.Run("log="+log, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if log == "lost" {
					if err := os.Remove(filepath.Join(dir, indexName)); err != nil {
						b.Fatal(err)
					}
				}
				s, err := Open(dir, Config{Limit: 1 << 30})
				if err != nil {
					b.Fatal(err)
				}
				if n := s.Stats().Chunks; n != chunks {
					b.Fatalf("%d chunks are there", n)
				}
				b.StopTimer()
				closeTest(b, s)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkScrub checks all chunks of a store by their digests.
func BenchmarkScrub(b *testing.B) {
	for _, alg := range []chunk.Algorithm{chunk.SHA256, chunk.BLAKE3} {
		b.Run("digest="+alg.String(), func(b *testing.B) {
			s := openBench(b, b.TempDir(), 1<<30)
			const chunks = 256
			for n := range chunks {
				if err := s.Put(storetest.Chunk(alg, uint64(n), benchSize)); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(chunks * benchSize)
			b.ReportAllocs()
			for b.Loop() {
				if rep, err := s.Scrub(b.Context(), ScrubOptions{}); err != nil || rep.Chunks != chunks {
					b.Fatal(rep, err)
				}
			}
		})
	}
}
