// Package chunk is the vocabulary that the rest of graze shares: what a chunk
// is called, where the registry keeps its bytes, and how an operation on it
// fails.
//
// A chunk is at most [MaxSize] bytes, named by the digest of those bytes. It is
// the one unit of verification, of caching and of transfer between nodes. A
// chunk is a slice of one large file, or a pack: a stretch of a layer that
// holds many small files.
//
// A [Span] is what the registry is asked for: the encoded bytes of one blob
// from which one or more whole chunks are decoded. Whoever decodes a span keeps
// all its chunks.
//
// Bytes from a disk, a peer or a registry become a [Verified] value by
// [Ref.Verify] and in no other way, so that unverified bytes have no type that
// a store or a reader would take. Whoever cuts new chunks names them by
// [Algorithm.Name].
//
// The package does no I/O, starts no goroutine and holds no state; all its
// values are safe for concurrent use. Slices are never copied: who passes one
// in must not change it while the result is in use.
package chunk
