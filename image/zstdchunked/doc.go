// Package zstdchunked finds and verifies the table of contents (TOC) of
// zstd:chunked layers. What it says is read by package toc.
//
// Such a layer is an ordinary .tar.zst of many frames. The TOC is a JSON document,
// compressed, in a skippable frame behind them. There are two dialects, which
// differ in the names of their annotations and in their footers, and of which a
// reader of one takes a layer of the other for an unindexed one:
//
//   - that of containers/storage (Podman, Buildah, skopeo), whose annotations begin
//     with io.github.containers.zstd-chunked and whose footer has 64 bytes. Its
//     TOC has an entry for each of the archive, whatever their names. Runs of zeros
//     are chunks of their own, of which nothing is fetched. Behind the TOC stands
//     what is needed to rebuild the archive (tar-split), which has no use here;
//   - that of the stargz snapshotter, whose annotations begin with
//     io.containers.zstd-chunked and whose footer has 40 bytes. Its TOC is that of
//     eStargz, with landmarks and all.
//
// The annotations of the layer's descriptor say where the TOC is and which digest
// its compressed bytes have, so that the manifest vouches for the TOC, and the TOC
// for every chunk. Only where they don't say where it is, the footer is asked; and
// only where [Config.Accept] is set, a TOC is taken for which nothing vouches.
//
// A layer must not have two tables. All that its annotations and its footer say, of
// both dialects and of the eStargz TOC digest, must be true of one and the same TOC;
// otherwise two readers of the image would see two trees, and it is refused.
//
// A TOC is data from the network: its size is bounded by [Config.MaxTOC] before it
// is decompressed, and no more is decompressed than was announced. Errors that wrap
// [chunk.ErrCorrupt] are about the bytes; those that wrap one of this package's
// errors, or [toc.ErrUnsupported], are about what kind of layer it is.
//
// An opened [Layer] is immutable and safe for concurrent use.
package zstdchunked
