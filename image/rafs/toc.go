package rafs

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"

	"graze/chunk"
	"graze/image"
)

// The table of contents at the end of a blob.
const (
	tocName      = "rafs.blob.toc"
	tocEntrySize = 128
	tarBlock     = 512
	maxTOC       = 1 << 20

	entryMeta   = "blob.meta"
	entryDigest = "blob.digest"

	entryPlain = 1
	entryZstd  = 2
	entryLZ4   = 4
)

// A tocEntry is a part of a blob, with the digest of what it decodes to.
type tocEntry struct {
	compress     compressor
	digest       [chunk.SumSize]byte
	off          uint64
	csize, usize uint64
}

// readTOC reads the table of contents of a blob, and compares it with the digest
// that the bootstrap has for it.
func readTOC(ctx context.Context, r image.Ranger, b *blob) (map[string]tocEntry, error) {
	if b.tocDigest == [chunk.SumSize]byte{} {
		return nil, fmt.Errorf("%w: the table of contents of a blob", ErrNoDigest)
	}
	size, n := r.Size(), int64(b.tocSize)
	if n == 0 { // the header at the end tells
		header, err := readRange(ctx, r, size-tarBlock, tarBlock)
		if err != nil {
			return nil, err
		}
		name, body, err := parseTarHeader(header)
		if err != nil || name != tocName {
			return nil, fmt.Errorf("%w: blob ends in no table of contents", chunk.ErrCorrupt)
		}
		n = body + tarBlock
	}
	if n > maxTOC || n < tarBlock || (n-tarBlock)%tocEntrySize != 0 {
		return nil, fmt.Errorf("%w: table of contents has %d bytes", chunk.ErrCorrupt, n)
	}
	p, err := readRange(ctx, r, size-n, n)
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(p) != b.tocDigest {
		return nil, fmt.Errorf("%w: table of contents of a blob has digest %x, not %x", chunk.ErrCorrupt, sha256.Sum256(p), b.tocDigest)
	}
	return parseTOC(p[:n-tarBlock])
}

// parseTOC reads the rows of a table of contents.
func parseTOC(p []byte) (map[string]tocEntry, error) {
	entries := make(map[string]tocEntry)
	for ; len(p) >= tocEntrySize; p = p[tocEntrySize:] {
		name := strings.TrimRight(string(p[8:24]), "\x00")
		e := tocEntry{
			digest: [chunk.SumSize]byte(p[24:]),
			off:    le.Uint64(p[56:]),
			csize:  le.Uint64(p[64:]),
			usize:  le.Uint64(p[72:]),
		}
		switch flags := le.Uint32(p); flags {
		case entryPlain:
		case entryZstd:
			e.compress = zstdFrame
		case entryLZ4:
			e.compress = lz4Block
		default:
			return nil, fmt.Errorf("%w: part %q of a blob with flags %#x", ErrUnsupported, name, flags)
		}
		if _, twice := entries[name]; twice {
			return nil, fmt.Errorf("%w: two parts %q of a blob", chunk.ErrCorrupt, name)
		}
		entries[name] = e
	}
	return entries, nil
}

// read returns what a part of a blob decodes to, which must have the digest that
// the table of contents says.
func (e *tocEntry) read(ctx context.Context, r image.Ranger) ([]byte, error) {
	enc, err := readRange64(ctx, r, e.off, e.csize)
	if err != nil {
		return nil, err
	}
	p, err := e.compress.unpack(enc, e.usize)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(p); sum != e.digest {
		return nil, fmt.Errorf("%w: digest %x, not %x", chunk.ErrCorrupt, sum, e.digest)
	}
	return p, nil
}

// parseTarHeader reads the name and the size in a header of a tar archive. In a
// blob headers stand behind what they are about.
func parseTarHeader(p []byte) (name string, size int64, err error) {
	name = strings.TrimRight(string(p[:100]), "\x00")
	for _, c := range strings.TrimRight(string(p[124:136]), " \x00") {
		if c < '0' || c > '7' {
			return "", 0, fmt.Errorf("%w: size in a header", chunk.ErrCorrupt)
		}
		size = size<<3 | int64(c-'0')
	}
	return name, size, nil
}

// readRange64 is readRange for numbers that may be anything.
func readRange64(ctx context.Context, r image.Ranger, off, n uint64) ([]byte, error) {
	if off > 1<<62 || n > maxMeta {
		return nil, fmt.Errorf("%w: bytes %d+%d of a blob", chunk.ErrCorrupt, off, n)
	}
	return readRange(ctx, r, int64(off), int64(n))
}

// readRange returns n bytes of a blob from off on.
func readRange(ctx context.Context, r image.Ranger, off, n int64) ([]byte, error) {
	if size := r.Size(); off < 0 || n < 0 || size >= 0 && n > size-off {
		return nil, fmt.Errorf("%w: bytes %d+%d of a blob of %d", chunk.ErrCorrupt, off, n, size)
	}
	body, err := r.ReadRange(ctx, off, n)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	p := make([]byte, n)
	_, err = io.ReadFull(body, p)
	return p, err
}
