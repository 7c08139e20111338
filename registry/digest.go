package registry

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strings"
)

// algorithm is the name of a hash that digests may use.
type algorithm string

const (
	sha256Algorithm algorithm = "sha256"
	sha512Algorithm algorithm = "sha512"
)

// size returns the length of the algorithm's sums in bytes, 0 if it is unknown.
func (a algorithm) size() int {
	switch a {
	case sha256Algorithm:
		return sha256.Size
	case sha512Algorithm:
		return sha512.Size
	}
	return 0
}

// A digest is a checked "algorithm:hex". It is safe to use in a file name. The
// zero digest names nothing.
type digest struct {
	algorithm algorithm
	hex       string
}

// parseDigest parses a digest in the form that the image spec fixes for its
// registered algorithms: lower-case digits, as many as the sum has.
func parseDigest(s string) (digest, error) {
	name, digits, _ := strings.Cut(s, ":")
	a := algorithm(name)
	if a.size() == 0 {
		return digest{}, fmt.Errorf("digest %.80q is neither sha256 nor sha512", s)
	}
	if len(digits) != hex.EncodedLen(a.size()) {
		return digest{}, fmt.Errorf("digest %.80q has no %d hexadecimal digits", s, hex.EncodedLen(a.size()))
	}
	for _, c := range []byte(digits) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return digest{}, fmt.Errorf("digest %.80q has characters other than 0-9 and a-f", s)
		}
	}
	return digest{a, digits}, nil
}

// digestOf returns the digest of p by the algorithm a, which must be known.
func digestOf(a algorithm, p []byte) digest {
	h := newHash(a)
	h.Write(p)
	return digest{a, hex.EncodeToString(h.Sum(nil))}
}

// digestReader returns the digest of all that r yields.
func digestReader(a algorithm, r io.Reader) (digest, error) {
	h := newHash(a)
	if _, err := io.Copy(h, r); err != nil {
		return digest{}, err
	}
	return digest{a, hex.EncodeToString(h.Sum(nil))}, nil
}

func newHash(a algorithm) hash.Hash {
	switch a {
	case sha256Algorithm:
		return sha256.New()
	case sha512Algorithm:
		return sha512.New()
	}
	panic("registry: " + string(a) + " is not a digest algorithm")
}

// isZero reports whether d names nothing.
func (d digest) isZero() bool { return d == digest{} }

// String returns the digest as "algorithm:hex", and the zero digest as "".
func (d digest) String() string {
	if d.isZero() {
		return ""
	}
	return string(d.algorithm) + ":" + d.hex
}
