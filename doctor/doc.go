// Package doctor looks for what keeps graze from working on a machine, and says
// what to do about it.
//
// [Examine] makes all checks, each of which ends in one or more [Finding] values.
// A check looks, and changes nothing; the one for overlayfs mounts something small
// in a folder of its own, and takes it away. What it knows of registries and of the
// running node it is given by small interfaces.
package doctor
