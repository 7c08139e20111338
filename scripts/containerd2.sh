#!/bin/sh
# containerd2.sh DIR: builds containerd 2, its client and shim, and crictl in DIR,
# from their Go modules. It takes some minutes the first time; what is there
# already is left alone.
set -eu

out=${1:?usage: containerd2.sh DIR}
containerd=github.com/containerd/containerd/v2/cmd
build() {
	[ -x "$out/$1" ] || GOBIN=$out CGO_ENABLED=0 GOFLAGS=-trimpath go install "$2"
}
build containerd "$containerd/containerd@v2.4.2"
build containerd-shim-runc-v2 "$containerd/containerd-shim-runc-v2@v2.4.2"
build ctr "$containerd/ctr@v2.4.2"
build crictl sigs.k8s.io/cri-tools/cmd/crictl@v1.37.0
echo "containerd 2: in $out"
