// Package estargz reads the index of eStargz layers, and of the older stargz
// ones.
//
// Such a layer is an ordinary .tar.gz, cut into gzip members so that the payload
// of each file, or of each chunk of a large file, can be decoded without what
// stands before it. Its last member holds the table of contents (TOC), a JSON
// document that lists every entry of the archive and the SHA-256 of every
// chunk. A footer of fixed size, itself an empty gzip member, says where the
// TOC starts. [Open] therefore reads the end of the layer only, in one request
// as a rule.
//
// The digest of the TOC stands in the annotations of the layer's descriptor, so
// that the manifest vouches for the TOC, and the TOC for every chunk. Where the
// annotation is missing, the [Policy] of the caller decides. A file whose bytes
// no digest covers makes the layer unusable: nothing is ever read unverified.
//
// What becomes of the parts of the format:
//
//   - A gzip member with payload is a span, whose encoded bytes end where the
//     next member with payload begins. What lies behind the last part of a span,
//     headers of entries mostly, needs no decoding. The TOC doesn't say where
//     a member lies in the decoded layer, so the Start of all spans is 0 and
//     spans that are read together must be decoded member by member.
//   - A chunk is a part of its member's span. Several share a member if the
//     layer was written with a minimal chunk size.
//   - The landmark files at the root, which say what to prefetch, set
//     [image.Layer.Prefetch]. Neither they nor the TOC itself are entries.
//
// The package doesn't interpret whiteouts, doesn't clean names and doesn't
// supply missing parents: that is the merge's work. It knows nothing of
// registries; bytes come from an [image.Ranger].
//
// A TOC is data from the network. It is parsed as a stream, bounded by
// [Config.MaxTOC] after decompression, and checked for every way in which
// offsets, sizes, chunk lists and links can contradict each other; errors name
// the entry. Errors that wrap [chunk.ErrCorrupt] are about the bytes, those that
// wrap one of this package's errors are about what kind of layer it is.
//
// An opened [Layer] is immutable and safe for concurrent use. It keeps about
// 64 bytes an entry beyond names, and the chunk table.
package estargz
