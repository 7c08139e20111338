// Package dht knows the nodes of the cluster, and which of them is first in
// line for what.
//
// # Members
//
// A [Cluster] gossips with the other nodes by hashicorp/memberlist. All traffic
// is encrypted with a key derived from the cluster's key: who lacks it is not
// let in and learns nothing. Each member tells its addresses, rack, zone, role,
// weight, load and whether it is ready, in at most 512 bytes. Metadata that
// can't be read keeps that one member out, and is counted.
//
// First contacts come from a list, from names that resolve to several
// addresses, and from a file. They are asked again for ever: with growing
// pauses while the node is alone, and now and then when it isn't, so that the
// parts of a cluster that was cut in two find each other again; members that
// went within the last hour are asked then too. A node that reaches nobody works
// alone.
//
// A crashed member is known to all in 10 to 15 seconds. That is slow on
// purpose, so that a busy node isn't declared dead; who transfers data sees
// failures itself, at once, and goes to the next home.
//
// # Views
//
// A [View] is an immutable, sorted snapshot of the members. A new one is
// published a tenth of a second after a change. Its epoch is a hash of all that
// decides about homes, so that two nodes with the same epoch agree on every
// home; load is not a part of it. The last view is kept on disk: after a
// restart its members count as members, marked unconfirmed, until gossip has
// said more, and they are contacts too.
//
// # Homes
//
// A [Key] has its homes by weighted rendezvous hashing: each member's score is
// -weight/ln(u), where u in (0,1) comes from hashing the key with the member's
// ID, and the highest scores win. A member gets keys in proportion to its
// weight, and when it leaves only its own keys move. Rack home and cluster home
// use the same scores, so the cluster home of a key is always also the home of
// its own rack. A rack of fewer than [MinRack] members, and the empty rack name,
// have no rack homes: their nodes ask the cluster home. Members that are not
// ready come after all that are. A lookup compares one hash per member and takes
// no memory; there is no traffic.
//
// [View.Former] gives members that may have been home of a key within the last
// ten minutes, to be asked before the registry after a change of members.
//
// # Providers
//
// [Providers] is libp2p's Kademlia DHT, over a host that the caller owns. It
// holds one record per image and never one per chunk. Within a pool of gossip
// nobody needs it; it finds holders in another pool that was joined by one
// address. It costs connections and memory, so it is off unless it is wanted: a
// Cluster does not make one, and a node should have one only if it has bootstrap
// peers, or if other pools are to join by its address.
// Bootstrap peers are named by multiaddrs or by host:port alone.
//
// # Limits
//
// At most [MaxMembers] members are kept; contacts, the files that are read,
// records, lookups and announcements are bounded too. Whoever holds the cluster's
// key is trusted to say who it is: gossip authenticates the cluster, and the data
// path authenticates the node.
//
// All types are safe for concurrent use. Members and views must not be modified.
// The package knows nothing of chunks' bytes, of images or of the registry.
package dht
