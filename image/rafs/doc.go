// Package rafs reads RAFS images of the versions 5 and 6, the format of Nydus.
//
// Such an image has one index for all of it, the bootstrap: the tree after all
// layers were laid over each other, and for each file the list of its chunks. The
// chunks are in blobs, mostly one for each layer of the image that it was
// converted from, each chunk encoded by itself. The bootstrap is in a layer of
// its own, the last of the image's manifest, so that the manifest vouches for it,
// and the bootstrap for every chunk by a digest. [Unpack] takes it out of that
// layer, and [Open] makes an [image.Layer] of it: the only one of the view.
//
// Version 5 is a format of its own; version 6 is laid out so that the kernel can
// mount it as EROFS. What becomes of their parts:
//
//   - A chunk is a chunk, and a span by itself. Chunks of a batch, which are
//     encoded together, share the span of their batch. A chunk that several files
//     have, or that is in a blob of another image (a dictionary), is one row of the
//     table.
//   - A blob that is an unmodified .tar.gz layer (ZRan) is read from contexts on:
//     places in the gzip stream with the up to 32 KiB before them. A context is a
//     span with a window. The windows are in the meta of the blob, which is another
//     blob, and are fetched as chunks of that.
//   - Where a chunk is says the bootstrap's own table of chunks, so that no blob
//     has to be read to mount an image. Batches, contexts, and images whose chunks
//     have their digests in the blobs need the chunk information (meta) in or beside
//     the blobs: it comes along with the bootstrap, or is read at [Open].
//   - A blob that is an unpacked layer (tarfs) has no digests of chunks. If the
//     caller allows, all of it is read and compared with the blob's digest, and
//     the chunks are named meanwhile. Otherwise the image is refused.
//   - Files and folders that are to be prefetched set [image.Layer.Prefetch]. The
//     root alone, which builders write by default, does not.
//   - Names of one file are found by the number of its inode; of files whose inode
//     was copied for each name, as old builders did in version 6, by a comparison.
//   - Owners are root in version 5 where the flags say that they are not meant; in
//     version 6 they are what stands there, as the kernel has it.
//
// Nothing is read that no digest covers. Refused are encrypted images, blobs
// outside of the registry, chunks without digests, and flags or features that are
// not known: by [ErrEncrypted], [ErrNoDigest] and [ErrUnsupported].
//
// The package knows nothing of registries. A bootstrap is data from the network:
// each offset, size and number is checked before it is used; a tree that contains
// itself, or refers to the same bytes more often than they could be told apart, is
// refused. Errors that wrap [chunk.ErrCorrupt] are about the bytes.
//
// What Open returns refers to the bootstrap's bytes, which must not be changed. It
// is safe for concurrent use.
package rafs
