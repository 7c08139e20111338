#!/bin/sh
# ztoc.sh FILE: builds the writer of zTOCs, by the library of the SOCI snapshotter, as
# FILE. That library needs zlib and cgo, so it is a module of its own: graze needs
# neither.
set -eu
out=$1
if [ -x "$out" ]; then exit 0; fi
mkdir -p "$(dirname "$out")"
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")
cd "$(dirname "$0")/ztoc"
go build -trimpath -o "$out.new" .
mv "$out.new" "$out"
