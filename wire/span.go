package wire

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"graze/chunk"
	"graze/wire/wirepb"
)

// maxWindow is the farthest that a deflate block refers back to, RFC 1951.
const maxWindow = 32 << 10

// checkSpan returns an error unless s is what a request of mode m may carry.
func checkSpan(s *chunk.Span, m Mode) error {
	if err := checkParts(s.Parts); err != nil {
		return err
	}
	if m != Home && s.Blob == "" {
		if s.Off != 0 || s.Len != 0 || s.Codec != 0 || s.Bits != 0 || s.Start != 0 || s.Window != nil {
			return errors.New("the span has a place but no blob")
		}
		return nil
	}
	if err := checkPlace(s); err != nil {
		return err
	}
	if s.Window == nil {
		return nil
	}
	return checkWindow(s)
}

// checkBlob accepts the digest of a blob.
func checkBlob(b chunk.Blob) error {
	if digest, ok := strings.CutPrefix(string(b), "sha256:"); !ok || len(digest) != 64 ||
		strings.Trim(digest, "0123456789abcdef") != "" {
		return fmt.Errorf("%.80q is no digest of a blob", string(b))
	}
	return nil
}

// checkPlace checks where the span's encoded bytes are.
func checkPlace(s *chunk.Span) error {
	if err := checkBlob(s.Blob); err != nil {
		return err
	}
	if s.Off < 0 || s.Len <= 0 || s.Off > math.MaxInt64-s.Len {
		return fmt.Errorf("bytes %d+%d of a blob can't be", s.Off, s.Len)
	}
	if s.Start < 0 || s.Start > math.MaxInt64-s.Decoded() {
		return fmt.Errorf("decoded offset %d can't be", s.Start)
	}
	switch s.Codec {
	case chunk.Raw, chunk.Gzip, chunk.Zstd, chunk.LZ4:
		if s.Bits != 0 || s.Window != nil {
			return fmt.Errorf("a %s span has bits or a window", s.Codec)
		}
	case chunk.Deflate:
		if s.Bits > 7 {
			return fmt.Errorf("%d bits of a byte", s.Bits)
		}
	default:
		return fmt.Errorf("unknown %s", s.Codec)
	}
	return nil
}

func checkParts(parts []chunk.Part) error {
	if len(parts) == 0 {
		return errors.New("the span has no part")
	}
	var end int64
	for i, p := range parts {
		if err := p.Check(); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
		if p.At < end || p.At > math.MaxInt64-int64(p.Size) {
			return fmt.Errorf("part %d is at %d, the one before ends at %d", i, p.At, end)
		}
		end = p.At + int64(p.Size)
	}
	return nil
}

// checkWindow checks the window of s. The span that holds it must be one that
// can be decoded without a window of its own, so that fetching one chunk never
// leads to a chain of others.
func checkWindow(s *chunk.Span) error {
	w := s.Window
	if w.Span.Window != nil {
		return errors.New("the window's span needs a window itself")
	}
	if err := checkSpan(&w.Span, Home); err != nil {
		return fmt.Errorf("window: %w", err)
	}
	if w.Part < 0 || w.Part >= len(w.Span.Parts) {
		return fmt.Errorf("the window is in part %d of %d", w.Part, len(w.Span.Parts))
	}
	if size := w.Ref().Size; w.Off < 0 || w.Len <= 0 || w.Len > maxWindow || w.Off > size-w.Len {
		return fmt.Errorf("the window is bytes %d+%d of %d", w.Off, w.Len, size)
	}
	return nil
}

func spanToPB(s *chunk.Span) *wirepb.Span {
	pb := &wirepb.Span{
		Blob: string(s.Blob), Off: s.Off, Len: s.Len,
		Codec: uint32(s.Codec), Bits: uint32(s.Bits), Start: s.Start,
		Parts: make([]*wirepb.Part, len(s.Parts)),
	}
	for i, p := range s.Parts {
		sum := p.ID.Sum()
		pb.Parts[i] = &wirepb.Part{Algorithm: uint32(p.ID.Algorithm()), Sum: sum[:], Size: p.Size, At: p.At}
	}
	if w := s.Window; w != nil {
		pb.Window = &wirepb.Slice{Span: spanToPB(&w.Span), Part: uint32(w.Part), Off: w.Off, Len: w.Len}
	}
	return pb
}

// spanFromPB converts a span. What does not fit the Go type is an error here;
// the rest is left to checkSpan. Windows are followed once.
func spanFromPB(pb *wirepb.Span, window bool) (s chunk.Span, err error) {
	if len(pb.GetBlob()) > maxBlob {
		return s, fmt.Errorf("a blob's digest of %d bytes", len(pb.GetBlob()))
	}
	if pb.GetCodec() > math.MaxUint8 || pb.GetBits() > math.MaxUint8 {
		return s, fmt.Errorf("unknown codec(%d) with %d bits", pb.GetCodec(), pb.GetBits())
	}
	s = chunk.Span{
		Blob: chunk.Blob(pb.GetBlob()), Off: pb.GetOff(), Len: pb.GetLen(),
		Codec: chunk.Codec(pb.GetCodec()), Bits: uint8(pb.GetBits()), Start: pb.GetStart(),
	}
	if len(pb.GetParts()) > MaxParts {
		return s, fmt.Errorf("more than %d parts", MaxParts)
	}
	s.Parts = make([]chunk.Part, len(pb.GetParts()))
	for i, p := range pb.GetParts() {
		if p.GetAlgorithm() > math.MaxUint8 || len(p.GetSum()) != chunk.SumSize {
			return s, fmt.Errorf("part %d: digest of algorithm %d with %d bytes", i, p.GetAlgorithm(), len(p.GetSum()))
		}
		id, err := chunk.NewID(chunk.Algorithm(p.GetAlgorithm()), [chunk.SumSize]byte(p.GetSum()))
		if err != nil {
			return s, fmt.Errorf("part %d: %w", i, err)
		}
		s.Parts[i] = chunk.Part{Ref: chunk.Ref{ID: id, Size: p.GetSize()}, At: p.GetAt()}
	}
	if pb.GetWindow() == nil {
		return s, nil
	}
	if window {
		return s, errors.New("the window's span needs a window itself")
	}
	w := pb.GetWindow()
	span, err := spanFromPB(w.GetSpan(), true)
	if err != nil {
		return s, fmt.Errorf("window: %w", err)
	}
	if w.GetPart() >= MaxParts {
		return s, fmt.Errorf("the window is in part %d", w.GetPart())
	}
	s.Window = &chunk.Slice{Span: span, Part: int(w.GetPart()), Off: w.GetOff(), Len: w.GetLen()}
	return s, nil
}
