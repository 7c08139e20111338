#!/bin/sh
# need.sh PACKAGE...: installs those Debian packages that are missing.
set -eu

missing=
for p in "$@"; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "need.sh: these Debian packages are missing:$missing; install them, or run as root" >&2
	exit 1
fi
echo "installing with apt:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # one word per package
apt-get install -y -qq --no-install-recommends $missing >/dev/null
