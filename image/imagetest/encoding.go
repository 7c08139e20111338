package imagetest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/klauspost/compress/zstd"
)

// Media types of the OCI image specification.
const (
	MediaTypeTar      = "application/vnd.oci.image.layer.v1.tar"
	MediaTypeTarGzip  = "application/vnd.oci.image.layer.v1.tar+gzip"
	MediaTypeTarZstd  = "application/vnd.oci.image.layer.v1.tar+zstd"
	mediaTypeConfig   = "application/vnd.oci.image.config.v1+json"
	mediaTypeManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaTypeIndex    = "application/vnd.oci.image.index.v1+json"
)

// An Encoding makes blobs of layers.
type Encoding struct {
	Name      string
	MediaType string

	// encode writes the encoded archive r to w, and returns the annotations of
	// the blob. With rewrites, the archive in the blob is another than r.
	encode   func(w io.Writer, r io.Reader) (map[string]string, error)
	rewrites bool
}

// A Blob is an encoded layer.
type Blob struct {
	MediaType   string
	Annotations map[string]string
	Digest      string // of the blob
	DiffID      string // of the archive in it
	Size        int64  // of the blob

	// Data is the blob, or File the name of the file that it is in.
	Data []byte
	File string
}

// Open returns a reader of the blob.
func (b *Blob) Open() (io.ReadCloser, error) {
	if b.File != "" {
		return os.Open(b.File)
	}
	return io.NopCloser(bytes.NewReader(b.Data)), nil
}

// Encode returns l as a blob in memory.
func (e Encoding) Encode(l Layer) (Blob, error) {
	var buf bytes.Buffer
	b, err := e.encodeTo(&buf, l)
	b.Data = buf.Bytes()
	return b, err
}

// EncodeFile writes l as a blob to the file of the given name. It holds a small
// part of the layer in memory.
func (e Encoding) EncodeFile(name string, l Layer) (Blob, error) {
	f, err := os.Create(name)
	if err != nil {
		return Blob{}, err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	b, err := e.encodeTo(w, l)
	b.File = name
	return b, errors.Join(err, w.Flush(), f.Close())
}

func (e Encoding) encodeTo(w io.Writer, l Layer) (Blob, error) {
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := l.WriteTo(pw)
		pw.CloseWithError(err)
	}()
	defer func() { <-done }()
	defer pr.Close()

	b := Blob{MediaType: e.MediaType}
	sum, diff := sha256.New(), sha256.New()
	out := &countWriter{w: io.MultiWriter(w, sum)}
	var err error
	if e.rewrites {
		b.Annotations, err = e.encode(out, pr)
		b.DiffID = b.Annotations[diffIDKey]
		delete(b.Annotations, diffIDKey)
	} else {
		b.Annotations, err = e.encode(out, io.TeeReader(pr, diff))
		b.DiffID = digest(diff)
	}
	if err != nil {
		return Blob{}, fmt.Errorf("%s: %w", e.Name, err)
	}
	b.Digest, b.Size = digest(sum), out.n
	return b, nil
}

func digest(h hash.Hash) string { return fmt.Sprintf("sha256:%x", h.Sum(nil)) }

// Encodings returns one of each, with settings that show what is special about
// it in a layer of some megabytes.
func Encodings() []Encoding {
	return []Encoding{
		Plain(), Gzip(gzip.DefaultCompression), StoredGzip(), MultiMemberGzip(300 << 10), GzipHeaderFields(),
		Zstd(), MultiFrameZstd(300 << 10), EStargz("estargz"),
		EStargz("estargz, shared members", estargz.WithMinChunkSize(64<<10), estargz.WithChunkSize(100<<10)),
		ZstdChunked(), StargzZstd(),
	}
}

// Plain returns the encoding that leaves the archive as it is.
func Plain() Encoding {
	return Encoding{Name: "plain", MediaType: MediaTypeTar, encode: func(w io.Writer, r io.Reader) (map[string]string, error) {
		_, err := io.Copy(w, r)
		return nil, err
	}}
}

// Gzip returns gzip with one member, at a level of compress/gzip.
func Gzip(level int) Encoding {
	return gzipEncoding(fmt.Sprintf("gzip at level %d", level), level, gzip.Header{}, 0)
}

// StoredGzip returns gzip whose blocks are not compressed.
func StoredGzip() Encoding {
	return gzipEncoding("stored gzip", gzip.NoCompression, gzip.Header{}, 0)
}

// MultiMemberGzip returns gzip that starts a new member after each n bytes, as
// parallel compressors do, with an empty member after each and zeros at the end.
func MultiMemberGzip(n int64) Encoding {
	return gzipEncoding("gzip of many members", gzip.DefaultCompression, gzip.Header{}, n)
}

// GzipHeaderFields returns gzip whose header has all optional fields.
func GzipHeaderFields() Encoding {
	return gzipEncoding("gzip with header fields", gzip.DefaultCompression, gzip.Header{
		Name: "layer.tar", Comment: "a comment", Extra: []byte("XX\x04\x00data"), ModTime: Epoch, OS: 3,
	}, 0)
}

func gzipEncoding(name string, level int, header gzip.Header, memberSize int64) Encoding {
	member := func(w io.Writer, r io.Reader) (int64, error) {
		zw, err := gzip.NewWriterLevel(w, level)
		if err != nil {
			return 0, err
		}
		zw.Header = header
		n, err := io.Copy(zw, r)
		return n, errors.Join(err, zw.Close())
	}
	return Encoding{Name: name, MediaType: MediaTypeTarGzip, encode: func(w io.Writer, r io.Reader) (map[string]string, error) {
		if memberSize == 0 {
			_, err := member(w, r)
			return nil, err
		}
		return nil, eachPart(r, memberSize, func(part io.Reader) (int64, error) {
			n, err := member(w, part)
			if err == nil {
				_, err = member(w, bytes.NewReader(nil))
			}
			return n, err
		})
	}}
}

// eachPart calls f with n bytes of r at a time until r ends. f returns how many
// it has read, which is all.
func eachPart(r io.Reader, n int64, f func(part io.Reader) (int64, error)) error {
	for {
		read, err := f(io.LimitReader(r, n))
		if err != nil || read < n {
			return err
		}
	}
}

// Zstd returns zstd with one frame.
func Zstd() Encoding {
	return Encoding{Name: "zstd", MediaType: MediaTypeTarZstd, encode: func(w io.Writer, r io.Reader) (map[string]string, error) {
		_, err := zstdFrame(w, r)
		return nil, err
	}}
}

// MultiFrameZstd returns zstd that starts a new frame after each n bytes, with a
// skippable frame after each.
func MultiFrameZstd(n int64) Encoding {
	skippable := append([]byte{0x5a, 0x2a, 0x4d, 0x18, 7, 0, 0, 0}, "skipped"...)
	return Encoding{Name: "zstd of many frames", MediaType: MediaTypeTarZstd, encode: func(w io.Writer, r io.Reader) (map[string]string, error) {
		return nil, eachPart(r, n, func(part io.Reader) (int64, error) {
			read, err := zstdFrame(w, part)
			if err == nil {
				_, err = w.Write(skippable)
			}
			return read, err
		})
	}}
}

func zstdFrame(w io.Writer, r io.Reader) (int64, error) {
	zw, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(zw, r)
	return n, errors.Join(err, zw.Close())
}

// diffIDKey is where an encoding that rewrites the archive returns the DiffID.
const diffIDKey = "diffID"
