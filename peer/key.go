package peer

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
)

// A ClusterKey is the secret that the nodes of a cluster share. The zero value
// is no key.
type ClusterKey [32]byte

// The text of a key is a prefix and, in base32, the key and the first bytes of
// a digest, so that a typing error is noticed and not taken for another cluster.
const (
	keyPrefix   = "graze-key-1:"
	keyChecksum = 3
)

var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewClusterKey makes a key.
func NewClusterKey() ClusterKey {
	var k ClusterKey
	rand.Read(k[:]) // never fails
	return k
}

// ParseClusterKey parses what Text returns; space around it is dropped. The
// error does not repeat any of it.
func ParseClusterKey(text string) (ClusterKey, error) {
	digits, ok := strings.CutPrefix(strings.TrimSpace(text), keyPrefix)
	if !ok {
		return ClusterKey{}, fmt.Errorf("cluster key does not start with %q", keyPrefix)
	}
	var k ClusterKey
	b, err := keyEncoding.DecodeString(digits)
	if err != nil || len(b) != len(k)+keyChecksum || len(digits) != keyEncoding.EncodedLen(len(b)) {
		return ClusterKey{}, fmt.Errorf("cluster key does not have %d letters and digits from a to z and 2 to 7 behind %q",
			keyEncoding.EncodedLen(len(k)+keyChecksum), keyPrefix)
	}
	copy(k[:], b)
	if k.checksum() != [keyChecksum]byte(b[len(k):]) {
		return ClusterKey{}, errors.New("cluster key has a typing error: its checksum is wrong")
	}
	if k == (ClusterKey{}) {
		return ClusterKey{}, errors.New("cluster key is all zeros")
	}
	return k, nil
}

// LoadClusterKey reads the key in the file path, which nobody but its owner may
// read.
func LoadClusterKey(path string) (ClusterKey, error) {
	b, err := readSecret(path)
	if err != nil {
		return ClusterKey{}, fmt.Errorf("read cluster key: %w", err)
	}
	k, err := ParseClusterKey(string(b))
	if err != nil {
		return ClusterKey{}, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// Text returns the key in the form for files. It is the secret itself.
func (k ClusterKey) Text() string {
	sum := k.checksum()
	return keyPrefix + keyEncoding.EncodeToString(append(k[:], sum[:]...))
}

func (k ClusterKey) checksum() [keyChecksum]byte {
	sum := sha256.Sum256(append([]byte(keyPrefix), k[:]...))
	return [keyChecksum]byte(sum[:])
}

// String hides the key from logs and errors; see Text.
func (k ClusterKey) String() string { return "a cluster key" }

// GoString hides the key too.
func (k ClusterKey) GoString() string { return k.String() }

// Derive returns a key for one purpose. It says nothing of k or of the keys for
// other purposes.
func (k ClusterKey) Derive(purpose string) [32]byte {
	return derive(k[:], "cluster "+purpose)
}

func derive(secret []byte, purpose string) [32]byte {
	b, err := hkdf.Key(sha256.New, secret, nil, "graze "+purpose, 32)
	if err != nil {
		panic("peer: " + err.Error()) // only for keys longer than 255 digests
	}
	return [32]byte(b)
}
