package estargz

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"graze/chunk"
)

// Annotations of a layer's descriptor in the manifest.
const (
	// TOCDigestAnnotation holds the SHA-256 of the uncompressed TOC.
	TOCDigestAnnotation = "containerd.io/snapshot/stargz/toc.digest"

	// Layers compressed with zstd carry TOCDigestAnnotation too, but are laid
	// out otherwise (package zstdchunked); one of these prefixes tells them apart.
	zstdChunkedPrefix   = "io.containers.zstd-chunked."
	zstdChunkedPrefixCS = "io.github.containers.zstd-chunked."
)

// The sizes of the footers in bytes. Each is an empty gzip member with an extra
// field: the eStargz one holds a subfield "SG" with the offset of the TOC, the
// legacy one the bare offset, the external one says that the TOC is not in the
// layer.
const (
	footerSize         = 51
	legacyFooterSize   = 47
	externalFooterSize = 46
)

const (
	magic         = "STARGZ"
	externalMagic = "STARGZEXTERNALTOC"
	offsetDigits  = 16
)

// Annotated reports whether the annotations of a layer's descriptor say that it
// is an eStargz layer. Legacy stargz layers, and images that were pushed by
// tools that drop annotations, have none: see [HasFooter].
func Annotated(annotations map[string]string) bool {
	for key := range annotations {
		if strings.HasPrefix(key, zstdChunkedPrefix) || strings.HasPrefix(key, zstdChunkedPrefixCS) {
			return false
		}
	}
	return annotations[TOCDigestAnnotation] != ""
}

// HasFooter reports whether tail, the last bytes of a layer, ends in the footer
// of an eStargz layer of any kind. 51 bytes are enough to tell.
func HasFooter(tail []byte) bool {
	_, err := parseFooter(tail, 1<<63-1)
	return err == nil
}

// A footer says where the TOC is.
type footer struct {
	tocOff   int64 // first byte of the gzip member with the TOC
	size     int64 // of the footer itself
	external bool  // the TOC is not in the layer; tocOff is 0
}

// parseFooter finds the footer at the end of tail, which ends a blob of size
// bytes. The error wraps ErrNotEStargz if there is none.
func parseFooter(tail []byte, size int64) (footer, error) {
	if extra, ok := emptyMember(tail, footerSize); ok {
		if sub, ok := bytes.CutPrefix(extra, []byte{'S', 'G', offsetDigits + byte(len(magic)), 0}); ok {
			return tocFooter(sub, footerSize, size)
		}
	}
	if extra, ok := emptyMember(tail, legacyFooterSize); ok {
		return tocFooter(extra, legacyFooterSize, size)
	}
	if extra, ok := emptyMember(tail, externalFooterSize); ok {
		want := append([]byte{'S', 'G', byte(len(externalMagic)), 0}, externalMagic...)
		if bytes.Equal(extra, want) {
			return footer{size: externalFooterSize, external: true}, nil
		}
	}
	return footer{}, fmt.Errorf("%w: no footer at its end", ErrNotEStargz)
}

// tocFooter makes a footer of the offset and the magic word in sub.
func tocFooter(sub []byte, length, size int64) (footer, error) {
	digits, ok := bytes.CutSuffix(sub, []byte(magic))
	if !ok || len(digits) != offsetDigits {
		return footer{}, fmt.Errorf("%w: footer without %s", ErrNotEStargz, magic)
	}
	var raw [offsetDigits / 2]byte
	if _, err := hex.Decode(raw[:], digits); err != nil {
		return footer{}, fmt.Errorf("%w: footer at %d: TOC offset %q: %w", chunk.ErrCorrupt, size-length, digits, err)
	}
	off := binary.BigEndian.Uint64(raw[:])
	if end := size - length; off >= uint64(end) {
		return footer{}, fmt.Errorf("%w: footer at %d: TOC offset %d is not before it", chunk.ErrCorrupt, end, off)
	}
	return footer{tocOff: int64(off), size: length}, nil
}

// emptyMember returns the extra field of the gzip member of n bytes that ends
// tail, if that is a member with an extra field and no content.
func emptyMember(tail []byte, n int) (extra []byte, ok bool) {
	const (
		header  = 10 // ID1 ID2 CM FLG MTIME(4) XFL OS
		xlen    = 2
		trailer = 5 + 8 // a final stored block of no bytes, CRC-32 and size
	)
	if len(tail) < n {
		return nil, false
	}
	p := tail[len(tail)-n:]
	if !bytes.HasPrefix(p, []byte{0x1f, 0x8b, 8, 4}) {
		return nil, false
	}
	if !bytes.HasSuffix(p, []byte{1, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}) {
		return nil, false
	}
	extra = p[header+xlen : n-trailer]
	return extra, int(binary.LittleEndian.Uint16(p[header:])) == len(extra)
}
