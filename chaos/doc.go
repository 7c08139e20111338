// Package chaos breaks things on purpose: registries, networks, disks and
// processes. Tests use it, and the command that plays scenarios on a cluster.
//
// A [Registry] is put around a registry's handler, or around a reverse proxy to
// one, and spoils its answers as its [Fault] says. A [Gate] is put around a
// registry's listener, and refuses or swallows connections. Both can be changed
// at any time, also for requests that are under way, and count what went
// through them, so that what clients say can be compared with it.
//
// What is random comes from a seed; the order in which requests arrive does not.
// All types are safe for concurrent use.
package chaos
