// Package materialize gives containerd the blobs of an image that was pulled
// lazily, so that tools which read its content store can use the image: export,
// push, save, commit, convert.
//
// A compressed layer can't be made again of its chunks bit by bit, as it is not
// known how it was compressed. So blobs come from a [Source] by their digest, and
// containerd verifies each before it is there. What is there is left alone; what
// was broken off is taken up where it ended; and labels keep containerd's garbage
// collection away from it for as long as the image is there.
package materialize
