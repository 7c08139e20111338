// Package keeper holds open descriptors while the process that works with them is
// away: killed, or being replaced by another version.
//
// [Run] is the keeper: a process that does nothing else, so that it has no reason
// to die. It listens on a unix socket and serves one client at a time, in the
// order in which they connect. A client puts descriptors, each under a name; one
// that comes later is given all that are held. That a client is served at all
// means that the connection of the one before has been closed, which the kernel
// does for a process when its last thread has ended: so nobody works with the
// descriptors any more. A client must therefore keep its connection for as long
// as it works with what it has put, and rather leave the closing to the kernel.
//
// The keeper never reads from, writes to or waits on a descriptor. While no client
// is there it looks from time to time whether the other side has ended them, and
// closes those. With nothing to hold, and no client, it ends after a while. Files
// and memory, which nobody ends, don't keep it: they are held by the side of others.
// It does not know what the descriptors are; whoever put them keeps that elsewhere.
//
// [Open] connects to the keeper of a socket and starts one if there is none.
// [OpenSystemd] does the same with the descriptor store of systemd, which has no
// need of another process.
package keeper
