// Package chunkstore keeps chunks on the local disk: verified, bounded in size
// and safe against crashes.
//
// # On disk
//
// A [Store] owns one directory:
//
//	lock          held by flock, names the process that has the store open
//	store.json    format version and the limit found at the first start
//	index         log of where each chunk lies
//	00000001.seg  segments, which hold the chunks
//
// A segment is only ever appended to. Each chunk in it is a record: a header
// with the chunk's digest and size, a CRC-32C for every 4 KiB block of the
// chunk, and the bytes themselves, uncompressed, so that they can be handed to
// sendfile. format.go has the layouts.
//
// The index log is a shortcut, never the truth. An entry is written once the
// record that it names has reached the disk, so it can be believed after a
// power cut. What a segment holds beyond its last logged byte is scanned by
// [Open], and every record found so is checked against its full digest; torn
// tails are cut. If the log is lost or damaged, the segments are scanned. So a
// killed process loses nothing that a completed Put had stored, and a power cut
// at most what was put within the last [Config.SyncEvery].
//
// # Reading
//
// Put takes only verified bytes, and every read checks the CRCs of the blocks
// that it touches and the header they belong to. Bytes that have rotted are
// never returned: the chunk is dropped and counted, the read fails with
// chunk.ErrCorrupt, and the caller fetches the chunk again. Scrub checks the
// full digests of everything.
//
// # Bounds and eviction
//
// The files together never exceed the limit. Room is made a segment at a time,
// oldest first. Chunks that are pinned, or that were read since the segment was
// last considered, are copied on into a younger segment; the others are
// dropped. Segments that would have to be copied for the most part stay where
// they are until the next round, their chunks no longer counting as read. A
// read of a chunk that still lies in the segment being filled does not count,
// because whoever had a chunk fetched reads it at once: a stream of chunks that
// are put, read and never wanted again pushes out nothing that is in use.
// Pinned and copied chunks are kept apart from new ones, so that copying stays
// cheap. A background goroutine keeps room for one segment, so that Put rarely
// waits.
//
// Open evicts nothing, even if the limit has shrunk, until the first Put: a
// caller has time to set its pins, which the store does not keep over a restart.
//
// # Concurrency and ownership
//
// A Store is safe for concurrent use. Reads share nothing but short locks on a
// part of the index, and do no I/O under them; a segment that is evicted while
// it is read stays readable, and counts against the limit, until the last reader
// is done. Writes are one after the other, as the order within a segment is what
// makes recovery simple. The store keeps no slice it is given.
//
// Open starts one goroutine, which Close stops and waits for: it syncs what was
// put, writes the index log and evicts ahead of need. It belongs to Open and
// Close and not to a Run method because a store without it would not keep its
// promises.
//
// # Limits
//
// A store takes 75 to 110 bytes of memory for a chunk, 97 at 300,000, one descriptor for a
// segment and at most about a thousand segments for any limit up to 2 TiB. A
// chunk counts against the limit with its bytes, a thousandth more for their
// checksums, and 100 bytes for the header and the log entry. The same bytes
// under two digest algorithms are two chunks. The package knows nothing of
// files, images or where chunks come from.
package chunkstore
