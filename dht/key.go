package dht

import (
	"github.com/cespare/xxhash/v2"

	"graze/chunk"
)

// A Key is what homes are looked up by. It is a hash whose bits are all equally
// good. All nodes of a cluster must make it in the same way.
type Key uint64

const (
	smallSpan = 256 << 10 // spans below this share the home of the window they begin in
	window    = 4 << 20
)

// HomeKey returns the key of a span: of its blob and its offset there, so that
// the chunks of a span share a home and one request to the registry. Small spans
// of one 4 MiB window of the blob share a key, so that their home can ask for
// neighbours at once.
func HomeKey(s *chunk.Span) Key {
	off := uint64(s.Off)
	if s.Len < smallSpan {
		off &^= window - 1
	}
	return Key(mix(xxhash.Sum64String(string(s.Blob)) + off*0x9e3779b97f4a7c15))
}

// mix is the finalizer of splitmix64: each bit of x changes each bit of the
// result with a probability of about one half.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
