// Package registry is a small OCI registry (distribution spec 1.1) for demos,
// tests and single machines: an [http.Handler] that keeps its content in one
// directory.
//
// It serves blobs with every kind of Range request, takes blobs in one piece,
// in chunks and by mount from another repository, and manifests of OCI and
// Docker schema 2 with tags, referrers and deletion. It does not know
// authentication, proxying, garbage collection or replication, and it does not
// look inside a layer. Faults, delays and access rules belong into handlers
// that are put around it: the package has no state but what [New] returns.
// Such a handler should pass on io.ReaderFrom of its http.ResponseWriter, or
// blobs are copied through memory in place of sendfile.
//
// # Directory
//
//	lock                                   held while a Registry is open
//	tmp/                                   files being written; emptied by New
//	uploads/<hash of repository>-<id>      bytes of an unfinished upload
//	blobs/<algorithm>/<2 digits>/<digest>  every blob once
//	repos/<name>/_blobs/<algorithm>/<digest>      hard link to the blob
//	repos/<name>/_manifests/<algorithm>/<digest>  a line with the media type, then the manifest
//	repos/<name>/_tags/<tag>                      the digest
//	repos/<name>/_referrers/<algorithm>/<subject>/<digest>  empty
//
// A blob is visible in the repositories that it was pushed to or mounted in,
// and nowhere else: its hard link is what is opened. No component of a
// repository's name starts with an underscore, so nested repositories and the
// directories above can't meet. Besides the grammar of names, [os.Root] keeps
// every path within the directory. The file system must have hard links.
//
// A file gets its name only after it is complete and synced, so whatever a
// killed process or a power cut leaves behind is either whole or has no name
// that is served. A push that was answered survives the death of the process; a
// power cut can take the names given in the last seconds. Uploads that nobody
// wrote to for an hour are removed, younger ones can be resumed after a restart.
//
// Deleting a manifest keeps its blobs. Deleting a blob takes it from one
// repository, and from the disk with the last one. Neither looks at the
// manifests that refer to what is deleted.
//
// # Concurrency
//
// All methods may be called from several goroutines. Reads don't wait for
// writes. One upload takes one writer at a time: a second gets 409. One
// directory belongs to one Registry at a time: New fails while another process,
// or another Registry of this one, has it open.
package registry
