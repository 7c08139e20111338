package sim

import (
	"fmt"
	"io"
	"iter"
	"math/rand/v2"

	"graze/chunk"
)

// Names of the blobs of an Image. Images that are made of others have names of
// their own in place of dataBlob.
const (
	dataBlob   chunk.Blob = "sha256:da7a"
	windowBlob chunk.Blob = "sha256:817d"
)

// windowLen is the size of a window, and chunks of windows have windowsPerChunk.
const (
	windowLen       = 64
	windowsPerChunk = 4
)

// An Image is one file of random bytes in a blob, cut into spans of chunks. It
// implements scheduler.Layout and scheduler.Decoder: its spans are stored as
// they are, whatever codec they claim.
type Image struct {
	blobs map[chunk.Blob][]byte
	data  []byte // of the file
	spans []chunk.Span
	refs  []chunk.Ref
	size  int // of a chunk
	per   int // chunks of a span
}

// A Shape says how an Image is cut.
type Shape struct {
	Bytes   int  // of the file
	Chunk   int  // bytes of a chunk
	Chunks  int  // of a span
	Gap     int  // bytes between spans in a blob that belong to none
	Windows bool // each span but the first needs a window, which lies in another blob
}

// NewImage makes an image of random bytes from a seed.
func NewImage(seed uint64, shape Shape) *Image {
	im := &Image{blobs: make(map[chunk.Blob][]byte), size: shape.Chunk, per: shape.Chunks}
	im.data = randomBytes(seed, shape.Bytes)
	im.cut(dataBlob, shape)
	if shape.Windows {
		im.addWindows(shape.Gap)
	}
	return im
}

func randomBytes(seed uint64, n int) []byte {
	p := make([]byte, n)
	key := [32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)}
	rand.NewChaCha8(key).Read(p)
	return p
}

// Remix returns an image that has the chunks of im, stretches of them in another
// order, and in between fresh chunks of its own. They lie in another blob, with
// per chunks to a span. The chunks of im must be of one size.
func (im *Image) Remix(seed uint64, fresh, per int) *Image {
	rng := rand.New(rand.NewPCG(seed, 3))
	re := &Image{blobs: make(map[chunk.Blob][]byte), size: im.size, per: per}
	own := randomBytes(seed+1, fresh*im.size)
	const stretches = 8
	for i, s := range rng.Perm(stretches) {
		from, to := s*im.Chunks()/stretches, (s+1)*im.Chunks()/stretches
		re.data = append(re.data, im.data[from*im.size:min(to*im.size, len(im.data))]...)
		from, to = i*fresh/stretches, (i+1)*fresh/stretches
		re.data = append(re.data, own[from*im.size:to*im.size]...)
	}
	re.cut(chunk.Blob(fmt.Sprintf("sha256:%x", seed)), Shape{Bytes: len(re.data), Chunk: im.size, Chunks: per})
	return re
}

// NewTo returns the encoded bytes of all spans that have a chunk that old does not
// have.
func (im *Image) NewTo(old *Image) (n int64) {
	have := make(map[chunk.ID]bool)
	for _, ref := range old.refs {
		have[ref.ID] = true
	}
	for _, s := range im.spans {
		for _, part := range s.Parts {
			if !have[part.ID] {
				n += s.Len
				break
			}
		}
	}
	return n
}

// cut cuts the image's data into chunks and spans, and makes the blob of them.
func (im *Image) cut(name chunk.Blob, shape Shape) {
	codec := chunk.Raw
	if shape.Windows {
		codec = chunk.Deflate
	}
	var blob []byte
	for off := 0; off < shape.Bytes; {
		at := int64(len(blob))
		s := chunk.Span{Blob: name, Off: at, Start: at, Codec: codec}
		for len(s.Parts) < shape.Chunks && off < shape.Bytes {
			p := im.data[off:min(off+shape.Chunk, shape.Bytes)]
			ref := chunk.Ref{ID: chunk.BLAKE3.Sum(p), Size: int32(len(p))}
			s.Parts = append(s.Parts, chunk.Part{Ref: ref, At: s.Len})
			s.Len += int64(len(p))
			im.refs = append(im.refs, ref)
			blob = append(blob, p...)
			off += len(p)
		}
		im.spans = append(im.spans, s)
		blob = append(blob, make([]byte, shape.Gap)...)
	}
	im.blobs[name] = blob
}

func (im *Image) addWindows(gap int) {
	var blob []byte
	var chunks []chunk.Span
	const size = windowLen * windowsPerChunk
	for i := 0; i < len(im.spans); i += windowsPerChunk {
		p := make([]byte, size)
		for j := range p {
			p[j] = byte(i + j*j)
		}
		chunks = append(chunks, chunk.Span{
			Blob: windowBlob, Off: int64(len(blob)), Len: size, Codec: chunk.Raw, Start: int64(len(blob)),
			Parts: []chunk.Part{{Ref: chunk.Ref{ID: chunk.BLAKE3.Sum(p), Size: size}}},
		})
		blob = append(append(blob, p...), make([]byte, gap)...)
	}
	im.blobs[windowBlob] = blob
	for i := 1; i < len(im.spans); i++ {
		im.spans[i].Window = &chunk.Slice{
			Span: chunks[i/windowsPerChunk], Off: int32(i % windowsPerChunk * windowLen), Len: windowLen,
		}
	}
}

// Size returns the size of the file.
func (im *Image) Size() int64 { return int64(len(im.data)) }

// Chunks returns the number of chunks of the file.
func (im *Image) Chunks() int { return len(im.refs) }

// Bytes returns the bytes of chunk n of the file.
func (im *Image) Bytes(n int) []byte {
	off := n * im.size
	return im.data[off : off+int(im.refs[n].Size)]
}

// Extents implements scheduler.Layout. There is one file.
func (im *Image) Extents(_ uint64, off, n int64) iter.Seq[chunk.Extent] {
	return func(yield func(chunk.Extent) bool) {
		size := int64(im.size)
		for c := off / size; c*size < min(off+n, im.Size()); c++ {
			if !yield(chunk.Extent{Off: c * size, Len: int64(im.refs[c].Size), Chunk: uint32(c)}) {
				return
			}
		}
	}
}

// Chunk implements scheduler.Layout.
func (im *Image) Chunk(n uint32) (chunk.Ref, uint32) { return im.refs[n], n / uint32(im.per) }

// Span implements scheduler.Layout.
func (im *Image) Span(n uint32) chunk.Span { return im.spans[n] }

// NumSpans implements scheduler.Layout.
func (im *Image) NumSpans() int { return len(im.spans) }

// Decode implements scheduler.Decoder.
func (im *Image) Decode(src io.Reader, run []chunk.Span, window []byte, emit func(span, part int, p []byte) error) error {
	if w := run[0].Window; w != nil {
		want := im.blobs[windowBlob][w.Span.Off+int64(w.Off):][:w.Len]
		if string(window) != string(want) {
			return fmt.Errorf("%w: wrong window for the span at %d", chunk.ErrCorrupt, run[0].Off)
		}
	}
	pos := run[0].Off
	for i := range run {
		for j, part := range run[i].Parts {
			at := run[i].Off + part.At
			if _, err := io.CopyN(io.Discard, src, at-pos); err != nil {
				return err
			}
			p := make([]byte, part.Size)
			if _, err := io.ReadFull(src, p); err != nil {
				return err
			}
			pos = at + int64(part.Size)
			if err := emit(i, j, p); err != nil {
				return err
			}
		}
	}
	return nil
}
