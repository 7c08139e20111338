#!/bin/sh
# gen.sh [DIR]: generates the Go code of the protocol buffers, into DIR if it is
# given. It needs protoc (Debian: protobuf-compiler); the plug-ins are built
# from go.mod.
set -eu
cd "$(dirname "$0")/.."

out=${1:-.}
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
go build -o "$plugins/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
PATH=$plugins:$PATH
protoc --go_out="$out" --go_opt=module=graze --go-grpc_out="$out" --go-grpc_opt=module=graze \
	node/adminpb/admin.proto \
	wire/wirepb/wire.proto
