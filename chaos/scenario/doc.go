// Package scenario plays faults on a cluster, and judges what its readers and
// its registry have seen.
//
// A [Scenario] is a short YAML file: a cluster, an image, steps at points in
// time, and what must hold. [Play] starts real nodes on machines of a
// [lab.Network], with an address and a disk for each, and a registry whose
// faults are those of package chaos. Readers read the nodes' mounts from
// outside, in processes of their own: they compare every file with what was put into the image and take
// the time of each read. What the registry has sent is counted at the registry.
// Nothing that a node says of itself decides but where a file asks for just
// that, such as the copies of an image that a node reports.
//
// Each scenario names the mechanism that it is about, and the setting that turns
// it off. Played with that, the scenario must fail; otherwise it shows nothing.
//
// [lab.Network]: https://pkg.go.dev/graze/chaos/lab
package scenario
