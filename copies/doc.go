// Package copies keeps enough copies of each image that is mounted in a cluster
// for it to be read without a registry, and says whether there are enough.
//
// Each span of an image has homes: members of the cluster, in an order that all
// agree on. The first of them, as many as there shall be copies, are to hold it. A
// [Keeper] is the part of that which one node does: it opens the images that it is
// asked to keep, fetches what it is a home of and lacks, in the least urgent
// class, and pins it in the chunk store. What has no copy comes first: that of
// which the node is the first home, of the image with the fewest copies. It keeps
// to a rate, waits while readers wait, and pins no more than its budget, so that
// images that are kept never fill a store. When nobody has renewed its lease of an
// image for some minutes, the image is let go.
//
// A [Steward] looks after images for the whole cluster: there is one for each
// image. Nodes tell it that they have the image mounted, again and again; while any
// of them does, the steward asks all members to keep their shares. From their
// reports it counts the copies of each span, and makes a [Status], which it tells
// those who have mounted the image. If it is lost, the nodes turn to the next one,
// which learns all that it has to know from them.
//
// The package does not know where chunks come from, how nodes talk or how an image
// is opened. Its types are safe for concurrent use.
package copies
