package chunk

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/zeebo/blake3"
)

// An Algorithm says which digest names a chunk. The numbers are part of
// graze's formats on disk and must not change.
type Algorithm uint8

// The digests that name chunks. Both have sums of [SumSize] bytes.
const (
	SHA256 Algorithm = 1
	BLAKE3 Algorithm = 2
)

// SumSize is the length of a chunk's digest in bytes.
const SumSize = 32

// String returns the algorithm's name as it stands in a digest, "sha256" or
// "blake3".
func (a Algorithm) String() string {
	switch a {
	case SHA256:
		return "sha256"
	case BLAKE3:
		return "blake3"
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// Valid reports whether a is one of the algorithms above.
func (a Algorithm) Valid() bool { return a == SHA256 || a == BLAKE3 }

// Sum returns the ID of the chunk whose bytes are p. The algorithm must be
// valid.
func (a Algorithm) Sum(p []byte) ID {
	switch a {
	case SHA256:
		return ID{a, sha256.Sum256(p)}
	case BLAKE3:
		return ID{a, blake3.Sum256(p)}
	}
	panic("chunk: " + a.String() + " is not a digest algorithm")
}

// An ID names a chunk by the digest of its bytes. It is comparable, so it can
// be a map key; the zero ID names no chunk.
type ID struct {
	alg Algorithm
	sum [SumSize]byte
}

// NewID makes an ID of the parts that Algorithm and Sum return. It is for
// decoders; it fails on an unknown algorithm.
func NewID(a Algorithm, sum [SumSize]byte) (ID, error) {
	if !a.Valid() {
		return ID{}, fmt.Errorf("chunk digest has unknown %s", a)
	}
	return ID{a, sum}, nil
}

// ParseID parses the form that String returns: "sha256:" or "blake3:" and 64
// lower-case hexadecimal digits.
func ParseID(s string) (ID, error) {
	name, digits, _ := strings.Cut(s, ":")
	var id ID
	switch name {
	case "sha256":
		id.alg = SHA256
	case "blake3":
		id.alg = BLAKE3
	default:
		return ID{}, fmt.Errorf("chunk digest %.80q is neither sha256 nor blake3", s)
	}
	if len(digits) != hex.EncodedLen(SumSize) || strings.ToLower(digits) != digits {
		return ID{}, fmt.Errorf("chunk digest %.80q has no 64 lower-case hexadecimal digits", s)
	}
	if _, err := hex.Decode(id.sum[:], []byte(digits)); err != nil {
		return ID{}, fmt.Errorf("chunk digest %.80q: %w", s, err)
	}
	return id, nil
}

// Algorithm returns the digest algorithm, 0 for the zero ID.
func (id ID) Algorithm() Algorithm { return id.alg }

// Sum returns the digest itself.
func (id ID) Sum() [SumSize]byte { return id.sum }

// IsZero reports whether id names no chunk.
func (id ID) IsZero() bool { return id == ID{} }

// String returns the digest as "sha256:…" or "blake3:…".
func (id ID) String() string {
	return id.alg.String() + ":" + hex.EncodeToString(id.sum[:])
}

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseID(string(text))
	return err
}
