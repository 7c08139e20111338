package rafs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"graze/image/fixture"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A goldenChunk is a chunk as the golden listings have it.
type goldenChunk struct {
	Blob   uint32  `json:"blob"`
	Index  *uint32 `json:"index,omitempty"` // of version 5
	CI     *uint32 `json:"ci,omitempty"`    // of version 6
	COff   uint64  `json:"coff"`
	CSize  uint32  `json:"csize"`
	USize  uint32  `json:"usize"`
	Digest string  `json:"digest"`
	Flags  uint32  `json:"flags"`
	FOff   uint64  `json:"foff"`
}

// A goldenFile is a line of a golden listing.
type goldenFile struct {
	Path   string        `json:"path"`
	Mode   string        `json:"mode"`
	UID    uint32        `json:"uid"`
	GID    uint32        `json:"gid"`
	Size   int64         `json:"size"`
	NLink  uint32        `json:"nlink"`
	MTime  int64         `json:"mtime"`
	Ino    uint64        `json:"ino"`
	Target string        `json:"target"`
	Chunks []goldenChunk `json:"chunks"`
}

func golden(t *testing.T, name string) map[string]goldenFile {
	t.Helper()
	files := make(map[string]goldenFile)
	lines := bufio.NewScanner(bytes.NewReader(fixture.Read(t, "golden/"+name)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var f goldenFile
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			t.Fatal(err)
		}
		files[f.Path] = f
	}
	return files
}

// listing lists a bootstrap in the form of the golden files.
func listing(t testing.TB, b *Bootstrap) map[string]goldenFile {
	t.Helper()
	files := make(map[string]goldenFile)
	err := b.walk(func(path string, in *inode, _ string) error {
		f := goldenFile{
			Path: "/" + strings.TrimPrefix(path, "."), Mode: fmt.Sprintf("0o%o", in.mode), UID: in.uid, GID: in.gid,
			Size: in.size, NLink: in.nlink, MTime: in.mtime.Sec, Ino: in.ino, Target: in.link,
		}
		if path != "." {
			f.Path = "/" + path
		}
		for i := range in.chunks {
			c, err := b.tree.chunk(in, i)
			if err != nil {
				return err
			}
			row := b.tree.record(&c)
			if row == nil {
				return fmt.Errorf("%s: chunk %d has no record", path, i)
			}
			r := decodeRecord(row)
			one := goldenChunk{Index: &c.index, FOff: uint64(c.off)}
			if b.version == 6 {
				one = goldenChunk{CI: &c.index}
				if r.usize != c.size {
					t.Errorf("%s: chunk %d has %d bytes, its record says %d", path, i, c.size, r.usize)
				}
			}
			one.Blob, one.COff, one.CSize, one.USize = c.blob, r.coff, r.csize, r.usize
			one.Digest = hex.EncodeToString(r.digest[:])
			if b.version == 5 {
				one.Flags = r.flags
			}
			f.Chunks = append(f.Chunks, one)
		}
		files[f.Path] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// bootstraps are the real ones, and the listings of what they must be read as.
var bootstraps = map[string]string{
	"nydus/tests/texture/repeatable/sha256-nocompress-repeatable":    "v5-sha256-nocompress.jsonl",
	"nydus/tests/texture/repeatable/blake3-lz4_block-non_repeatable": "v5-blake3-nocompress.jsonl",
	"nydus/tests/texture/bootstrap/rafs-v6-2.2.boot":                 "v6-2.2.jsonl",
	"extracted/v6-inline-from-2fa78cad.boot":                         "v6-inline-2fa78cad.jsonl",
	"extracted/v5-736032.boot":                                       "v5-736032.jsonl",
	"extracted/v6-643072.boot":                                       "v6-643072.jsonl",
}

func TestGolden(t *testing.T) {
	for boot, list := range bootstraps {
		t.Run(list, func(t *testing.T) {
			b, err := Parse(fixture.Read(t, boot))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(golden(t, list), listing(t, b), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("want, got: %.4000s", diff)
			}
		})
	}
}

// TestTwins compares one real image in both versions.
func TestTwins(t *testing.T) {
	trees := make([]map[string]goldenFile, 2)
	for i, name := range []string{"extracted/v5-736032.boot", "extracted/v6-643072.boot"} {
		b, err := Parse(fixture.Read(t, name))
		if err != nil {
			t.Fatal(err)
		}
		trees[i] = listing(t, b)
		for path, f := range trees[i] {
			// What differs by nature: numbers, places in the blob, and what
			// directories have for a size.
			f.Ino = 0
			if strings.HasPrefix(f.Mode, "0o4") {
				f.Size, f.NLink = 0, 0
			}
			for c := range f.Chunks {
				f.Chunks[c] = goldenChunk{USize: f.Chunks[c].USize, Digest: f.Chunks[c].Digest}
			}
			trees[i][path] = f
		}
	}
	if diff := cmp.Diff(trees[0], trees[1], cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("version 5, version 6: %.4000s", diff)
	}
}

// TestNegative feeds in what is no bootstrap, or one from before the formats were
// settled.
func TestNegative(t *testing.T) {
	old := fixture.Read(t, "nydus/tests/texture/bootstrap/nydusd_daemon_test_bootstrap")
	b, err := Parse(old)
	if err == nil {
		err = b.walk(func(string, *inode, string) error { return nil })
	}
	if err == nil {
		t.Error("a bootstrap of another layout is accepted")
	}
	for _, name := range []string{"invalid.tar.gz", "invalid-bootstrap-file-size-133513.tar.gz"} {
		zr, err := gzip.NewReader(bytes.NewReader(fixture.Read(t, "snapshotter/pkg/filesystem/testdata/"+name)))
		if err != nil {
			t.Fatal(err)
		}
		for tr := tar.NewReader(zr); ; {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			p, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Parse(p); !errors.Is(err, ErrNotRAFS) {
				t.Errorf("%s, %s: %v", name, h.Name, err)
			}
		}
	}
}

// TestHardLinks checks that links are found in both ways of writing them.
func TestHardLinks(t *testing.T) {
	for boot, want := range map[string]int{
		"nydus/tests/texture/repeatable/sha256-nocompress-repeatable": 2,
		"extracted/v5-736032.boot":                                    -1,
		"extracted/v6-643072.boot":                                    -1,
	} {
		b, err := Parse(fixture.Read(t, boot))
		if err != nil {
			t.Fatal(err)
		}
		links := 0
		names := make(map[string]uint32)
		wants := make(map[string]uint32)
		err = b.walk(func(path string, in *inode, first string) error {
			if first != "" {
				links++
				names[first]++
			} else if in.nlink > 1 && in.mode&syscall.S_IFMT != syscall.S_IFDIR {
				names[path]++
				wants[path] = in.nlink
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wants, names); diff != "" {
			t.Errorf("%s: counts of links, names: %s", boot, diff)
		}
		if links == 0 || want >= 0 && links != want {
			t.Errorf("%s: %d links, want %d", boot, links, want)
		}
	}
}
