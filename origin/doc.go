// Package origin is the registry client: it resolves image references, finds
// what refers to an image, reads parts of blobs, and pushes artifacts.
//
// A registry is a list of hosts: the mirrors of its hosts.toml in their order,
// then the registry itself. Every kind of request walks that list, so that a
// mirror that serves layers is asked for manifests, indexes and referrers too.
// A host that fails is left alone for a while and then probed by one request at
// a time; a host that answers 429 or 503 with Retry-After is left alone for as
// long as it asks.
//
// [Client.Resolve] returns an [Image] whose manifest and config have been
// checked against their digests. [Client.Blob] gives ranges of a blob. Such a
// range is not verified, as a digest covers whole blobs only: that is the work
// of whoever decodes it. The reader it returns asks again, from where it was,
// when a transfer breaks off or stalls, and hides expired tokens and expired
// redirect targets.
//
// Errors are *[chunk.Error] values whose From is a host name and which match
// chunk.ErrNotFound, ErrDenied, ErrUnavailable or ErrCorrupt; an error that
// matches none of them, such as a certificate that isn't trusted, needs a change
// of the configuration. A context that ends is reported as its cause, and held
// against a host only if that cause is ErrUnavailable. Text from servers is cut short and quoted.
//
// The package does not know what is in a layer, keeps nothing on disk, and
// coalesces only its own requests (tokens and redirects): sharing the fetches of
// one span is the scheduler's work.
//
// A [Client] and a [Blob] are safe for concurrent use; a reader is not, except
// that the end of its context interrupts it. A Client starts goroutines only
// while a token or redirect is being fetched; Close waits for them. Byte slices
// in results belong to the caller, who must not change those of an [Image].
//
// Limits: manifests up to 8 MiB, configs up to 16 MiB, whole blobs up to
// 128 MiB, and fixed numbers of remembered hosts, tokens and redirects.
package origin
