// Package wirepb is generated from wire.proto: the headers that nodes send each
// other. Only package wire uses it.
package wirepb

//go:generate ../../scripts/gen.sh
