// Package estargz finds and verifies the table of contents (TOC) of eStargz layers,
// and of the older stargz ones. What it says is read by package toc.
//
// Such a layer is an ordinary .tar.gz of many gzip members. Its last member holds
// the TOC, a JSON document. A footer of fixed size, itself an empty gzip member,
// says where the TOC starts. [Open] therefore reads the end of the layer only, in
// one request as a rule. Where the footer says that the TOC is not in the layer, it
// is in another image, and [OpenExternal] reads it from there.
//
// The digest of the TOC stands in the annotations of the layer's descriptor, so
// that the manifest vouches for the TOC, and the TOC for every chunk. Where the
// annotation is missing, the [Policy] of the caller decides; a TOC from another
// image is never taken without it.
//
// The package knows nothing of registries; bytes come from an [image.Ranger]. A TOC
// is bounded by [Config.MaxTOC] after decompression. Errors that wrap
// [chunk.ErrCorrupt] are about the bytes; those that wrap one of this package's
// errors, or [toc.ErrUnsupported], are about what kind of layer it is.
//
// An opened [Layer] is immutable and safe for concurrent use.
package estargz
