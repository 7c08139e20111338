package rafs

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"

	"graze/chunk"
)

const (
	bootName   = "image.boot"
	metaSuffix = ".blob.meta"

	// maxBootstrap bounds what a bootstrap layer unpacks to, in bytes.
	maxBootstrap = 1 << 30
)

// Unpack reads a layer that has a bootstrap: an archive, compressed by gzip or
// not, with the bootstrap in it, and maybe the chunk information of blobs beside
// it, which it returns by the names of the blobs.
func Unpack(layer []byte) (bootstrap []byte, metas map[chunk.Blob][]byte, err error) {
	bootstrap, metas, err = unpack(layer)
	if err != nil {
		return nil, nil, fmt.Errorf("unpack the layer of a RAFS bootstrap: %w", err)
	}
	return bootstrap, metas, nil
}

func unpack(layer []byte) (bootstrap []byte, metas map[chunk.Blob][]byte, err error) {
	var r io.Reader = bytes.NewReader(layer)
	if bytes.HasPrefix(layer, []byte{0x1f, 0x8b}) {
		zr, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
		}
		defer zr.Close()
		r = zr
	}
	limit := &io.LimitedReader{R: r, N: maxBootstrap}
	fail := func(err error) ([]byte, map[chunk.Blob][]byte, error) {
		if limit.N == 0 {
			return nil, nil, fmt.Errorf("%w: more than %d bytes", ErrUnsupported, maxBootstrap)
		}
		return nil, nil, fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
	}
	metas = make(map[chunk.Blob][]byte)
	for tr := tar.NewReader(limit); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fail(err)
		}
		// The bootstrap is in a folder, but for very old layers.
		dir, name := path.Split(path.Clean("/" + h.Name))
		digits, isMeta := strings.CutSuffix(name, metaSuffix)
		if h.Typeflag != tar.TypeReg || dir != "/" && dir != "/image/" || name != bootName && !isMeta {
			continue
		}
		p, err := readMember(tr, h.Size, int64(len(layer)))
		switch {
		case err != nil:
			return fail(err)
		case isMeta:
			metas[chunk.Blob("sha256:"+digits)] = p
		case bootstrap != nil:
			return nil, nil, fmt.Errorf("%w: two bootstraps", chunk.ErrCorrupt)
		default:
			bootstrap = p
		}
	}
	if bootstrap == nil {
		return nil, nil, fmt.Errorf("%w: the archive has no %s", ErrNotRAFS, bootName)
	}
	return bootstrap, metas, nil
}

// maxRatio bounds how many bytes one byte of gzip decodes to.
const maxRatio = 1032

// readMember reads a member of an archive that is packed into a layer of n bytes.
func readMember(r io.Reader, size, n int64) ([]byte, error) {
	if size > n*maxRatio {
		return nil, fmt.Errorf("%d bytes in a layer of %d", size, n)
	}
	p := make([]byte, min(size, maxBootstrap))
	_, err := io.ReadFull(r, p)
	return p, err
}
