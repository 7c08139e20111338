package imagetest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"time"
)

// A Layer is one layer of an image, as the members of its archive.
type Layer struct {
	// Name says what the layer is about.
	Name string
	// Members yields the archive's members in order. It can be ranged over more
	// than once.
	Members iter.Seq[Member]
	// Trailer stands behind the blocks that end the archive.
	Trailer []byte
	// Unended leaves out the blocks that end the archive.
	Unended bool
}

// A Member is one member of an archive.
type Member struct {
	// Header describes the member. Its Size must be set if Body is.
	Header tar.Header
	// Body returns the contents of a regular file; nil for none.
	Body func() io.Reader
	// Raw is written as it is, in place of the member; it is whole 512-byte
	// blocks. It is for what archive/tar can't write.
	Raw []byte
}

// WriteTo writes the layer's archive, uncompressed. It implements
// io.WriterTo.
func (l Layer) WriteTo(w io.Writer) (int64, error) {
	count := &countWriter{w: w}
	err := l.write(count)
	if err != nil {
		err = fmt.Errorf("layer %s: %w", l.Name, err)
	}
	return count.n, err
}

func (l Layer) write(w io.Writer) error {
	tw := tar.NewWriter(w)
	for m := range l.Members {
		if err := writeMember(w, tw, m); err != nil {
			return fmt.Errorf("member %.80q: %w", m.Header.Name, err)
		}
	}
	end := tw.Close
	if l.Unended {
		end = tw.Flush
	}
	if err := end(); err != nil {
		return err
	}
	_, err := w.Write(l.Trailer)
	return err
}

func writeMember(w io.Writer, tw *tar.Writer, m Member) error {
	if m.Raw != nil {
		if err := tw.Flush(); err != nil { // completes the last member's block
			return err
		}
		_, err := w.Write(m.Raw)
		return err
	}
	if err := tw.WriteHeader(&m.Header); err != nil {
		return err
	}
	if m.Body == nil {
		return nil
	}
	_, err := io.Copy(tw, m.Body())
	return err
}

// Tar returns the layer's archive, uncompressed.
func (l Layer) Tar() ([]byte, error) {
	var buf bytes.Buffer
	_, err := l.WriteTo(&buf)
	return buf.Bytes(), err
}

// countWriter counts the bytes that go to w.
type countWriter struct {
	w io.Writer
	n int64
}

func (c *countWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Epoch is the modification time of members for which the time is no matter.
var Epoch = time.Date(2023, 4, 5, 6, 7, 8, 0, time.UTC)

// Members returns a sequence of the given members.
func Members(list ...Member) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		for _, m := range list {
			if !yield(m) {
				return
			}
		}
	}
}

// Dir returns a directory with mode 0755.
func Dir(name string) Member {
	return Member{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: Epoch}}
}

// File returns a regular file with mode 0644.
func File(name string, data []byte) Member {
	return Member{
		Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: Epoch, Size: int64(len(data))},
		Body:   func() io.Reader { return bytes.NewReader(data) },
	}
}

// Symlink returns a symbolic link to target.
func Symlink(name, target string) Member {
	return Member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: Epoch}}
}

// Link returns a hard link to target, with the mode, owners and time that File
// has. Give it those of the target where they are others: containerd applies a
// link's header to its target.
func Link(name, target string) Member {
	return Member{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644, ModTime: Epoch}}
}

// Special returns a fifo or device of mode 0644.
func Special(kind byte, name string, major, minor int64) Member {
	return Member{Header: tar.Header{Typeflag: kind, Name: name, Mode: 0o644, ModTime: Epoch, Devmajor: major, Devminor: minor}}
}

// Whiteout returns the file that removes name, in dir, from the layers below.
// dir is empty or ends in a slash.
func Whiteout(dir, name string) Member { return File(dir+".wh."+name, nil) }

// Opaque returns the file that removes what the layers below have in dir, which
// ends in a slash.
func Opaque(dir string) Member { return Whiteout(dir, ".wh..opq") }

// Mode returns m with another mode, as in a tar header.
func (m Member) Mode(mode int64) Member { m.Header.Mode = mode; return m }

// Owner returns m with other owners.
func (m Member) Owner(uid, gid int) Member { m.Header.Uid, m.Header.Gid = uid, gid; return m }

// MTime returns m with another modification time, of full precision.
func (m Member) MTime(t time.Time) Member {
	m.Header.ModTime = t
	m.Header.Format = tar.FormatPAX
	return m
}

// Format returns m in another format of headers.
func (m Member) Format(f tar.Format) Member { m.Header.Format = f; return m }

// Xattr returns m with one more extended attribute.
func (m Member) Xattr(name, value string) Member {
	records := map[string]string{"SCHILY.xattr." + name: value}
	for k, v := range m.Header.PAXRecords {
		records[k] = v
	}
	m.Header.PAXRecords = records
	return m
}

// Random returns n bytes that depend on n and seed alone and don't compress.
func Random(seed uint64, n int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
		key[8+i] = byte(n >> (8 * i))
	}
	p := make([]byte, n)
	rand.NewChaCha8(key).Read(p)
	return p
}

// Text returns n bytes that depend on n and seed alone and compress well.
func Text(seed uint64, n int) []byte {
	var buf bytes.Buffer
	for line := 0; buf.Len() < n; line++ {
		fmt.Fprintf(&buf, "line %d of text %d, much like the others\n", line, seed)
	}
	return buf.Bytes()[:n]
}
