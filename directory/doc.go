// Package directory remembers which nodes are said to hold which chunks, so that
// content that a cluster has is found wherever it came from: the same file in
// another layer lies in another span, whose home never saw it.
//
// Each chunk has a few keepers, who are found from its digest as homes are from a
// span. A node that gets a chunk from the origin, or as the home of a rack from
// the home of the cluster, tells the keepers, for many chunks in one message.
// Before a home asks the origin for a span it asks the keepers of its chunks.
//
// # Hints
//
// What a [Directory] says is a hint, never a promise: a holder may have dropped
// the chunk, or lie. Keys are short, so that two chunks may share one. Whoever
// asks a holder compares what he gets with the chunk's digest.
//
// # Changes of members
//
// A node that finds that the members have changed goes through all that it has,
// once nothing has changed for [Config.Settle], and tells those who have become
// keepers. It does the same at its start, and for a node that has started anew
// and so has forgotten all: each start has a number, which goes with every
// message.
//
// # Limits
//
// A Directory knows [Config.Limit] chunks, four holders of each at most, and
// forgets those first that were not heard of or asked for lately. That takes 23 to
// 40 bytes a chunk. What is told is collected for [Config.Interval]; of what can't
// be sent within that time the most is dropped, and told again when the node goes
// through all that it has.
//
// The package knows neither members nor connections: see [Cluster].
package directory
