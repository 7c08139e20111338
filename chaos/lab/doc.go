// Package lab makes a small data centre on one host: machines with addresses and
// links of their own, in racks, and processes on them.
//
// A machine is a network namespace with one link, whose other end is a port of
// its rack's bridge; the bridges of the racks are linked by one more. All of
// them are namespaces without a name, so nothing of them is left when the
// process that made them and the processes on them have ended, however that
// comes. Links have a rate (tc-tbf) in both directions, and can be cut. There
// is neither delay nor loss.
//
// It needs root, and ip, tc and bridge of iproute2: see [Check].
package lab
