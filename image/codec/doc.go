// Package codec turns the encoded bytes of spans into chunks.
//
// A [Decoder] is given a reader of a stretch of a blob and the run of spans
// that lie in it, and hands out the bytes of each of their chunks in order. It
// streams: what it holds is the state of one decoder and the largest chunk of
// the run, however long the run is.
//
// The bytes that it hands out are not verified. It trusts neither them nor the
// spans: damaged ones give [chunk.ErrCorrupt] or wrong bytes, and whoever takes
// a chunk checks it against its digest. The checksum of a gzip member is verified
// where the member is decoded from its first byte to its last, which most are
// not.
//
// # Runs
//
// The spans of a run belong to one blob and are sorted by Off. A span is
// decoded from its own first byte if the source has not been read beyond it,
// so that the encoded bytes of a gap before it are skipped, not decoded. A
// [chunk.Deflate] span after the first of a run is instead reached by decoding
// on from where the span before it ended, whatever lies in between; so only the
// first span of a run ever needs its window. The decoder tells the places of
// such spans by their Start.
//
// Neighbouring spans may overlap in encoded bytes, because a deflate block may
// hold the end of one and the beginning of the next.
//
// # Gzip
//
// A gzip stream ends where no further member follows a member's trailer: at the
// end of the run, or at bytes that are no gzip header, such as padding. A part
// that would need more is an error.
//
// # LZ4
//
// A bare LZ4 block tells neither its own length nor that of what it decodes to.
// So it is read whole, by the length of its span, and decoded whole, whichever
// of its parts are wanted.
//
// # Limits
//
// A Zstandard frame that needs a window over 128 MiB, or a dictionary, is
// refused as corrupt: no encoder makes such a frame unless it is told to. So is an
// LZ4 block that is longer than, or decodes to more than, a chunk may have. All
// other state is bounded by the format itself, below 256 KiB.
//
// The package knows nothing of files, indexes or networks.
package codec
