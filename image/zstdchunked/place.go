package zstdchunked

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"graze/chunk"
)

// Annotations of a layer's descriptor in the manifest: a prefix, which is that of a
// dialect, and what it is about.
const (
	storagePrefix = "io.github.containers.zstd-chunked."
	stargzPrefix  = "io.containers.zstd-chunked."

	checksumKey = "manifest-checksum" // digest of the compressed TOC
	positionKey = "manifest-position" // see parsePosition

	// tocDigestKey holds the SHA-256 of the uncompressed TOC, as in eStargz.
	tocDigestKey = "containerd.io/snapshot/stargz/toc.digest"
)

// The footers, which are the payload of a skippable frame at the layer's end. Both
// are little-endian numbers of 64 bits and a magic word.
const (
	storageMagic = "GNUlInUx"
	stargzMagic  = "GnUlInUx"

	storageFooter = 64 // offset, length, decoded length and type; three numbers about the tar-split
	stargzFooter  = 40 // offset, length, decoded length and type

	frameHeader = 8 // of a skippable frame: magic number and length
)

// typeCRFS is the only type of TOC that there is.
const typeCRFS = 1

// Annotated reports whether the annotations of a layer's descriptor say that it is
// a zstd:chunked layer of any dialect.
func Annotated(annotations map[string]string) bool {
	return annotations[storagePrefix+checksumKey] != "" || annotations[stargzPrefix+checksumKey] != ""
}

// A place is where the TOC is in a layer.
type place struct {
	off, size, decoded int64 // of the compressed TOC; its size decoded
	archive            bool  // the dialect is that of containers/storage
}

// annotatedPlace returns what the annotations say about the TOC: where it is, and
// the digest of its compressed bytes. Either is zero where they don't say it.
func annotatedPlace(annotations map[string]string, blobSize int64) (at place, sum chunk.ID, err error) {
	for _, prefix := range []string{stargzPrefix, storagePrefix} {
		if s := annotations[prefix+checksumKey]; s != "" {
			id, err := parseSum(prefix+checksumKey, s)
			if err != nil {
				return at, sum, err
			}
			if !sum.IsZero() && id != sum {
				return at, sum, fmt.Errorf("%w: annotations of two dialects name the tables of contents %s and %s", chunk.ErrCorrupt, sum, id)
			}
			sum = id
		}
		if s := annotations[prefix+positionKey]; s != "" {
			p, err := parsePosition(s, blobSize)
			if err != nil {
				return at, sum, fmt.Errorf("annotation %s%s: %w", prefix, positionKey, err)
			}
			if at.size != 0 && p != at {
				return at, sum, fmt.Errorf("%w: annotations of two dialects name two places of the table of contents", chunk.ErrCorrupt)
			}
			at = p
		}
	}
	at.archive = annotations[storagePrefix+checksumKey] != ""
	return at, sum, nil
}

// parseSum parses the SHA-256 that an annotation holds.
func parseSum(key, s string) (chunk.ID, error) {
	id, err := chunk.ParseID(s)
	if err == nil && id.Algorithm() != chunk.SHA256 {
		err = fmt.Errorf("%s is not a sha256", id)
	}
	if err != nil {
		return chunk.ID{}, fmt.Errorf("%w: annotation %s: %w", chunk.ErrCorrupt, key, err)
	}
	return id, nil
}

// parsePosition parses "offset:length:decoded length:type", in bytes.
func parsePosition(s string, blobSize int64) (place, error) {
	fields := strings.Split(s, ":")
	if len(fields) != 4 {
		return place{}, fmt.Errorf("%w: %.80q is not four numbers", chunk.ErrCorrupt, s)
	}
	var n [4]uint64
	for i, f := range fields {
		var err error
		if n[i], err = strconv.ParseUint(f, 10, 64); err != nil {
			return place{}, fmt.Errorf("%w: %.80q is not four numbers", chunk.ErrCorrupt, s)
		}
	}
	return newPlace(n, blobSize)
}

// newPlace makes a place of its four numbers, and checks that it is before the
// footer of a layer of blobSize bytes.
func newPlace(n [4]uint64, blobSize int64) (place, error) {
	off, size, decoded := n[0], n[1], n[2]
	if n[3] != typeCRFS {
		return place{}, fmt.Errorf("%w: table of contents of type %d", chunk.ErrCorrupt, n[3])
	}
	end := blobSize - frameHeader - stargzFooter
	if end < 0 || off < frameHeader || size == 0 || off > uint64(end) || size > uint64(end)-off || decoded > math.MaxInt64/2 {
		return place{}, fmt.Errorf("%w: table of contents at %d+%d of %d bytes, decoded %d", chunk.ErrCorrupt, off, size, blobSize, decoded)
	}
	return place{off: int64(off), size: int64(size), decoded: int64(decoded)}, nil
}

// parseFooter finds the footer at the end of tail, which ends a layer of blobSize
// bytes. The error wraps ErrNotZstdChunked if there is none.
func parseFooter(tail []byte, blobSize int64) (place, error) {
	for _, f := range []struct {
		magic   string
		size    int
		archive bool
	}{{storageMagic, storageFooter, true}, {stargzMagic, stargzFooter, false}} {
		if len(tail) < frameHeader+f.size || !bytes.HasSuffix(tail, []byte(f.magic)) {
			continue
		}
		p := tail[len(tail)-frameHeader-f.size:]
		if !bytes.Equal(p[:frameHeader], []byte{0x50, 0x2a, 0x4d, 0x18, byte(f.size), 0, 0, 0}) {
			continue
		}
		var n [4]uint64
		for i := range n {
			n[i] = binary.LittleEndian.Uint64(p[frameHeader+8*i:])
		}
		at, err := newPlace(n, blobSize)
		at.archive = f.archive
		if err != nil {
			return place{}, fmt.Errorf("footer: %w", err)
		}
		return at, nil
	}
	return place{}, fmt.Errorf("%w: no footer at its end", ErrNotZstdChunked)
}
