package fusefs

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// benchSize is the size of the file that is read.
const benchSize = 256 << 20

// benchFile makes a file on disk, which the system keeps in its page cache, and
// a tree whose one file is read from it, as chunks are from a store.
func benchFile(b *testing.B) (tree *memTree, disk string) {
	b.Helper()
	needFUSE(b)
	disk = filepath.Join(b.TempDir(), "file")
	if err := os.WriteFile(disk, pattern(benchSize), 0o644); err != nil {
		b.Fatal(err)
	}
	store, err := os.Open(disk)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	tree = newTree()
	tree.file("/file", 0o644, nil).Size = benchSize
	tree.readAt = func(_ context.Context, _ uint64, p []byte, off int64) (int, error) {
		return store.ReadAt(p, off)
	}
	return tree, disk
}

// BenchmarkRead reads through the mount what the server has in memory: "asked"
// when the kernel must ask for each page, "kept" when it has them.
func BenchmarkRead(b *testing.B) {
	tree, disk := benchFile(b)
	m := serve(b, tree)
	for _, tt := range []struct {
		name, file string
		keep       bool
	}{
		{"fuse/asked", m.path("file"), false},
		{"fuse/kept", m.path("file"), true},
		{"disk/kept", disk, true},
	} {
		f, err := os.Open(tt.file)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if tt.keep {
			if _, err := io.Copy(io.Discard, f); err != nil {
				b.Fatal(err)
			}
		}
		b.Run("sequential/"+tt.name, func(b *testing.B) { readSequential(b, f, tt.keep) })
		b.Run("random4KiB/"+tt.name, func(b *testing.B) { readRandom(b, f, tt.keep) })
	}
}

func readSequential(b *testing.B, f *os.File, keep bool) {
	buf := make([]byte, 1<<20)
	b.SetBytes(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		if !keep {
			forget(b, f)
		}
		for off := int64(0); off < benchSize; off += int64(len(buf)) {
			if _, err := unix.Pread(int(f.Fd()), buf, off); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// readRandom reads pages that are 64 KiB or more apart from each other.
func readRandom(b *testing.B, f *os.File, keep bool) {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		b.Fatal(err)
	}
	defer unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_NORMAL)
	pages := rand.New(rand.NewPCG(1, 2)).Perm(benchSize / (64 << 10))
	buf := make([]byte, 4096)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i%len(pages) == 0 && !keep {
			b.StopTimer()
			forget(b, f)
			b.StartTimer()
		}
		if _, err := unix.Pread(int(f.Fd()), buf, int64(pages[i%len(pages)])*(64<<10)); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// forget makes the kernel drop the pages of a file.
func forget(b *testing.B, f *os.File) {
	b.Helper()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		b.Fatal(err)
	}
}

// The tree of the benchmarks of metadata.
const (
	benchDirs  = 100
	benchFiles = 1000 // in each directory
)

func benchTree(b *testing.B) (tree *memTree, disk string) {
	b.Helper()
	needFUSE(b)
	tree, disk = newTree(), b.TempDir()
	for d := range benchDirs {
		dir := fmt.Sprintf("/dir%03d", d)
		tree.dir(dir)
		if err := os.Mkdir(disk+dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for f := range benchFiles {
			name := fmt.Sprintf("%s/file%04d", dir, f)
			tree.file(name, 0o644, nil)
			if err := os.WriteFile(disk+name, nil, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	return tree, disk
}

// BenchmarkMetadata looks at 100,000 files: "asked" on a new mount, "kept" when
// the kernel has seen them before.
func BenchmarkMetadata(b *testing.B) {
	tree, disk := benchTree(b)
	for name, op := range map[string]func(b *testing.B, root string){
		"lstat": lstatAll, "walk": walkAll, "readdir": readdirAll,
	} {
		b.Run(name+"/fuse/asked", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				m := serve(b, tree)
				b.StartTimer()
				op(b, m.dir)
				b.StopTimer()
				if err := m.stop(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			perFile(b)
		})
		m := serve(b, tree)
		for kind, root := range map[string]string{"fuse": m.dir, "disk": disk} {
			b.Run(name+"/"+kind+"/kept", func(b *testing.B) {
				op(b, root)
				for b.Loop() {
					op(b, root)
				}
				perFile(b)
			})
		}
	}
}

// perFile reports the time for one file of the tree.
func perFile(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(benchDirs*benchFiles), "ns/file")
}

func lstatAll(b *testing.B, root string) {
	var st unix.Stat_t
	for d := range benchDirs {
		for f := range benchFiles {
			if err := unix.Lstat(fmt.Sprintf("%s/dir%03d/file%04d", root, d, f), &st); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// walkAll reads all directories and looks at each file in them.
func walkAll(b *testing.B, root string) {
	n := 0
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		n++
		_, err = e.Info()
		return err
	})
	if err != nil || n != 1+benchDirs+benchDirs*benchFiles {
		b.Fatalf("%d files, %v", n, err)
	}
}

func readdirAll(b *testing.B, root string) {
	for d := range benchDirs {
		f, err := os.Open(fmt.Sprintf("%s/dir%03d", root, d))
		if err != nil {
			b.Fatal(err)
		}
		names, err := f.Readdirnames(-1)
		f.Close()
		if err != nil || len(names) != benchFiles {
			b.Fatalf("%d names, %v", len(names), err)
		}
	}
}
