// Package imagetest makes images for tests, and compares trees of files.
//
// [Adversarial] returns the layers of one image that has, in a small space,
// every oddity that images have been seen to have: containerd unpacks it, to
// the same tree however it unpacks, and whoever shows the image must show that
// tree. [Hostile] returns cases in which containerd refuses, or in which its
// ways of unpacking differ; a reader must survive them. [SmallFiles] and
// [LargeFile] make layers of many files and of one large file, as streams.
//
// A [Layer] becomes a blob of a registry by one of the [Encodings]; an [Image]
// joins blobs under a manifest and can be pushed to a registry or written as an
// OCI layout.
//
// [Snapshot] records everything that stat(2), listxattr(2), readlink(2),
// read(2) and lseek(2) tell of a tree of files; [Diff] says in words how two
// trees differ.
//
// Layers are deterministic: the same call returns the same bytes. The values
// are safe for concurrent reading. The package keeps the bytes of encoded blobs
// in memory, unless they are encoded to a file.
package imagetest
