//go:build race

package main

// racing reports whether the race detector is on.
const racing = true
