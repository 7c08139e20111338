package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/externaltoc"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/klauspost/compress/zstd"
	"go.podman.io/storage/pkg/chunked/compressor"
)

// EStargz returns the format of that name, with the options of its own writer.
//
// The table of contents of that format holds less than an archive: it has no
// fractions of seconds, and no names that aren't UTF-8. So that the blob's
// archive and its table say the same, modification times are cut to seconds and
// members whose name, or link target, isn't UTF-8 are left out. Sparse files are
// filled, global headers dropped, and of several members of one name the last
// one remains: the writer knows no others.
func EStargz(name string, opts ...estargz.Option) Encoding {
	return Encoding{Name: name, MediaType: MediaTypeTarGzip, rewrites: true, encode: func(w io.Writer, r io.Reader) (map[string]string, error) {
		return stargz(w, r, append([]estargz.Option{estargz.WithCompressionLevel(gzip.BestSpeed)}, opts...), nil)
	}}
}

// ExternalTOC returns eStargz whose table of contents is not in the blob. It is
// handed to keep.
func ExternalTOC(keep func(toc []byte)) Encoding {
	return Encoding{Name: "estargz with an external TOC", MediaType: MediaTypeTarGzip, rewrites: true, encode: func(w io.Writer, r io.Reader) (map[string]string, error) {
		c := externaltoc.NewGzipCompressionWithLevel(nil, gzip.BestSpeed).(*externaltoc.GzipCompression)
		annotations, err := stargz(w, r, []estargz.Option{estargz.WithCompression(c)}, nil)
		if err != nil {
			return nil, err
		}
		var toc bytes.Buffer
		if _, err := c.WriteTOCTo(&toc); err != nil {
			return nil, err
		}
		keep(toc.Bytes())
		return annotations, nil
	}}
}

// StargzZstd returns zstd:chunked as the writer of eStargz has it.
func StargzZstd() Encoding {
	return Encoding{Name: "zstd:chunked of stargz", MediaType: MediaTypeTarZstd, rewrites: true, encode: func(w io.Writer, r io.Reader) (map[string]string, error) {
		annotations := make(map[string]string)
		c := stargzZstd{new(zstdchunked.Decompressor), &zstdchunked.Compressor{CompressionLevel: zstd.SpeedDefault, Metadata: annotations}}
		return stargz(w, r, []estargz.Option{estargz.WithCompression(c)}, annotations)
	}}
}

type stargzZstd struct {
	*zstdchunked.Decompressor
	*zstdchunked.Compressor
}

// stargz encodes r, as EStargz says, by the writer of that format. It adds the
// annotations to those given.
func stargz(w io.Writer, r io.Reader, opts []estargz.Option, annotations map[string]string) (map[string]string, error) {
	tmp, err := simplified(r)
	if err != nil {
		return nil, err
	}
	defer tmp.Close()
	size, err := tmp.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	// One worker, so that the bytes don't depend on the number of processors.
	blob, err := estargz.Build(io.NewSectionReader(tmp, 0, size), append([]estargz.Option{estargz.WithParallelism(1)}, opts...)...)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(w, blob); err != nil {
		return nil, errors.Join(err, blob.Close())
	}
	if err := blob.Close(); err != nil {
		return nil, err
	}
	out := map[string]string{
		estargz.TOCJSONDigestAnnotation: blob.TOCDigest().String(),
		diffIDKey:                       blob.DiffID().String(),
	}
	maps.Copy(out, annotations)
	return out, nil
}

// ZstdChunked returns zstd:chunked as containers/storage writes it. What EStargz
// says holds for it too, though it could keep more.
func ZstdChunked() Encoding {
	return Encoding{Name: "zstd:chunked", MediaType: MediaTypeTarZstd, rewrites: true, encode: func(w io.Writer, r io.Reader) (map[string]string, error) {
		annotations, diff := make(map[string]string), sha256.New()
		level := 3
		zw, err := compressor.ZstdCompressor(w, annotations, &level)
		if err != nil {
			return nil, err
		}
		tmp, err := simplified(r)
		if err != nil {
			return nil, errors.Join(err, zw.Close())
		}
		defer tmp.Close()
		err = dropRepeats(io.MultiWriter(zw, diff), tmp)
		if err := errors.Join(err, zw.Close()); err != nil {
			return nil, err
		}
		annotations[diffIDKey] = digest(diff)
		return annotations, nil
	}}
}

// simplified returns a file that is the archive r as EStargz says, but for the
// members of one name. It has no name any more.
func simplified(r io.Reader) (*os.File, error) {
	tmp, err := os.CreateTemp("", "imagetest-*.tar")
	if err != nil {
		return nil, err
	}
	err = errors.Join(simplify(tmp, r), os.Remove(tmp.Name()))
	if _, seekErr := tmp.Seek(0, io.SeekStart); err == nil {
		err = seekErr
	}
	if err != nil {
		return nil, errors.Join(err, tmp.Close())
	}
	return tmp, nil
}

// dropRepeats copies the archive r to w. Of several members of one name it keeps
// the last one.
func dropRepeats(w io.Writer, r io.ReadSeeker) error {
	last := make(map[string]int)
	err := eachMember(r, func(n int, h *tar.Header, _ io.Reader) error {
		last[path.Clean("/"+h.Name)] = n
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	err = eachMember(r, func(n int, h *tar.Header, body io.Reader) error {
		if last[path.Clean("/"+h.Name)] != n {
			return nil
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(tw, body)
		return err
	})
	return errors.Join(err, tw.Close())
}

// eachMember calls f for each member of the archive r, with its number.
func eachMember(r io.Reader, f func(n int, h *tar.Header, body io.Reader) error) error {
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(n, h, tr); err != nil {
			return err
		}
	}
}

// simplify copies the archive r to w.
func simplify(w io.Writer, r io.Reader) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			// What follows the archive is read too: the pipe's writer waits.
			_, err := io.Copy(io.Discard, r)
			return errors.Join(err, tw.Close())
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader || !utf8.ValidString(h.Name) || !utf8.ValidString(h.Linkname) {
			continue
		}
		out := *h
		out.ModTime = h.ModTime.Truncate(time.Second)
		out.AccessTime, out.ChangeTime, out.Format = time.Time{}, time.Time{}, tar.FormatUnknown
		if h.Typeflag == tar.TypeGNUSparse {
			out.Typeflag = tar.TypeReg
		}
		out.PAXRecords = nil
		for k, v := range h.PAXRecords {
			if strings.HasPrefix(k, xattrPrefix) {
				if out.PAXRecords == nil {
					out.PAXRecords = make(map[string]string)
				}
				out.PAXRecords[k] = v
			}
		}
		if err := tw.WriteHeader(&out); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
	}
}

const xattrPrefix = "SCHILY.xattr."
