// Package soci reads zTOCs, the indexes that SOCI (Seekable OCI) has beside
// unmodified layers: gzip ones, and those that are not compressed.
//
// A zTOC is a flatbuffer with the headers of the archive's entries, and the places
// at which the layer can be decoded from: for gzip, checkpoints with the 32 KiB
// before them, some 4 MiB apart. Who vouches for it is for the caller to know, who
// has compared it with its digest. What becomes of its parts:
//
//   - What lies between two checkpoints is a span. A zTOC has a digest for each, but
//     of the encoded bytes: it knows none of what files hold. So the chunk of such a
//     span is the encoded bytes themselves; it is fetched, verified, kept and passed
//     on like any other, and decoded by those who read from it. It is sealed: see
//     [image.Seal]. Where the layer is not compressed, the two are the same, and the
//     chunks are ordinary ones.
//   - The windows are chunks of the zTOC's own blob, named when it is opened.
//   - Neighbouring spans share a byte if the checkpoint between them is within it.
//   - Entries keep their order and their names; all that is asked of one is that its
//     bytes are within the layer.
//
// A zTOC is data from the network. Every offset in it is checked before it is
// followed, and no text in it is used more than once, so that what is read is never
// larger than what was there. Refused, by [ErrUnsupported], are other versions,
// spans of more than [chunk.MaxSize] bytes, and sparse files, of which a zTOC does
// not say where their bytes belong. Errors that wrap [chunk.ErrCorrupt] are about
// the bytes.
//
// What [Open] returns refers to the zTOC, which must not be changed. It is safe for
// concurrent use.
package soci
