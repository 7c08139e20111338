// Package targz makes and reads graze's own index of a layer: of an unmodified
// tar, compressed by gzip, by Zstandard, or not at all. With the index, any part
// of the layer can be fetched and decoded by itself, though the layer was not
// made for that.
//
// [Build] reads a layer once, from its first byte to its last, and writes two
// blobs: the tree, which is needed to mount the layer, and the checkpoints,
// parts of which are needed to decode deflate data from the middle. [Open] makes
// an image.Layer of the tree.
//
// # Entries
//
// An archive is taken to hold what archive/tar reads from it, which is what
// containerd and Docker unpack. Where these refuse an entry of a kind that they
// can't unpack, Build fails; but contiguous files (type 7) and sparse files of
// the old GNU kind are regular files here. As with containerd, global PAX
// headers have no effect, extended attributes of the trusted namespace are left
// out, and a time of change before 1970 or after 2262 becomes 0. A symbolic link
// has mode 0777, like every symbolic link. A sparse file has its full size; its
// holes lie between its extents.
//
// An archive need not end with blocks of zeros. What follows the last gzip
// member or Zstandard frame is passed over, but it must be zeros if the archive
// has not ended by then. An empty layer has no entries.
//
// # Chunks and spans
//
// Chunks are slices of the decoded tar. A file larger than Config.ChunkSize is
// cut at multiples of that from its beginning, so that equal files give equal
// chunks. Smaller files are packed: a chunk runs from the data of one to the end
// of the data of another, with the headers in between, as long as it stays
// within the chunk size, and no file comes that begins a pack. That is told by its
// name and size alone, and so about every quarter of the chunk size, so that layers
// with the same files have the same packs wherever they have the same neighbours.
// What no chunk covers is headers and padding.
//
// A span is about Config.SpanSize encoded bytes. Its chunks begin no earlier
// than its first encoded byte, but the last one may end up to a chunk later than
// where the next span begins, so that neighbours overlap by a little. Where a
// span can begin depends on the layer's compression:
//
//   - gzip: at a member's header, or at a deflate block. The latter is a
//     checkpoint: it has a window, the 32 KiB before it that the block may refer
//     to. Which bytes of the window are ever referred to is recorded; all others
//     are set to zero before the window is compressed, and it begins with the
//     first that is. Each checkpoint is tried out from that window, by package
//     codec, when it is made.
//   - Zstandard: at a frame. A chunk ends where a span does, even within a file.
//     A layer that is one large frame, as most tools make them, has one span, so
//     that its first read fetches it up to its end.
//   - none: anywhere.
//
// # Memory and time
//
// Build holds a chunk, about 1 MiB of buffers, a few checkpoints, a block of rows
// and a group of windows, whatever the layer is: well below 32 MiB with the
// default sizes. Two things add to this:
// the window of a Zstandard frame (8 MiB by default, up to 128 MiB, above which
// the layer is refused), and the headers of one entry (up to 8 MiB).
//
// What Open returns holds the table of chunks, 56 bytes a chunk and 56 a span,
// and the tree as it was given. Ranging over the entries decodes a block of them
// at a time.
//
// A Build uses one goroutine, and no state is shared; a layer from Open may be
// used concurrently.
//
// # Format of the tree
//
// All numbers are little-endian. A varint is that of encoding/binary; signed
// ones are zig-zag coded. The tree is
//
//	magic    16 bytes: "graze/tree 1", CR, LF, 1A, LF
//	blocks   one after the other
//	summary  a JSON object: see [Info]
//	footer   length of the summary (4 bytes), its CRC-32C (4 bytes)
//
// and a block is
//
//	kind      1 byte: 1 entries, 2 chunks, 3 spans, 4 windows
//	rows      4 bytes, 1 to 8192
//	unpacked  4 bytes: length of the content when it is decoded
//	packed    4 bytes: length of what follows
//	content   a Zstandard frame
//
// Rows of blocks of one kind follow on from each other. The content of a block
// is its columns, each being a varint with its length and then its bytes. A
// column holds a value for each row, or for each row that has such a value.
//
// Entries, in the order of the archive; the differences begin anew, at an empty
// name and zeros, in each block:
//
//	 0 kind      byte: 0 regular, 1 directory, 2 symbolic link, 3 hard link,
//	             4 character device, 5 block device, 6 fifo;
//	             plus 16 for a sparse file, 32 if there are extended attributes
//	 1 shared    varint: bytes of the name that are those of the last entry's
//	 2 suffix    varint: how many bytes of the name follow them
//	 3 name      these bytes
//	 4 mode      varint: permission bits, set-id bits and sticky bit
//	 5 uid       signed varint: difference to the last entry
//	 6 gid       signed varint: difference to the last entry
//	 7 seconds   signed varint: difference to the last entry's time of change
//	 8 nanos     varint
//	 9 size      varint, for a regular file
//	10 gap       varint, if a file has data: bytes of the decoded layer from the
//	             end of the last data, at first 0, to the file's
//	11 link      varint length and bytes, for a symbolic or hard link
//	12 device    two varints, major and minor, for a device
//	13 map       for a sparse file: varint count of fragments, and for each
//	             varints of the hole before it and of its length
//	14 xattrs    varint count, and for each name and value varint length and bytes
//
// Chunks, in the order of the layer:
//
//	0 gap     varint: bytes of the decoded layer from the end of the last chunk
//	1 size    varint
//	2 digest  32 bytes, of the kind that the summary names
//
// Spans, in the order of the layer:
//
//	0 codec   byte: number of the chunk.Codec, plus 16 for each bit of the first
//	          byte that belongs to the block before
//	1 offset  varint: difference to the last span's
//	2 length  varint: encoded bytes
//	3 lead    varint: decoded bytes from the span's beginning to its first chunk
//	4 count   varint: how many of the chunks are the span's
//	5 group   varint: 0 for no window, else 1 + the number of the row of windows
//	6 window  if there is one, two varints: its offset in that chunk, its length
//
// Windows, each a chunk of the checkpoints blob that holds the windows of up to
// 16 checkpoints:
//
//	0 length  varint: encoded bytes
//	1 size    varint: decoded bytes
//	2 digest  32 bytes
//
// The checkpoints blob is the Zstandard frames of these chunks, one after the
// other. The same layer and configuration give the same two blobs.
package targz
