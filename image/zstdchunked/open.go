package zstdchunked

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"graze/chunk"
	"graze/image"
	"graze/image/toc"
)

// What kind of layer it is that can't be opened. Test for them with errors.Is.
var (
	// ErrNotZstdChunked: the layer has neither annotations nor a footer.
	ErrNotZstdChunked = errors.New("not a zstd:chunked layer")
	// ErrUnverified: no annotation vouches for the TOC, and such layers are not
	// accepted.
	ErrUnverified = errors.New("TOC has no digest in the manifest")
)

const (
	// DefaultMaxTOC is the default of Config.MaxTOC.
	DefaultMaxTOC = 256 << 20

	// maxTarSplit bounds what may stand between the TOC and the footer, in bytes.
	maxTarSplit = 256 << 20

	// maxWindow bounds what the TOC's frame can make the decoder hold, in bytes.
	maxWindow = 128 << 20
)

// A Config says what Open needs to know about the layer.
type Config struct {
	// Blob is the digest of the layer as the manifest names it. Required.
	Blob chunk.Blob

	// Annotations are those of the layer's descriptor in the manifest.
	Annotations map[string]string

	// Accept allows a TOC for which no annotation vouches: see Layer.Unverified.
	Accept bool

	// MaxTOC bounds the TOC, compressed and not, in bytes. Default DefaultMaxTOC.
	MaxTOC int64
}

// A Layer is an opened zstd:chunked layer.
type Layer struct {
	image.Layer

	// TOCDigest is the digest of the compressed TOC that the layer was opened by.
	TOCDigest chunk.ID

	// Unverified is set if no annotation vouches for the TOC: whoever made the
	// layer's bytes, or a registry that was not honest, chose the index too. It is
	// possible with Config.Accept only.
	Unverified bool
}

// Open reads the TOC of the layer r and returns the layer's index. It makes one
// request, for the layer from the TOC to its end, and one more if the annotations
// don't say where that is.
//
// Errors wrap chunk.ErrCorrupt, toc.ErrUnsupported, one of this package's errors, or
// the error of r.
func Open(ctx context.Context, r image.Ranger, cfg Config) (*Layer, error) {
	l, err := open(ctx, r, cfg)
	if err != nil {
		return nil, &chunk.Error{Op: "open zstd:chunked layer", What: string(cfg.Blob), Err: err}
	}
	return l, nil
}

func open(ctx context.Context, r image.Ranger, cfg Config) (*Layer, error) {
	if cfg.MaxTOC == 0 {
		cfg.MaxTOC = DefaultMaxTOC
	}
	if cfg.Blob == "" || cfg.MaxTOC < 0 {
		return nil, fmt.Errorf("blob %q, MaxTOC %d", cfg.Blob, cfg.MaxTOC)
	}
	size := r.Size()
	at, sum, err := annotatedPlace(cfg.Annotations, size)
	if err != nil {
		return nil, err
	}
	var plain chunk.ID
	if s := cfg.Annotations[tocDigestKey]; s != "" {
		if plain, err = parseSum(tocDigestKey, s); err != nil {
			return nil, err
		}
	}
	annotated := at.size > 0
	if !annotated {
		if at, err = readFooter(ctx, r, size); err != nil {
			return nil, err
		}
	}
	unverified := sum.IsZero() && plain.IsZero()
	if unverified && !cfg.Accept {
		return nil, ErrUnverified
	}
	if max(at.size, at.decoded) > cfg.MaxTOC || size-at.off-at.size > maxTarSplit {
		return nil, fmt.Errorf("%w: it has %d bytes, %d decoded, and %d behind it", toc.ErrUnsupported, at.size, at.decoded, size-at.off-at.size)
	}
	packed, err := readTOC(ctx, r, at, annotated)
	if err != nil {
		return nil, err
	}
	got := chunk.SHA256.Sum(packed)
	if !sum.IsZero() && got != sum {
		return nil, fmt.Errorf("%w: TOC at %d has digest %s, not %s", chunk.ErrCorrupt, at.off, got, sum)
	}
	x, err := decode(packed, at, plain, cfg.Blob)
	if err != nil {
		return nil, fmt.Errorf("TOC at %d: %w", at.off, err)
	}
	return &Layer{
		Layer: image.Layer{
			Digest:   cfg.Blob,
			Size:     size,
			Format:   image.ZstdChunked,
			Table:    x.Table,
			Prefetch: x.Prefetch,
			Entries:  x.Entries,
		},
		TOCDigest:  got,
		Unverified: unverified,
	}, nil
}

// readFooter reads where the TOC is from the layer's end.
func readFooter(ctx context.Context, r image.Ranger, size int64) (place, error) {
	n := min(size, frameHeader+storageFooter)
	body, err := r.ReadRange(ctx, size-n, n)
	if err != nil {
		return place{}, fmt.Errorf("read the last %d bytes: %w", n, err)
	}
	defer body.Close()
	tail := make([]byte, n)
	if _, err := io.ReadFull(body, tail); err != nil {
		return place{}, fmt.Errorf("read the last %d bytes: %w", n, err)
	}
	return parseFooter(tail, size)
}

// readTOC reads the compressed TOC, and with it all behind it: other nodes may want
// the end of the layer as a whole. If its place is one that annotations named, the
// footer must not name another one.
func readTOC(ctx context.Context, r image.Ranger, at place, annotated bool) ([]byte, error) {
	size := r.Size()
	body, err := r.ReadRange(ctx, at.off, size-at.off)
	if err != nil {
		return nil, fmt.Errorf("read TOC at %d: %w", at.off, err)
	}
	defer body.Close()
	// It grows as bytes arrive, whatever was announced.
	packed, err := io.ReadAll(io.LimitReader(body, at.size))
	if err == nil && int64(len(packed)) < at.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("read TOC at %d: %w", at.off, err)
	}
	rest := size - at.off - at.size
	tail := make([]byte, min(rest, frameHeader+storageFooter))
	if _, err = io.CopyN(io.Discard, body, rest-int64(len(tail))); err == nil {
		_, err = io.ReadFull(body, tail)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is behind the TOC at %d: %w", at.off, err)
	}
	if !annotated {
		return packed, nil
	}
	foot, err := parseFooter(tail, size)
	if errors.Is(err, ErrNotZstdChunked) {
		return packed, nil // a footer of neither kind says nothing
	}
	foot.archive = at.archive
	if err == nil && foot != at {
		err = fmt.Errorf("%w: annotations name a TOC at %d+%d, the footer one at %d+%d", chunk.ErrCorrupt, at.off, at.size, foot.off, foot.size)
	}
	return packed, err
}

// decode decodes the TOC, which must have the digest plain if that isn't zero.
func decode(packed []byte, at place, plain chunk.ID, blob chunk.Blob) (*toc.Index, error) {
	zr, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	defer zr.Close()
	sum := sha256.New()
	src := &io.LimitedReader{R: io.TeeReader(zr, sum), N: at.decoded + 1}
	x, tocErr := toc.Read(src, toc.Config{Blob: blob, Codec: chunk.Zstd, End: at.off - frameHeader, Archive: at.archive})
	if _, err := io.Copy(io.Discard, src); err != nil {
		return nil, fmt.Errorf("%w: %w", chunk.ErrCorrupt, errors.Join(tocErr, err))
	}
	if n := at.decoded + 1 - src.N; n != at.decoded {
		return nil, fmt.Errorf("%w: %d bytes or more, not %d", chunk.ErrCorrupt, n, at.decoded)
	}
	if !plain.IsZero() {
		got, err := chunk.NewID(chunk.SHA256, [chunk.SumSize]byte(sum.Sum(nil)))
		if err != nil {
			return nil, err
		}
		if got != plain {
			return nil, fmt.Errorf("%w: it has digest %s decoded, annotation %s says %s", chunk.ErrCorrupt, got, tocDigestKey, plain)
		}
	}
	return x, tocErr
}
