package chunk

import "fmt"

// MaxSize bounds a chunk in memory, on disk and on the wire, in bytes.
const MaxSize = 16 << 20

// A Ref is a chunk's name and its size in bytes. The size comes from a verified
// index, never from a peer.
type Ref struct {
	ID   ID
	Size int32
}

// String returns the digest and the size.
func (r Ref) String() string { return fmt.Sprintf("%s (%d bytes)", r.ID, r.Size) }

// Check returns an error unless r could name a chunk: a valid algorithm and a
// size from 1 to MaxSize. Decoders call it before anything is allocated.
func (r Ref) Check() error {
	if !r.ID.alg.Valid() {
		return fmt.Errorf("chunk has unknown digest %s", r.ID.alg)
	}
	if r.Size <= 0 || r.Size > MaxSize {
		return fmt.Errorf("chunk %s has size %d, not 1 to %d", r.ID, r.Size, MaxSize)
	}
	return nil
}

// Verified is a chunk's bytes along with the digest that they are known to have.
// Only [Ref.Verify] and [Algorithm.Name] make one, apart from the zero value,
// which holds no chunk.
type Verified struct {
	ref Ref
	p   []byte
}

// Ref returns the chunk's name and size.
func (v Verified) Ref() Ref { return v.ref }

// Bytes returns the chunk's bytes; they must not be changed.
func (v Verified) Bytes() []byte { return v.p }

// Verify returns p as the chunk r, or ErrCorrupt if p is anything else.
func (r Ref) Verify(p []byte) (Verified, error) {
	if err := r.Check(); err != nil {
		return Verified{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if len(p) != int(r.Size) {
		return Verified{}, fmt.Errorf("%w: %d bytes in place of %d", ErrCorrupt, len(p), r.Size)
	}
	if got := r.ID.alg.Sum(p); got != r.ID {
		return Verified{}, fmt.Errorf("%w: digest is %s", ErrCorrupt, got)
	}
	return Verified{r, p}, nil
}

// Name returns p, of 1 to MaxSize bytes, as the chunk that it is. It is for
// those who make chunks, and so know that their bytes are right.
func (a Algorithm) Name(p []byte) Verified {
	r := Ref{ID: a.Sum(p), Size: int32(min(len(p), MaxSize+1))}
	if err := r.Check(); err != nil {
		panic("chunk: " + err.Error())
	}
	return Verified{r, p}
}
