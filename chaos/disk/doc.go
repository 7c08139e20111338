// Package disk is a disk that can fail: a FUSE file system that passes everything
// on to another folder, until it is told not to.
//
// What uses the folder gets its errors from the kernel, as from a real disk: EIO
// where a file can't be read, EROFS where nothing may be written any more. Only
// files whose names end with a given suffix can be unreadable, and they are never
// in the kernel's cache; a disk that can't be read at all leaves nobody to watch.
//
// It runs in a process of its own ([Serve]), which is told by its standard input
// what is wrong: whoever reads and serves the same file system waits for itself.
package disk
