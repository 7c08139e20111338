// Package sim runs clusters of real schedulers on a simulated network: links
// with a rate and a latency, a registry with both, stores in memory, and homes
// by rendezvous hashing over the members that each node believes in.
//
// All of it takes its time from package time and waits with timers, so that a
// cluster in a testing/synctest bubble runs through minutes within seconds and
// its times can be compared with what the links allow. Nodes can be killed,
// started again with what their stores hold, cut off, slowed down and made to
// lie. Random choices come from a seed; the order in which goroutines run does
// not, so two runs of a seed are alike but not equal.
//
// Links carry pieces of 64 KiB. A node sends the most urgent class first, as package
// peer does, and those of one class in turns; the links to a node and from the
// registry know no classes. There is no loss and no slow start, CPU costs nothing,
// and stores answer at once.
package sim
