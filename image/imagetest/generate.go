package imagetest

import (
	"archive/tar"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
)

// SmallFiles returns a layer of n small files, 100 to a directory below dir,
// with their directories. The contents are of 0 to 8 KiB, most of them short,
// and half of them compress.
func SmallFiles(dir string, n int) Layer {
	return Layer{Name: fmt.Sprintf("%d small files", n), Members: smallFiles(dir, n)}
}

func smallFiles(dir string, n int) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		if !yield(Dir(dir + "/")) {
			return
		}
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		sub := ""
		for i := range n {
			if i%100 == 0 {
				sub = fmt.Sprintf("%s/%05d/", dir, i/100)
				if !yield(Dir(sub)) {
					return
				}
			}
			size := rng.IntN(1 + 8192>>rng.IntN(8))
			data := Text(uint64(i), size)
			if i%2 == 0 {
				data = Random(uint64(i), size)
			}
			if !yield(File(fmt.Sprintf("%s%d", sub, i), data)) {
				return
			}
		}
	}
}

// LargeFile returns a layer with one file of the given name and size, whose
// contents depend on the size alone and don't compress. The contents are made
// as they are read, and never held in memory.
func LargeFile(name string, size int64) Layer {
	m := Member{
		Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: Epoch, Size: size},
		Body:   func() io.Reader { return LargeBody(size) },
	}
	return Layer{Name: fmt.Sprintf("file of %d bytes", size), Members: Members(m)}
}

// LargeBody returns the contents of the file that LargeFile makes.
func LargeBody(size int64) io.Reader {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(size >> (8 * i))
	}
	return io.LimitReader(rand.NewChaCha8(key), size)
}
