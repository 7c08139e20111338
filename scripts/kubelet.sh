#!/bin/sh
# kubelet.sh DIR: builds kubelet in DIR from its Go module. It takes some ten minutes
# the first time; if it is there already it is left alone. Those modules that live in
# Kubernetes's own tree have no version in its go.mod: they are taken as published.
set -eu

out=${1:?usage: kubelet.sh DIR}
version=1.34.0
module=k8s.io/kubernetes
if [ -x "$out/kubelet" ]; then
	echo "kubelet: $out is there already"
	exit 0
fi
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work"

go mod init kubelet 2>/dev/null
own=$(go list -m -f '{{.GoMod}}' "$module@v$version")
{
	echo "require $module v$version"
	awk -v version="v0.${version#1.}" '$1 ~ /^k8s.io\// && $2 == "v0.0.0" { print "replace", $1, "=>", $1, version }' "$own"
} >>go.mod
pkg=k8s.io/component-base/version
CGO_ENABLED=0 go build -mod=mod -p 2 -trimpath -o "$out/kubelet" \
	-ldflags "-s -w -X $pkg.gitVersion=v$version -X $pkg.gitMajor=1 -X $pkg.gitMinor=34" "$module/cmd/kubelet"
echo "kubelet: $("$out/kubelet" --version) in $out"
