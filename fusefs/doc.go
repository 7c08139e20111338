// Package fusefs shows an image view to the kernel as a read-only file system,
// over FUSE.
//
// A [Tree] answers what is in the image and [Files] gives the bytes of its
// files; the package knows nothing of chunks, of caches or of where bytes come
// from. Make a mount with [Mount], serve it with [Server.Run]; [Unmount] takes
// any mount of this package away, also one whose server is gone.
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
// # Limits
//
// The kernel sends at most Config.MaxBackground reads of its own accord at a
// time, and one for each thread that waits for a single page; each takes a
// buffer of up to 1 MiB until it is answered. Device numbers have 12 and 20
// bits, as in mknod(2).
package fusefs
