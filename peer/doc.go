// Package peer moves chunks between the nodes of a cluster. A [Host] has an
// identity, proves that it belongs to the cluster and lets nobody else in; it
// asks other nodes by [Host.Fetch] and serves them through a [Handler].
//
// # Who may talk
//
// A node has an [Identity], an ed25519 key whose public half is its name, and
// the [ClusterKey], a secret that all nodes of the cluster share. Each end of a
// connection knows the name of the other and that it has the key before a
// request is read. Whoever lacks the key is turned away, and counted.
//
// # Ways
//
// Bulk bytes take a lane of their own, one TCP connection for one request at a
// time, since multiplexing costs more than the bytes themselves:
//
//   - [Encrypted], the default: TLS 1.3 with the identities of both ends as
//     certificates, then a proof of the cluster key that is bound to the TLS
//     session. The server's name can be seen by whoever connects, nothing else.
//   - [Plain], if Config.Plain is set at both ends: bodies go from the file to
//     the socket without passing through this process. Keys for the connection
//     are agreed over an encrypted libp2p stream; each header, of requests and
//     answers, carries a MAC over it and its number, so it can be neither made
//     up nor sent twice. Bodies can be read, and changed, by whoever owns the
//     network; a change is found by the chunk's digest, as always.
//   - [Stream], where no connection to the bulk listener can be made: the same
//     frames on an encrypted libp2p stream. That is remembered for a while.
//
// Nodes of different ways refuse each other, so that a wrong configuration does
// not pass for a slow network. The libp2p host (TCP, private network by a key
// derived from the cluster key, no relay, no discovery) also serves the DHT.
//
// # Limits
//
// Requests that wait at a home for a home of higher level must not take the
// connections and slots that the latter's requests need, or nodes could wait for
// each other in a circle. So every count is kept by lane: what is held, level 0
// and level 1. Within a lane, urgent classes go first, and the last connection
// is kept for those that a reader waits for.
//
// Bodies that a reader waits for are sent before the pieces of others, for a tenth
// of a second each at most. The others have connections with short buffers, so
// that little of them is on its way when a reader's body comes, at either end.
//
// A server bounds connections, requests, bytes being sent and upload rate; what
// exceeds the number of requests is answered Busy. While it has nothing to send
// it says so every second, so that a client can tell a long wait from a dead
// node: no byte for Config.Stall, or a body slower than Config.MinRate, ends a
// request. Readers as slow as that are cut as well.
//
// # What it does not know
//
// It knows neither where chunks are nor who should be asked, and retries nothing
// but a request on a connection that had been idle and turned out to be dead.
// Bodies are bytes by a stranger: the caller verifies them (chunk.Ref.Verify).
// Answers that were not asked for, or of another size than asked, end a request
// with [ErrProtocol].
//
// All methods of a Host may be called at the same time. The body given to the
// callback of Fetch is valid during the call only.
package peer
