#!/bin/sh
# kubelet.sh DIR: builds kubelet in DIR, from its Go module. It takes many minutes the
# first time; what is there already is left alone. TestKubelet uses it, where
# GRAZE_KUBELET names the folder.
set -eu

out=${1:?usage: kubelet.sh DIR}
version=1.34.0
[ ! -x "$out/kubelet" ] || exit 0
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The module takes its siblings from folders that are not in it: they are modules, too.
file=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
{
	echo 'module kubelet'
	echo "require k8s.io/kubernetes v$version"
	sed -n "s|^.*\(k8s.io/[a-z-]*\) => ./staging/.*|replace \1 => \1 v0.${version#1.}|p" "$file"
} >"$work/go.mod"
cd "$work"
CGO_ENABLED=0 GOFLAGS='-mod=mod -trimpath' go build -o "$out/kubelet" k8s.io/kubernetes/cmd/kubelet
