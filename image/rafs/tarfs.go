package rafs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"

	"graze/chunk"
	"graze/image"
)

// A tarSpan is a stretch of an unpacked layer that is to become a chunk.
type tarSpan struct {
	start uint64
	size  uint32
}

// tarSums has the names of chunks for which nobody has made digests: those of a
// blob that is an unpacked layer.
type tarSums map[tarSpan]chunk.ID

// id returns the name of a chunk.
func (s tarSums) id(start uint64, size uint32) (chunk.ID, error) {
	id, ok := s[tarSpan{start, size}]
	if !ok {
		return id, fmt.Errorf("%w: chunk at %d of a layer", ErrNoDigest, start)
	}
	return id, nil
}

// fill reads all of a blob, whose digest must be the one in its name, and names
// the chunks in it. It hands each of them to keep as it comes: a chunk is what its
// name says, whatever becomes of the blob.
func (s tarSums) fill(ctx context.Context, r image.Ranger, b *blob, keep func(chunk.Verified)) error {
	wanted := slices.SortedFunc(maps.Keys(s), func(x, y tarSpan) int { return cmp.Compare(x.start, y.start) })
	if r.Size() < 0 {
		return fmt.Errorf("%w: no manifest tells the size of an unpacked layer", ErrUnsupported)
	}
	body, err := r.ReadRange(ctx, 0, r.Size())
	if err != nil {
		return err
	}
	defer body.Close()
	sum := sha256.New()
	src := io.TeeReader(body, sum)
	at := uint64(0)
	for _, one := range wanted {
		if end := one.start + uint64(one.size); one.start < at || end > uint64(r.Size()) {
			return fmt.Errorf("%w: chunk at %d of a layer lies in another, or behind the end", chunk.ErrCorrupt, one.start)
		}
		if _, err := io.CopyN(io.Discard, src, int64(one.start-at)); err != nil {
			return err
		}
		p := make([]byte, one.size)
		if _, err := io.ReadFull(src, p); err != nil {
			return fmt.Errorf("chunk at %d of a layer of %d bytes: %w", one.start, r.Size(), err)
		}
		at = one.start + uint64(one.size)
		v := b.digest.Name(p)
		s[one] = v.Ref().ID
		if keep != nil {
			keep(v)
		}
	}
	if _, err := io.Copy(io.Discard, src); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != b.id {
		return fmt.Errorf("%w: blob %.80s has digest %s", chunk.ErrCorrupt, b.id, got)
	}
	return nil
}
