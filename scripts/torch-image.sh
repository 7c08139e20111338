#!/bin/sh
# torch-image.sh DIR: makes a large real image in DIR, an OCI layout with the
# tag "torch": Debian 12, python3, numpy with scipy, torch, and 5 MB that don't
# compress, each a layer of its own. It is 680 MB compressed and takes some ten
# minutes the first time; when DIR is there already it does nothing.
set -eu

out=${1:?usage: torch-image.sh DIR}
tag=torch
# shellcheck source=scripts/image-lib.sh
. "$(dirname "$0")/image-lib.sh"

echo "image: making Debian 12 with torch by debootstrap (some ten minutes, once)"
base
for packages in python3 'python3-numpy python3-scipy' python3-torch; do
	# shellcheck disable=SC2086 # one word per package
	install $packages
	layer "apt-get install $packages"
done
mkdir -p "$rootfs/app"
head -c 5000000 /dev/urandom >"$rootfs/app/weights"
echo 'import torch; print(torch.ones(3).sum())' >"$rootfs/app/main.py"
layer "the program"
finish
