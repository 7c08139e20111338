package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"

	"graze/image/imagetest"
)

// wholeEnv makes the tests of large layers use the sizes that they are about,
// 3 GiB, rather than a sixteenth of them.
const wholeEnv = "GRAZE_WHOLE"

// hex is a reader of hexadecimal digits: contents that compress to about half,
// in blocks of Huffman codes, as programs do.
type hex struct{ rand *rand.ChaCha8 }

func (h hex) Read(p []byte) (int, error) {
	n, err := h.rand.Read(p)
	for i, c := range p[:n] {
		p[i] = "0123456789abcdef"[c&15]
	}
	return n, err
}

// hexFile returns a large file. Its contents depend on its name and size, and
// are made as they are read.
func hexFile(name string, size int64) imagetest.Member {
	m := imagetest.File(name, nil)
	m.Header.Size = size
	m.Body = func() io.Reader {
		var seed [32]byte
		copy(seed[:], name)
		return io.LimitReader(hex{rand.NewChaCha8(seed)}, size)
	}
	return m
}

// concat returns one sequence after the other.
func concat(parts ...iter.Seq[imagetest.Member]) iter.Seq[imagetest.Member] {
	return func(yield func(imagetest.Member) bool) {
		for _, part := range parts {
			for m := range part {
				if !yield(m) {
					return
				}
			}
		}
	}
}

// pushFile encodes a layer to a file, pushes an image that consists of it, and
// publishes its index. It returns the reference.
func pushFile(t testing.TB, reg *testRegistry, name string, l imagetest.Layer, e imagetest.Encoding) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "layer")
	blob, err := e.EncodeFile(file, l)
	if err != nil {
		t.Fatal(err)
	}
	img, err := imagetest.NewImage([]imagetest.Blob{blob})
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.push(t, img, name+":1")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	return ref
}

// TestOneByte reads one byte of a layer of 3 GiB: of a file of 1 GiB, and of a
// small one. What the registry sends for it, once the image is mounted, is 2 MiB
// at most, with what is needed of the checkpoints. A layer whose own format has
// larger chunks, as eStargz has where nothing else is asked for, can't be
// verified with less than one of them.
func TestOneByte(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	size := int64(1<<30) / 16
	if os.Getenv(wholeEnv) != "" {
		size *= 16
	}
	layer := imagetest.Layer{Name: "large", Members: concat(
		imagetest.Members(hexFile("first", size)),
		imagetest.SmallFiles("small", 1000).Members,
		imagetest.Members(hexFile("large", size), imagetest.File("little", []byte("little\n")), hexFile("last", size)),
	)}
	for _, row := range []struct {
		name  string
		e     imagetest.Encoding
		limit int64
	}{
		{"gzip", imagetest.Gzip(gzip.BestSpeed), 2 << 20},
		{"zstd", imagetest.MultiFrameZstd(1 << 20), 2 << 20},
		{"plain", imagetest.Plain(), 2 << 20},
		{"estargz", imagetest.EStargz("estargz", estargz.WithChunkSize(1<<20)), 2 << 20},
		{"estargz-4mib", imagetest.EStargz("estargz"), 4 << 20},
	} {
		t.Run(row.name, func(t *testing.T) {
			reg := startRegistry(t)
			ref := pushFile(t, reg, row.name, layer, row.e)
			for _, at := range []struct {
				name string
				off  int64
			}{{"large", 0}, {"large", size/2 + 12345}, {"large", size - 1}, {"little", 3}} {
				m := mount(t, ref, "--state", t.TempDir(), "--index", "require")
				before := reg.blobBytes(t)
				readByte(t, filepath.Join(m.dir, at.name), at.off)
				m.stop(t)
				after := reg.blobBytes(t)
				bytes, requests := after.Bytes-before.Bytes, after.Requests-before.Requests
				t.Logf("byte %d of %s: %d bytes in %d requests", at.off, at.name, bytes, requests)
				if bytes == 0 || bytes > row.limit {
					t.Errorf("byte %d of %s took %d bytes of the registry, not 1 to %d", at.off, at.name, bytes, row.limit)
				}
			}
		})
	}
}

// readByte reads one byte of a file.
func readByte(t testing.TB, name string, off int64) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(make([]byte, 1), off); err != nil {
		t.Fatal(err)
	}
}

// manyFiles is how many files the tests and benchmarks of small files have.
const manyFiles = 100_000

// TestManyFiles bounds the memory of a process that serves 100,000 small files,
// all of whose names and attributes were asked for, as it is built for use: the race
// detector's memory is not what the test is about.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	needTools(t, "go", "find")
	binary, err := buildPlain()
	if err != nil {
		t.Fatal(err)
	}
	reg := startRegistry(t)
	ref := pushFile(t, reg, "many", imagetest.SmallFiles("files", manyFiles), imagetest.Gzip(gzip.BestSpeed))
	state := t.TempDir()
	for _, which := range []string{"cold", "warm"} {
		m, err := mountWith(t, binary, ref, "--state", state, "--index", "require")
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := find(t, m.dir, "-type", "f", "-printf", `%s\n`); n != manyFiles {
			t.Errorf("find prints %d lines, not %d", n, manyFiles)
		}
		peak := procStatus(t, m.cmd.Process.Pid, "VmHWM")
		t.Logf("%s: mounted in %d ms, peak memory %d KiB", which, m.ready.Milliseconds, peak>>10)
		if limit := int64(150 << 20); peak > limit {
			t.Errorf("%s: the process had %d bytes of memory, more than %d", which, peak, limit)
		}
		m.stop(t)
	}
}

// find runs find(1) on a folder and returns how many lines it prints, and its
// processor time.
func find(t testing.TB, dir string, args ...string) (lines int, cpu time.Duration) {
	t.Helper()
	cmd := exec.Command("find", append([]string{dir}, args...)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 64<<10); ; {
		n, err := stdout.Read(buf)
		lines += bytes.Count(buf[:n], []byte{'\n'})
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal("find: ", err)
	}
	return lines, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// procStatus returns a field of /proc/PID/status that is in kB, in bytes.
func procStatus(t testing.TB, pid int, field string) int64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if v, ok := strings.CutPrefix(sc.Text(), field+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("/proc/%d/status has no %s", pid, field)
	return 0
}
