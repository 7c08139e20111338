// Package adminpb is generated from admin.proto: the protocol between the graze
// command and a running node. Only node and the command use it.
package adminpb

//go:generate ../../scripts/gen.sh
