// Package inflatetest makes what the deflate streams of tests hold. It imports none of
// graze, so that the packages below imagetest can use it.
package inflatetest

import (
	"encoding/binary"
	"math/rand/v2"
)

// Text returns n bytes that compress to about a third.
func Text(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	words := make([][]byte, 400)
	for i := range words {
		words[i] = make([]byte, 2+rng.IntN(9))
		for j := range words[i] {
			words[i][j] = byte('a' + rng.IntN(26))
		}
	}
	var p []byte
	for len(p) < n {
		p = append(p, words[int(float64(len(words))*rng.Float64()*rng.Float64())]...)
		p = append(p, byte(' '+rng.IntN(3)))
	}
	return p[:n]
}

// Noise returns n bytes that don't compress.
func Noise(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	p := make([]byte, n)
	rand.NewChaCha8(key).Read(p)
	return p
}
