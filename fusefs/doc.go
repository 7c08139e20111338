// Package fusefs shows an image view to the kernel as a read-only file system,
// over FUSE.
//
// A [Tree] answers what is in the image and [Files] gives the bytes of its
// files; the package knows nothing of chunks, of caches or of where bytes come
// from. Make a mount with [Mount], serve it with [Server.Run]; [Unmount] takes
// any mount of this package away, also one whose server is gone, and [Abort] one
// that is in use.
//
// # No state
//
// The number by which the kernel knows a node is the node's inode number, so
// the server keeps no table of what the kernel remembers, and FORGET has
// nothing to do. The image never changes, so the kernel is told to keep
// entries, attributes, names that do not exist, directories, symbolic links and
// pages for as long as it likes. OPEN and OPENDIR are answered with ENOSYS:
// the kernel then opens files by itself, and asks for a page or a directory
// only if it does not have it. In the same way ENOSYS makes it decide LSEEK
// (all is data up to the end of the file, as on a file system that stores the
// holes), FLUSH, FSYNC, POLL and the birth time that images don't have, without
// ever asking again. A file handle made by name_to_handle_at(2) is good as long
// as the image is.
//
// # What the kernel checks
//
// Permission bits, owners and POSIX ACLs are enforced by the kernel from what
// the tree says (default_permissions). The mount is read-only; set-user-ID
// bits, file capabilities and device nodes have their effect, as they must
// for a directory that a container runs on. So only root can mount, and only
// images that are as trusted as what root installs should be reachable by the
// users of a host.
//
// # Reading
//
// Each READ runs on a goroutine of its own, with a buffer from a pool; the
// bytes that [Files] wrote into it are sent to the kernel and the buffer is
// used again. The context of a read ends when the process that waits for it is
// being killed, or when the server shuts down. It does not end on other
// signals, as programs don't expect EINTR from a regular file. To tell them
// apart, the server must see the process: it should run in the host's PID
// namespace. Reads that the kernel makes ahead belong to no process and always
// run to their end; who waits for one can be killed all the same.
//
// A read that fails is EIO for the process; what went wrong is counted in
// [Stats] and told to [Trace.Failed].
//
// # Another server
//
// A mount lives as long as anybody holds its descriptor. As the server has no
// state, any process that has the descriptor, the [Session] and the same tree can
// go on where the last one ended, however it ended: see [Resume]. Meanwhile what
// the kernel has cached can be used, and all else waits.
//
// The library go-fuse translates between the protocol and Go; the descriptor is
// read and written here. For a new mount it is given the kernel's INIT, and its reply
// goes to the kernel. A later server is given the old INIT, with only those flags in
// it that were agreed to, and must come to the same reply, which goes nowhere. Then
// the kernel is asked to send again what the last server read and did not answer
// (Linux 6.9).
//
// A process can be killed while the kernel copies a request to it. Then the request
// fails if there is a page missing in the buffer, so none is: see requestBuffer.
//
// # Limits
//
// The kernel sends at most Config.MaxBackground reads of its own accord at a
// time, and one for each thread that waits for a single page; each takes a
// buffer of up to 1 MiB until it is answered. Device numbers have 12 and 20
// bits, as in mknod(2).
package fusefs
