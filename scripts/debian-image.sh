#!/bin/sh
# debian-image.sh DIR: makes a real image in DIR, an OCI layout with the tag
# "debian-python": Debian 12, python3 and a small program, each a layer of its
# own as a container build would make them. It takes a few minutes the first
# time; when DIR is there already it does nothing.
set -eu

out=${1:?usage: debian-image.sh DIR}
tag=debian-python
# shellcheck source=scripts/image-lib.sh
. "$(dirname "$0")/image-lib.sh"

echo "image: making Debian 12 with python3 by debootstrap (some minutes, once)"
base
install python3 python3-numpy
rm -rf "$rootfs"/var/lib/apt/lists/*
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
finish
