// Package rafstest makes RAFS images for tests: bootstraps of version 5 and 6 and
// their blobs, with all that the formats have, from a tree of files.
//
// It is an encoder of its own, written from the description of the formats and
// without any code of the reader. [FromDir] takes the tree from a directory, in
// which an image was unpacked, say; [Build] makes the image by [Options].
//
// All is held in memory. The same tree and options make the same bytes.
package rafstest
