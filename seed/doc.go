// Package seed holds whole images for a rack. A seed is a node like any other
// that is told to have all of an image, not only what its own containers read:
// so that the rack's other nodes find everything nearby, and a node that joins
// while the registry is down can start the image.
//
// A [Keeper] has a list of images, which is kept in a file. For each it fetches
// what is missing, in the least urgent class, and pins it in the chunk store. It
// goes through an image in an order of its own: first the parts that this node is
// the home of, which nobody else fetches from the registry, then the rest, each
// keeper beginning at another place, so that the parts that fewest nodes have come
// first for the rack as a whole. When all is there it looks again now and then,
// because a store may drop a chunk that has rotted.
//
// The package does not know where chunks come from or how an image is opened. A
// Keeper is safe for concurrent use.
package seed
