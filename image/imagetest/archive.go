package imagetest

import (
	"archive/tar"
	"io"
	"path"
	"slices"
	"strings"
	"syscall"

	"graze/image"
)

// ReadArchive reads an archive as any program does that knows nothing of tables of
// contents: its entries, without the files that such a table adds and without
// extents, and the contents of its files by their names.
func ReadArchive(r io.Reader) (entries []image.Entry, files map[string][]byte, err error) {
	files = make(map[string][]byte)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return entries, files, nil
		}
		if err != nil {
			return nil, nil, err
		}
		switch path.Clean(h.Name) {
		case "stargz.index.json", ".prefetch.landmark", ".no.prefetch.landmark":
			continue
		}
		entries = append(entries, entryOf(h))
		if h.Typeflag == tar.TypeReg {
			if files[h.Name], err = io.ReadAll(tr); err != nil {
				return nil, nil, err
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
	slices.SortFunc(e.Xattrs, func(a, b image.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return e
}
