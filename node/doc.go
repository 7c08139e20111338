// Package node joins everything that one machine runs: it finds and makes the
// indexes of images, keeps their views, fetches and keeps chunks, mounts images
// and tells what it has done.
//
// A [Library] is what a node knows of images: their manifests, indexes and
// views, in a folder and in the registry. It holds no chunks and no lock, so
// that any number of processes can look into images at the same time. A [Node]
// adds the chunks: it owns the store of one folder, and mounts images.
//
// # State folder
//
//	blobs/sha256/<digest>     manifests, configs, trees and checkpoints of indexes
//	layers/<digest>.json      the index of a layer that was made here
//	layers/<hash>.json        the index of a layer that a repository published, for its images;
//	                          where the end of a layer with a table of contents is, in a cluster
//	views/<key>.view          merged trees, by their repository and layers
//	refs/<hash>.json          what a reference last stood for, and which indexes an image had
//	chunks/                   the chunk store, locked while a Node is open
//	mounts/mount-<id>.json    what is mounted where, for the next node
//	graze.sock                the admin socket, while a Node runs
//
// All but chunks/ is written by renaming whole files into place. Everything can
// be removed while no node runs and nothing is mounted: it is fetched or made again.
//
// # Which index serves a layer
//
// The first of these that there is, layer by layer; 2 and 8 are indexes of a whole
// image, and are looked for if a layer has none by then:
//
//  1. the RAFS bootstrap of an image in the format of Nydus, in its last layer;
//  2. the RAFS bootstrap of the same image in the format of Nydus, if it is beside
//     the image in its (multi-platform) index, marked in the new or the old way;
//  3. the layer's own table of contents, of eStargz or zstd:chunked, if the manifest
//     vouches for it: in the layer, or in an image with a tag of its own;
//  4. graze's index that the folder has already, if it was made here or comes from
//     the image's repository;
//  5. graze's index among the image's referrers in the registry;
//  6. a zTOC of the SOCI index that the image's manifest names (version 2), or of one
//     among the image's referrers (version 1);
//  7. a table of contents in the layer that nothing vouches for, if Config allows;
//  8. the RAFS bootstrap of an image in the format of Nydus among the image's
//     referrers;
//  9. graze's index, made now from the whole layer, if the caller allows.
//
// An index that is there but can't be used is passed over, unless there can be no
// other. [LayerReport] says which it was and why. The list is in code in
// search.sources.
package node
