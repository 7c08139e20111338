// Package inflate decodes deflate data (RFC 1951) and gzip files (RFC 1952). It
// is made for reading layers, where the decoders of other libraries fall short
// in two ways: they can't be entered at any block, with the bit that it begins
// at and the bytes before it, and they don't tell where in the encoded stream
// they are.
//
// An [Input] buffers the encoded bytes and knows their offsets. A [Reader]
// decodes one deflate stream from it, and a [Gzip] the members of a gzip file.
// When any of their methods returns, the input stands at the first byte of which
// no bit has been used, so that what follows a stream can be read, or skipped,
// from the same input. No more is decoded than was asked for, but for a match
// that goes beyond it, and no more read than the source has at hand, as long as
// that makes a few bytes; so a slow source does not hold back what has arrived.
//
// # How decoding works
//
// A block's Huffman codes are turned into tables that are indexed by the next
// bits of the stream; an entry has all that the loop needs to know about a
// symbol: see table.go. The loop, in huffman.go, keeps at least 56 bits in a
// register, loads whole words, and decodes up to three literals before it looks
// for more bits. It runs only where enough of the input is buffered and enough
// room left for whatever a symbol may be, so that it need check neither; the
// last bytes of a stream go through a second loop that checks for the end of the
// input after each symbol. Matches are copied within one buffer, which holds the
// last 32 KiB that were decoded and what has not been read yet.
//
// # Observation
//
// Who makes checkpoints wants to know where blocks begin, and which of the bytes
// before one are referred to from behind it. An [Observer] is called after every
// block and at least every few KiB, when the reader can be asked for that. A
// reader without one does not pay for it: all that is left of it in the loop is
// the comparison that finds references to before the stream's beginning.
//
// # Damaged and hostile data
//
// Damaged data give an error that wraps [ErrCorrupt] and tells the offset, or
// wrong bytes: deflate has no redundancy, and only the checksum at the end of a
// gzip member can tell. Data that end early give [io.ErrUnexpectedEOF]. Errors
// of the source are returned as they are. In any case the bytes that were
// decoded before come first, as they would from compress/flate, whose opinion of
// what is damaged this package shares.
//
// # Memory and concurrency
//
// The state of a Reader and its Input is of fixed size, less than 256 KiB
// together, and nothing is allocated while decoding. All types have a Reset, so
// that they can be pooled, and none may be used by two goroutines at a time.
// Slices that are returned are parts of the buffers: they are valid until the
// next call.
//
// The package knows nothing of archives, layers or chunks.
package inflate
