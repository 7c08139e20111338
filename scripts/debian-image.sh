#!/bin/sh
# debian-image.sh DIR: makes a real image in DIR, an OCI layout with the tag
# "debian-python": Debian 12, python3 and a small program, each a layer of its
# own as a container build would make them. It takes a few minutes the first
# time; when DIR is there already it does nothing.
set -eu

out=${1:?usage: debian-image.sh DIR}
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

# layer MESSAGE: what changed in the root file system becomes the next layer.
layer() {
	umoci repack --image "$work/oci:debian-python" --refresh-bundle --history.comment "$1" "$work/bundle" >"$work/log" 2>&1 ||
		{ cat "$work/log" >&2; exit 1; }
	echo "image: layer done: $1"
}

echo "image: making Debian 12 with python3 by debootstrap (some minutes, once)"
umoci init --layout "$work/oci"
umoci new --image "$work/oci:debian-python"
umoci unpack --image "$work/oci:debian-python" "$work/bundle" >/dev/null 2>&1
debootstrap --variant=minbase bookworm "$rootfs" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
rm -rf "$rootfs"/var/cache/apt/archives/*.deb
layer "debootstrap --variant=minbase bookworm"

mount -t proc proc "$rootfs/proc"
DEBIAN_FRONTEND=noninteractive chroot "$rootfs" apt-get install -y --no-install-recommends python3 python3-numpy >"$work/log" 2>&1 ||
	{ tail -20 "$work/log" >&2; exit 1; }
rm -rf "$rootfs"/var/cache/apt/archives/*.deb "$rootfs"/var/lib/apt/lists/*
umount "$rootfs/proc"
layer "apt-get install python3 python3-numpy"

mkdir -p "$rootfs/app"
cat >"$rootfs/app/main.py" <<'PY'
"""Solves a small linear system and keeps the result in a database."""
import hashlib, json, sqlite3, sys

import numpy as np

a = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
x = np.linalg.solve(a, np.array([1.0, 2.0, 3.0]))
db = sqlite3.connect(":memory:")
db.execute("create table result (x real)")
db.executemany("insert into result values (?)", [(float(v),) for v in x])
total = db.execute("select round(sum(x), 6) from result").fetchone()[0]
print(json.dumps({
    "python": sys.version.split()[0],
    "numpy": np.__version__,
    "sum": total,
    "sha256": hashlib.sha256(x.round(6).tobytes()).hexdigest()[:16],
}))
PY
layer "the program"

umoci config --image "$work/oci:debian-python" --config.cmd python3 --config.cmd /app/main.py
umoci gc --layout "$work/oci" >/dev/null
mv "$work/oci" "$out"
echo "image: $out, $(du -sh "$out" | cut -f1) compressed"
