package estargz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"graze/chunk"
	"graze/image"
	"graze/image/toc"
)

// What kind of layer it is that can't be opened. Test for them with errors.Is.
var (
	// ErrNotEStargz: the layer has no eStargz footer.
	ErrNotEStargz = errors.New("not an eStargz layer")
	// ErrExternalTOC: the TOC is kept in an image of its own: see OpenExternal.
	ErrExternalTOC = errors.New("external TOC")
	// ErrUnverified: no annotation vouches for the TOC, and the policy is to
	// refuse such layers.
	ErrUnverified = errors.New("TOC has no digest in the manifest")
)

// A Policy says what to do with a layer whose descriptor has no digest of the
// TOC, so that nothing vouches for its index.
type Policy int

// The policies. The zero value refuses.
const (
	Refuse Policy = iota // fail with ErrUnverified
	Accept               // open it, and say so in Layer.Unverified
)

// Bounds of what is read.
const (
	// DefaultMaxTOC is the default of Config.MaxTOC.
	DefaultMaxTOC = 256 << 20

	// limitMaxTOC is the most that Config.MaxTOC can be.
	limitMaxTOC = 4 << 30

	// tailSize is how much of the layer's end the first request asks for. It
	// holds the TOC of some ten thousand files; a second round trip costs more
	// than the bytes.
	tailSize = 1 << 20
)

// A Config says what Open needs to know about the layer.
type Config struct {
	// Blob is the digest of the layer as the manifest names it. Required.
	Blob chunk.Blob

	// Annotations are those of the layer's descriptor in the manifest.
	Annotations map[string]string

	// Unverified is the policy for a layer without TOCDigestAnnotation.
	Unverified Policy

	// MaxTOC bounds the uncompressed TOC, in bytes. Default DefaultMaxTOC,
	// at most 4 GiB.
	MaxTOC int64
}

// A Layer is an opened eStargz layer.
type Layer struct {
	image.Layer

	// TOCDigest is the digest of the TOC that the layer was opened by.
	TOCDigest chunk.ID

	// Unverified is set if no annotation vouches for TOCDigest: whoever made
	// the layer's bytes, or a registry that was not honest, chose the index too.
	// It is possible with the policy Accept only.
	Unverified bool
}

// Open reads the TOC of the layer r and returns the layer's index. It makes one
// request for the end of the layer, and one more if the TOC is larger than that.
//
// Errors wrap chunk.ErrCorrupt, toc.ErrUnsupported, one of this package's errors, or
// the error of r.
func Open(ctx context.Context, r image.Ranger, cfg Config) (*Layer, error) {
	l, err := open(ctx, r, cfg)
	if err != nil {
		return nil, &chunk.Error{Op: "open eStargz layer", What: string(cfg.Blob), Err: err}
	}
	return l, nil
}

func open(ctx context.Context, r image.Ranger, cfg Config) (*Layer, error) {
	want, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	size := r.Size()
	tail, err := readTail(ctx, r, size)
	if err != nil {
		return nil, err
	}
	foot, err := parseFooter(tail, size)
	if err != nil {
		return nil, err
	}
	if foot.external {
		return nil, ErrExternalTOC
	}
	if want.IsZero() && cfg.Unverified != Accept {
		return nil, ErrUnverified
	}
	src, err := tocReader(ctx, r, tail, foot)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	l, err := cfg.layer(src, want, size, foot.tocOff)
	if src.err != nil {
		// What the parser made of a broken transfer is of no interest.
		return nil, fmt.Errorf("read TOC at %d: %w", foot.tocOff, src.err)
	}
	if err != nil {
		return nil, fmt.Errorf("TOC at %d: %w", foot.tocOff, err)
	}
	return l, nil
}

// OpenExternal returns the index of a layer of the given size whose TOC is kept in
// an image of its own, as a blob that table reads. Of the layer itself nothing is
// read: its descriptor must have a digest of the TOC.
func OpenExternal(table io.Reader, size int64, cfg Config) (*Layer, error) {
	want, err := cfg.complete()
	if err == nil && want.IsZero() {
		err = ErrUnverified
	}
	var l *Layer
	if err == nil && size < externalFooterSize {
		err = fmt.Errorf("%w: it has %d bytes", ErrNotEStargz, size)
	}
	if err == nil {
		l, err = cfg.layer(table, want, size, size-externalFooterSize)
	}
	if err != nil {
		return nil, &chunk.Error{Op: "open eStargz layer by a TOC of another image", What: string(cfg.Blob), Err: err}
	}
	return l, nil
}

// complete fills in the defaults, checks the rest and returns the digest that the
// TOC must have; zero if it may have any.
func (cfg *Config) complete() (want chunk.ID, err error) {
	if cfg.Blob == "" {
		return want, errors.New("no blob digest given")
	}
	if cfg.MaxTOC == 0 {
		cfg.MaxTOC = DefaultMaxTOC
	}
	if cfg.MaxTOC < 0 || cfg.MaxTOC > limitMaxTOC {
		return want, fmt.Errorf("MaxTOC is %d, not 1 to %d", cfg.MaxTOC, int64(limitMaxTOC))
	}
	s := cfg.Annotations[TOCDigestAnnotation]
	if s == "" {
		return want, nil
	}
	if want, err = chunk.ParseID(s); err != nil {
		return want, fmt.Errorf("annotation %s: %w", TOCDigestAnnotation, err)
	}
	if want.Algorithm() != chunk.SHA256 {
		return want, fmt.Errorf("annotation %s: %s is not a sha256", TOCDigestAnnotation, want)
	}
	return want, nil
}

// layer makes a layer of size bytes, whose members end at end, of the TOC in src.
func (cfg *Config) layer(src io.Reader, want chunk.ID, size, end int64) (*Layer, error) {
	x, got, err := readTOC(src, toc.Config{Blob: cfg.Blob, Codec: chunk.Gzip, End: end}, cfg.MaxTOC)
	if !want.IsZero() && !got.IsZero() && got != want {
		return nil, fmt.Errorf("%w: it has digest %s, not %s", chunk.ErrCorrupt, got, want)
	}
	if err != nil {
		return nil, err
	}
	return &Layer{
		Layer: image.Layer{
			Digest:   cfg.Blob,
			Size:     size,
			Format:   image.EStargz,
			Table:    x.Table,
			Prefetch: x.Prefetch,
			Entries:  x.Entries,
		},
		TOCDigest:  got,
		Unverified: want.IsZero(),
	}, nil
}

// readTail returns the last bytes of the blob.
func readTail(ctx context.Context, r image.Ranger, size int64) ([]byte, error) {
	n := min(size, tailSize)
	if n < externalFooterSize {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrNotEStargz, size)
	}
	body, err := r.ReadRange(ctx, size-n, n)
	if err != nil {
		return nil, fmt.Errorf("read the last %d bytes: %w", n, err)
	}
	defer body.Close()
	tail := make([]byte, n)
	if _, err := io.ReadFull(body, tail); err != nil {
		return nil, fmt.Errorf("read the last %d bytes: %w", n, err)
	}
	return tail, nil
}

// tocReader returns a reader of the compressed TOC. It asks r for what is not
// in tail, which ends the blob.
func tocReader(ctx context.Context, r image.Ranger, tail []byte, foot footer) (*source, error) {
	tailOff := r.Size() - int64(len(tail))
	tail = tail[:int64(len(tail))-foot.size]
	if foot.tocOff >= tailOff {
		return &source{body: io.NopCloser(bytes.NewReader(tail[foot.tocOff-tailOff:]))}, nil
	}
	body, err := r.ReadRange(ctx, foot.tocOff, tailOff-foot.tocOff)
	if err != nil {
		return nil, fmt.Errorf("read TOC at %d: %w", foot.tocOff, err)
	}
	return &source{body: body, tail: tail}, nil
}

// A source reads body and then tail. It remembers an error of body, so that a
// broken transfer isn't taken for corrupt bytes.
type source struct {
	body io.ReadCloser
	tail []byte
	eof  bool // body is used up
	err  error
}

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if !s.eof {
		n, err := s.body.Read(p)
		if s.eof = err == io.EOF; !s.eof {
			s.err = err
			return n, err
		}
		if n > 0 {
			return n, nil
		}
	}
	n := copy(p, s.tail)
	s.tail = s.tail[n:]
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Close closes body.
func (s *source) Close() error { return s.body.Close() }
