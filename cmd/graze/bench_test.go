package main

import (
	"archive/tar"
	stdgzip "compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

	"graze/image/imagetest"
)

// BenchmarkColdSequential reads all files of a layer that is in the registry
// only. The pipeline is the least that must be done without graze: the blob is
// downloaded, checked, decompressed, unpacked and read, all at the same time but
// for the reading. Neither side finds anything on the disk.
func BenchmarkColdSequential(b *testing.B) {
	needFUSE(b)
	for _, layer := range []string{"large", "small", "debian"} {
		b.Run("layer="+layer, func(b *testing.B) {
			reg := startRegistry(b)
			ref := pushBench(b, reg, layer)
			state, emptyState := emptyDir(b)
			dir, emptyTree := emptyDir(b)
			counts := make(tally)
			var size int64
			compare(b, side{
				name:    "graze",
				prepare: func() { emptyState(); dropCaches(b) },
				run: func() time.Duration {
					before, begin := reg.traffic(b), time.Now()
					m := mount(b, ref, "--state", state, "--index", "require")
					size = readTree(b, m.dir)
					took := time.Since(begin)
					counts.process(b, m)
					m.stop(b)
					counts.traffic(b, reg, before)
					return took
				},
			}, side{
				name:    "pipeline",
				prepare: func() { emptyTree(); dropCaches(b) },
				run: func() time.Duration {
					for _, digest := range layerDigests(b, ref) {
						unpack(b, reg, ref, digest, dir)
					}
					if n := readTree(b, dir); n != size {
						b.Errorf("%d bytes were unpacked, and %d read through the mount", n, size)
					}
					return 0
				},
			})
			counts.report(b)
			b.ReportMetric(float64(size)/1e6, "MB")
		})
	}
}

// pushBench pushes an image of one kind of files, and its index.
func pushBench(b *testing.B, reg *testRegistry, kind string) string {
	b.Helper()
	e := imagetest.Gzip(stdgzip.BestSpeed)
	switch kind {
	case "debian":
		return pushLayout(b, reg, "debian-python")
	case "large":
		return pushFile(b, reg, kind, imagetest.Layer{Name: kind, Members: imagetest.Members(hexFile("large", 256<<20))}, e)
	default:
		return pushFile(b, reg, kind, imagetest.SmallFiles("files", manyFiles/5), e)
	}
}

// layerDigests returns the digests of an image's layers.
func layerDigests(b *testing.B, ref string) (digests []string) {
	b.Helper()
	m := mount(b, ref, "--state", b.TempDir())
	m.stop(b)
	for _, l := range m.ready.Layers {
		digests = append(digests, l.Digest)
	}
	return digests
}

// unpack downloads a layer and unpacks its directories, files and links to dir.
func unpack(b *testing.B, reg *testRegistry, ref, digest, dir string) {
	b.Helper()
	name, _, _ := strings.Cut(strings.TrimPrefix(ref, reg.addr+"/"), ":")
	resp, err := http.Get("http://" + reg.addr + "/v2/" + name + "/blobs/" + digest)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	sum := sha256.New()
	body := io.TeeReader(resp.Body, sum)
	zr, err := gzip.NewReader(body)
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = unpackMember(dir, h, tr, buf)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if _, err := io.Copy(io.Discard, zr); err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		b.Fatal(err)
	}
	if got := fmt.Sprintf("sha256:%x", sum.Sum(nil)); got != digest {
		b.Fatalf("the registry sent %s for %s", got, digest)
	}
}

func unpackMember(dir string, h *tar.Header, r io.Reader, buf []byte) error {
	name := filepath.Join(dir, h.Name)
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(name, 0o755)
	case tar.TypeSymlink, tar.TypeLink, tar.TypeReg:
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return os.Link(filepath.Join(dir, h.Linkname), name)
	case tar.TypeReg:
		base := filepath.Base(name)
		if gone, ok := strings.CutPrefix(base, ".wh."); ok {
			return os.RemoveAll(filepath.Join(filepath.Dir(name), gone))
		}
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyBuffer(struct{ io.Writer }{f}, r, buf)
		return err
	}
	return nil
}

// readTree reads all regular files below dir and returns how many bytes they
// have.
func readTree(b *testing.B, dir string) (size int64) {
	b.Helper()
	buf := make([]byte, 1<<20)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf)
		size += n
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return size
}

// BenchmarkWarm reads a file of 256 MiB that the node's store has, against the
// same file on the disk's own file system: in sequence, and 4 KiB at random
// places. With cache=dropped the kernel has nothing of it in memory at first,
// with cache=full all.
func BenchmarkWarm(b *testing.B) {
	needFUSE(b)
	const size = 256 << 20
	reg := startRegistry(b)
	m := mount(b, pushBench(b, reg, "large"), "--state", b.TempDir(), "--index", "require")
	lazy, plain := filepath.Join(m.dir, "large"), filepath.Join(b.TempDir(), "large")
	copyLarge(b, plain, lazy)
	for _, access := range []struct {
		name string
		read func(name string)
	}{
		{"sequential", func(name string) { readTree(b, name) }},
		{"random4K", func(name string) { readRandom(b, name, size, 4000) }},
	} {
		for _, cache := range []string{"dropped", "full"} {
			b.Run("access="+access.name+"/cache="+cache, func(b *testing.B) {
				of := func(name, file string) side {
					return side{name, func() {
						if cache == "dropped" {
							dropCaches(b)
						} else {
							readTree(b, file)
						}
					}, func() time.Duration { access.read(file); return 0 }}
				}
				compare(b, of("graze", lazy), of("ext4", plain))
			})
		}
	}
}

func copyLarge(b *testing.B, to, from string) {
	b.Helper()
	r, err := os.Open(from)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	w, err := os.Create(to)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(w, r); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

// readRandom makes n reads of 4 KiB at random places, the same each time.
func readRandom(b *testing.B, name string, size int64, n int) {
	b.Helper()
	f, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	p := make([]byte, 4<<10)
	for range n {
		if _, err := f.ReadAt(p, rng.Int64N(size>>12)<<12); err != nil {
			b.Fatal(err)
		}
	}
}
