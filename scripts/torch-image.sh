#!/bin/sh
# torch-image.sh DIR: makes a large real image in DIR, an OCI layout with the
# tag "torch": Debian 12, python3, numpy with scipy, torch, and 5 MB that don't
# compress, each a layer of its own. It is 680 MB compressed and takes some ten
# minutes the first time; when DIR is there already it does nothing.
set -eu

out=${1:?usage: torch-image.sh DIR}
if [ -e "$out/index.json" ]; then
	echo "image: $out is there already"
	exit 0
fi
"$(dirname "$0")/need.sh" debootstrap umoci

mkdir -p "$(dirname "$out")"
work=$(mktemp -d "$out.XXXXXX")
rootfs=$work/bundle/rootfs
cleanup() {
	umount -l "$rootfs/proc" 2>/dev/null || true
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

# logged COMMAND...: runs a command, and shows what it said only if it fails.
logged() {
	"$@" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
}

# layer MESSAGE: what changed in the root file system becomes the next layer.
layer() {
	logged umoci repack --image "$work/oci:torch" --refresh-bundle --history.comment "$1" "$work/bundle"
	echo "image: layer done: $1"
}

# packages NAME...: installs Debian packages, which become the next layer.
packages() {
	mount -t proc proc "$rootfs/proc"
	logged env DEBIAN_FRONTEND=noninteractive chroot "$rootfs" apt-get install -y --no-install-recommends "$@"
	umount "$rootfs/proc"
	rm -rf "$rootfs"/var/cache/apt/archives/*.deb
	layer "apt-get install $*"
}

echo "image: making Debian 12 with torch by debootstrap (some ten minutes, once)"
logged umoci init --layout "$work/oci"
logged umoci new --image "$work/oci:torch"
logged umoci unpack --image "$work/oci:torch" "$work/bundle"
logged debootstrap --variant=minbase bookworm "$rootfs"
rm -rf "$rootfs"/var/cache/apt/archives/*.deb
layer "debootstrap --variant=minbase bookworm"
packages python3
packages python3-numpy python3-scipy
packages python3-torch
mkdir -p "$rootfs/app"
head -c 5000000 /dev/urandom >"$rootfs/app/weights"
echo 'import torch; print(torch.ones(3).sum())' >"$rootfs/app/main.py"
layer "the program"

logged umoci config --image "$work/oci:torch" --config.cmd python3 --config.cmd /app/main.py
logged umoci gc --layout "$work/oci"
mv "$work/oci" "$out"
echo "image: $out, $(du -sh "$out" | cut -f1) compressed"
