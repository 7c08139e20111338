package estargz

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"

	"github.com/klauspost/compress/gzip"

	"graze/chunk"
	"graze/image/toc"
)

// tarSlack is what the archive around the TOC may add to its size: the headers,
// extended ones among them, and the padding.
const tarSlack = 4 << 20

// readTOC reads the TOC from the gzip member that src starts with; maxTOC bounds
// its uncompressed size. The digest is zero if the TOC could not be read to its
// end; if it could, it is returned with an error about the contents too, so that
// the caller can tell bytes that were damaged on the way from a layer that was
// made like this.
func readTOC(src io.Reader, cfg toc.Config, maxTOC int64) (*toc.Index, chunk.ID, error) {
	zr, err := gzip.NewReader(src)
	if err != nil {
		return nil, chunk.ID{}, corrupt(err)
	}
	defer zr.Close()
	tr := tar.NewReader(io.LimitReader(zr, maxTOC+tarSlack))
	hdr, err := tr.Next()
	if err != nil {
		return nil, chunk.ID{}, corrupt(err)
	}
	if path.Clean("/"+hdr.Name) != "/"+toc.Name {
		return nil, chunk.ID{}, corrupt(fmt.Errorf("the archive's last member is %.200q", hdr.Name))
	}
	if hdr.Size > maxTOC {
		return nil, chunk.ID{}, fmt.Errorf("%w: it has %d bytes, more than %d", toc.ErrUnsupported, hdr.Size, maxTOC)
	}
	sum := sha256.New()
	body := io.TeeReader(tr, sum)
	x, tocErr := toc.Read(body, cfg)
	if _, err := io.Copy(io.Discard, body); err != nil {
		return nil, chunk.ID{}, corrupt(errors.Join(tocErr, err))
	}
	return x, sumID(sum), tocErr
}

// sumID returns the SHA-256 that h has come to.
func sumID(h hash.Hash) chunk.ID {
	id, err := chunk.NewID(chunk.SHA256, [chunk.SumSize]byte(h.Sum(nil)))
	if err != nil {
		panic(err) // SHA256 is an algorithm
	}
	return id
}

// corrupt makes err wrap ErrCorrupt.
func corrupt(err error) error { return fmt.Errorf("%w: %w", chunk.ErrCorrupt, err) }
