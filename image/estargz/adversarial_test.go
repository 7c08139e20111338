package estargz

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	writer "github.com/containerd/stargz-snapshotter/estargz"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"graze/chunk"
	"graze/image"
	"graze/image/imagetest"
)

// TestAdversarial opens odd layers and compares the entries, and the files' contents,
// with the archive in the layer.
func TestAdversarial(t *testing.T) {
	for _, e := range []imagetest.Encoding{
		imagetest.EStargz("default"),
		imagetest.EStargz("shared members", writer.WithMinChunkSize(64<<10), writer.WithChunkSize(100<<10)),
	} {
		for _, l := range imagetest.Adversarial() {
			t.Run(e.Name+"/"+l.Name, func(t *testing.T) {
				b, err := e.Encode(l)
				if err != nil {
					t.Fatal(err)
				}
				r := &ranger{p: b.Data}
				got, err := Open(t.Context(), r, Config{Blob: chunk.Blob(b.Digest), Annotations: b.Annotations})
				if err != nil {
					t.Fatal(err)
				}
				checkTable(t, got)
				want, files := readArchive(t, b.Data)
				ignore := cmpopts.IgnoreFields(image.Entry{}, "Extents")
				if diff := cmp.Diff(want, collect(t, got), ignore, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("entries (-want +got):\n%s", diff)
				}
				for name, data := range contents(t, b.Data, got) {
					if !bytes.Equal(data, files[name]) {
						t.Errorf("%q has other contents", name)
					}
				}
			})
		}
	}
}

// readArchive reads the archive in blob as any program does that knows nothing
// of eStargz.
func readArchive(t *testing.T, blob []byte) (entries []image.Entry, files map[string][]byte) {
	t.Helper()
	zr, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	files = make(map[string][]byte)
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return entries, files
		}
		if err != nil {
			t.Fatal(err)
		}
		switch path.Clean(h.Name) {
		case tocName, prefetchLandmark, noPrefetchLandmark:
			continue
		}
		entries = append(entries, entryOf(h))
		if h.Typeflag == tar.TypeReg {
			if files[h.Name], err = io.ReadAll(tr); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// entryOf returns the entry that stands for h.
func entryOf(h *tar.Header) image.Entry {
	e := image.Entry{Name: h.Name, Link: h.Linkname}
	if h.Typeflag == tar.TypeLink {
		e.Hardlink = true
		return e
	}
	e.Mode = uint32(h.Mode&0o7777) | map[byte]uint32{
		tar.TypeReg: syscall.S_IFREG, tar.TypeDir: syscall.S_IFDIR, tar.TypeSymlink: syscall.S_IFLNK,
		tar.TypeChar: syscall.S_IFCHR, tar.TypeBlock: syscall.S_IFBLK, tar.TypeFifo: syscall.S_IFIFO,
	}[h.Typeflag]
	e.UID, e.GID, e.Size = uint32(h.Uid), uint32(h.Gid), h.Size
	e.MTime = image.Time{Sec: h.ModTime.Unix(), Nsec: uint32(h.ModTime.Nanosecond())}
	e.Major, e.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
			e.Xattrs = append(e.Xattrs, image.Xattr{Name: name, Value: []byte(value)})
		}
	}
	sortXattrs(e.Xattrs)
	return e
}

func sortXattrs(list []image.Xattr) {
	slices.SortFunc(list, func(a, b image.Xattr) int { return strings.Compare(a.Name, b.Name) })
}
