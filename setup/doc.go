// Package setup makes a machine's containerd use graze as its snapshotter, and
// undoes that.
//
// [Install] and [Remove] read files and return a [Plan]: what each of them is to
// become. Nothing is changed before Plan.Apply. A plan for a machine that is as it
// should be is empty.
//
// containerd's configuration is either given a file of its own, where the
// configuration imports such files and containerd is one that merges them (version
// 3 of the file, containerd 2), or it is edited: single lines are replaced and
// added, comments and order stay. Each line of graze's ends with a mark, and a line
// that had to go stays as a comment with another one; so Remove restores the file,
// with all that was changed in it since. An edit is compared with what it should
// mean, and refused if it means anything else.
//
// The package runs nothing, and knows neither containerd nor systemd but by their
// files.
package setup
