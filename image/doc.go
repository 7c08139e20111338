// Package image knows what a container image looks like from inside: the index
// of each layer, and their merge into one read-only tree, the view.
//
// A [Layer] is what a reader of one of the formats (the packages below this
// one) makes of a layer: its entries in the order of the archive, and a [Table]
// of the chunks that hold the bytes of its files. [WriteView] applies the
// layers one over the other, with the whiteouts and opaque directories of the
// OCI image specification, and keeps the result as one file; [OpenView] maps
// that file into memory, so that a tree of a million files opens at once and
// costs no heap. Any number of an image's layers, from the lowest on, make a
// view.
//
// The package knows nothing of networks, of FUSE or of containerd: readers get
// a blob's bytes through a [Ranger], and a view says in which chunks a file's
// bytes lie, not how to get them.
//
// # What a view shows
//
// A view shows what containerd's overlayfs snapshotter shows for the same
// layers. Each layer is unpacked into a tree of its own: later entries replace
// earlier ones, directories keep their content when they are named again,
// parents that are missing are made (like those of the layers below, or else
// with mode 0755 and the owner root), and symbolic links in the path of an entry
// are followed inside the root. Then that tree is laid over the layers below.
// Where containerd depends on the machine or on the order of entries, a view
// keeps to the specification:
//
//   - A whiteout hides what the layers below have and nothing else, whether it
//     stands before or after an entry of the same name in its layer. A directory
//     of that name starts empty. Containerd refuses some of these layers, and
//     merges the directory in others.
//   - An opaque root hides all layers below. Overlayfs takes no notice of it.
//   - A hard link may lead to a file of a lower layer. All names of a file have
//     the same inode, and its link count is the number of names that the view
//     has for it; that of a directory counts its subdirectories.
//   - Directories that no layer names have the time 0.
//   - The root has mode 0755 and belongs to root, as the snapshotter makes it.
//     Its time is that of the last layer that names it.
//
// Sizes and blocks of directories and symbolic links are those of ext4, and
// blocks of files are as if they had no holes. The limits are constants, such
// as [MaxEntries].
//
// # Inode numbers
//
// Inode numbers are positions in the view: 1 for the root, and then breadth
// first by name. They depend on what the view shows alone, so they are the same
// after a restart and on every node.
//
// # Ownership and concurrency
//
// WriteView keeps nothing of the layers that it is given. It must be the only
// one that uses them. A [View] is safe for concurrent use; the strings and
// slices that it returns point into the map, must not be changed and are gone
// after Close.
package image
