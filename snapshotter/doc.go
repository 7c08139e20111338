// Package snapshotter is graze as a snapshotter of containerd: images are pulled
// and containers started before their bytes are there.
//
// containerd asks for each layer of an image, from the lowest on, by a Prepare
// that has the layer's chain ID as its target. If the image can be served lazily
// the snapshotter commits a snapshot under that chain ID itself and answers that
// it exists already: then containerd neither fetches nor unpacks the layer. Such a
// snapshot is called remote here. Whatever is not served so, containerd fetches
// and unpacks into a plain snapshot, as it does with its overlayfs snapshotter.
//
// An image is served lazily as a whole or not at all: a layer in its middle that
// containerd had to fetch would make it fetch all layers above. Why an image is
// served as it is, is told by a [Reason].
//
// # Views
//
// A remote snapshot holds nothing but the name of its [View]: an image and how many
// of its layers, from the lowest on, the snapshot stands for. That view is one
// mount, which has all those layers merged. So a chain's highest remote snapshot
// decides what is shown; plain snapshots above it, such as those of a build or a
// commit, are laid over it by overlayfs, and what is below it is not looked at.
//
// A view is mounted while a container, or anything else that is prepared upon it,
// needs it, and stays for a while afterwards: with the mount goes what the kernel has
// read by it. All of them share the mount: there are as many as there are images in
// use, and as many lower directories as there are plain snapshots, plus one.
//
// # Folder
//
//	metadata.db               names, kinds, parents and labels of all snapshots
//	snapshots/<id>/fs         what the snapshot has itself; the upper directory of a container
//	snapshots/<id>/work       overlayfs's work directory
//	snapshots/<id>/view.json  of a remote snapshot, its view
//	views/<key>               where a view is mounted
//
// The database is the truth: a folder or mount that it does not account for is
// taken away, at the start and after each removal.
//
// # What it does not know
//
// Registries, indexes and FUSE. The node is asked for those by [Images]; no
// transaction of the database is open meanwhile, so that a registry that does not
// answer holds up nobody but those who ask for its images.
package snapshotter
