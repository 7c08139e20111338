package targz

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"graze/image"
)

const (
	blockSize = 512
	// maxHeaders bounds the headers of one entry, in bytes.
	maxHeaders = 8 << 20

	paxXattr = "SCHILY.xattr."
	paxSize  = "size"
)

var (
	errHeaders  = errors.New("headers of an entry are too long")
	errSparse   = errors.New("sparse map does not fit the data")
	errType     = errors.New("entry type can't be unpacked")
	errNUL      = errors.New("NUL in a name")
	errDevice   = errors.New("device number out of range")
	errInternal = errors.New("archive reader lost its place")
)

// A fragment is a run of a file that is not a hole.
type fragment struct{ off, len int64 }

// An entry is a member of the archive and where its data lies: the bytes of its
// fragments, one after the other, from place at of the decoded layer on.
type entry struct {
	image.Entry
	at        int64
	fragments []fragment
	sparse    bool // the fragments are not just the whole file
}

// A tarReader reads an archive's entries by archive/tar, so that it takes for
// granted what other readers of layers do, and no more. The data of files goes
// straight to the cutter: when archive/tar comes to skip it, it is told that it
// did.
//
// Where the data of an entry begins is seen from how far archive/tar has read.
// It keeps the maps of sparse files to itself; they are parsed once more from
// the headers, which are kept for this.
type tarReader struct {
	c    *cutter
	tr   *tar.Reader
	skip int64 // bytes that archive/tar is to be told are skipped
	eof  bool  // the layer ended before the archive did

	headers []byte // what archive/tar has read since the last entry's data
	base    int64  // place in the decoded layer of headers[0]

	e entry
}

func newTarReader(c *cutter) *tarReader {
	t := &tarReader{c: c}
	t.tr = tar.NewReader(rawReader{t})
	return t
}

// A rawReader is what archive/tar reads from.
type rawReader struct{ t *tarReader }

func (r rawReader) Read(p []byte) (int, error) {
	t := r.t
	if t.skip > 0 {
		n := int(min(int64(len(p)), t.skip))
		t.skip -= int64(n)
		return n, nil
	}
	n, err := t.c.Read(p)
	if len(t.headers)+n > maxHeaders {
		return 0, errHeaders
	}
	t.headers = append(t.headers, p[:n]...)
	if err == io.EOF {
		t.eof = true
	}
	return n, err
}

// next returns the next entry, whose data has then been read. It is valid until
// the next call. After the last one it returns io.EOF.
func (t *tarReader) next() (*entry, error) {
	for {
		t.headers, t.base = t.headers[:0], t.c.src.pos()
		hdr, err := t.tr.Next()
		if err != nil {
			return nil, err
		}
		if t.skip != 0 {
			return nil, errInternal
		}
		// Global headers stand as entries of their own, and nobody applies them.
		if hdr.Typeflag != tar.TypeXGlobalHeader {
			if err := t.entry(hdr); err != nil {
				return nil, fmt.Errorf("entry %.200q: %w", hdr.Name, err)
			}
			return &t.e, nil
		}
	}
}

// entry sets t.e to what hdr says and reads the data.
func (t *tarReader) entry(hdr *tar.Header) error {
	e := &t.e
	*e = entry{fragments: e.fragments[:0]}
	e.Name = hdr.Name
	e.Mode = uint32(hdr.Mode & 0o7777)
	e.UID, e.GID = owner(hdr.Uid), owner(hdr.Gid)
	e.MTime = mtime(hdr.ModTime)
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		e.Mode |= syscall.S_IFREG
		e.Size = hdr.Size
		if err := t.data(hdr); err != nil {
			return err
		}
	case tar.TypeLink:
		// The kind does not matter: it is that of the other name.
		e.Hardlink, e.Link = true, hdr.Linkname
	case tar.TypeSymlink:
		e.Mode = syscall.S_IFLNK | 0o777 // no other mode can be set
		e.Link = hdr.Linkname
	case tar.TypeDir:
		e.Mode |= syscall.S_IFDIR
	case tar.TypeFifo:
		e.Mode |= syscall.S_IFIFO
	case tar.TypeChar, tar.TypeBlock:
		e.Mode |= syscall.S_IFCHR
		if hdr.Typeflag == tar.TypeBlock {
			e.Mode ^= syscall.S_IFCHR ^ syscall.S_IFBLK
		}
		if !isUint32(hdr.Devmajor) || !isUint32(hdr.Devminor) {
			return errDevice
		}
		e.Major, e.Minor = uint32(hdr.Devmajor), uint32(hdr.Devminor)
	default:
		return fmt.Errorf("%w: %q", errType, hdr.Typeflag)
	}
	if hasNUL(e.Name) || hasNUL(e.Link) {
		return errNUL
	}
	e.Xattrs = xattrs(hdr.PAXRecords)
	return nil
}

// owner returns a user or group number as chown(2) takes it. The kernel takes
// the one with all bits set for no change, which leaves root.
func owner(id int) uint32 {
	if uint32(id) == math.MaxUint32 {
		return 0
	}
	return uint32(id)
}

// mtime returns t as containerd sets it: what doesn't fit 64 bits of
// nanoseconds, or lies before 1970, becomes 0.
func mtime(t time.Time) image.Time {
	if t.Before(time.Unix(0, 0)) || t.After(time.Unix(0, math.MaxInt64)) {
		return image.Time{}
	}
	return image.Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
}

func isUint32(n int64) bool { return n >= 0 && n <= math.MaxUint32 }

// xattrs returns the extended attributes among an entry's PAX records, sorted by
// name. Those of the trusted namespace are left out, as containerd does: layers
// must not speak to overlayfs.
func xattrs(records map[string]string) (all []image.Xattr) {
	for _, key := range slices.Sorted(maps.Keys(records)) {
		name, ok := strings.CutPrefix(key, paxXattr)
		if ok && name != "" && !strings.HasPrefix(name, "trusted.") {
			all = append(all, image.Xattr{Name: name, Value: []byte(records[key])})
		}
	}
	return all
}

// data reads the data of a regular file.
func (t *tarReader) data(hdr *tar.Header) error {
	e := &t.e
	e.at = t.c.src.pos()
	stored, err := t.layout(hdr)
	if err != nil {
		return err
	}
	if stored == 0 {
		return nil
	}
	if err := t.c.file(e.Name, stored); err != nil {
		return err
	}
	t.skip = stored
	return nil
}

// layout sets the entry's fragments, and returns how many bytes of data follow.
func (t *tarReader) layout(hdr *tar.Header) (stored int64, err error) {
	e := &t.e
	if e.fragments, e.sparse, err = t.sparseMap(hdr, e.fragments); err != nil {
		return 0, err
	}
	if !e.sparse {
		if hdr.Size > 0 {
			e.fragments = append(e.fragments, fragment{0, hdr.Size})
		}
		return hdr.Size, nil
	}
	if stored, err = t.storedSize(hdr); err != nil {
		return 0, err
	}
	sum := int64(0)
	for _, f := range e.fragments {
		sum += f.len
	}
	if sum != stored {
		return 0, errSparse
	}
	return stored, nil
}
