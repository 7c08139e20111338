#!/bin/sh
# compose.sh runs the cluster of docker-compose.yml. It wants Docker,
# docker-compose, skopeo, jq and bin/graze (make build), and root.
#
#   compose.sh up                     builds the image, makes a key, starts all
#   compose.sh mount LAYOUT:TAG NAME  pushes an image from an OCI layout, with its
#                                     index, and mounts it on all nodes at once
#   compose.sh stats                  says where the nodes' bytes came from
#   compose.sh down                   removes all that up and mount have made
#   compose.sh demo LAYOUT:TAG        all of this; in between, every file of every
#                                     mount is read on the host and compared
set -eu

cd "$(dirname "$0")/.."
nodes='seed-1 seed-2 node-1 node-2 node-3 node-4'
dir=$PWD/.compose
port=${GRAZE_PORT:-5000}
compose() { docker-compose --project-name graze "$@"; }
on() { compose exec -T "$@"; }
shared() { [ "$(findmnt --noheadings --output PROPAGATION --target "$1")" = shared ]; }

up() {
	for node in $nodes; do
		mkdir -p "$dir/mnt/$node"
	done
	# Mounts that a container makes are seen by the host only if the folder is on
	# a mount that is shared.
	shared "$dir/mnt" || { mount --bind "$dir/mnt" "$dir/mnt" && mount --make-rshared "$dir/mnt"; }
	[ -e "$dir/cluster.key" ] || bin/graze key new "$dir/cluster.key"
	compose build --quiet
	compose up --detach
	for node in $nodes; do
		meet "$node"
	done
}

# meet NODE: waits until a node knows all members.
meet() {
	for _ in $(seq 300); do
		[ "$(on "$1" graze peers --json 2>/dev/null | jq length)" = 6 ] && return
		sleep 0.2
	done
	echo "compose.sh: $1 has not met the others:" >&2
	compose logs --tail 20 "$1" >&2
	exit 1
}

push() {
	skopeo copy --quiet --dest-tls-verify=false "oci:$1" "docker://127.0.0.1:$port/$2:1"
	# The index is made here, by the address that the host has for the registry.
	bin/graze index --state "$dir/builder" --push "127.0.0.1:$port/$2:1"
}

mount_all() {
	push "$1" "$2"
	jobs=
	for node in $nodes; do
		mkdir -p "$dir/mnt/$node/$2"
		on "$node" graze mount --node /var/lib/graze/graze.sock --index require "registry:5000/$2:1" "/mnt/$2" &
		jobs="$jobs $!"
	done
	for job in $jobs; do
		wait "$job"
	done
}

# read_all NAME: reads all files of an image by all mounts at once, and compares
# them with the first.
read_all() {
	jobs=
	for node in $nodes; do
		(cd "$dir/mnt/$node/$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum >"$dir/$node.sums") &
		jobs="$jobs $!"
	done
	for job in $jobs; do
		wait "$job"
	done
	for node in $nodes; do
		cmp "$dir/seed-1.sums" "$dir/$node.sums"
	done
	echo "read $(wc -l <"$dir/seed-1.sums") files by each of 6 mounts: all the same, sha256 of their sums $(sha256sum <"$dir/seed-1.sums" | cut -c1-16)"
}

# stats prints where the bytes of all nodes came from, a node a line.
stats() {
	for node in $nodes; do
		on "$node" graze stats --json | jq --raw-output --arg node "$node" '
			def mib($kind; $name): [.sources[] | select(.kind == $kind and (.name | test($name))) | .bytes] | (add // 0) / 1048576 | . * 10 | round / 10;
			"\($node): MiB from the registry \(mib("registry"; "")), from nodes of the rack \(mib("peers"; "rack")), of the other \(mib("peers"; "zone|far"))"'
	done
}

down() {
	compose down --volumes
	# A node that was killed leaves its mounts behind.
	grep -o " $dir/mnt/[^ ]*/[^ ]* " /proc/self/mountinfo | while read -r at; do
		umount --lazy "$at"
	done
	if mountpoint --quiet "$dir/mnt"; then
		umount "$dir/mnt"
	fi
	rm -rf --one-file-system "$dir"
}

case ${1-} in
up | stats | down) "$1" ;;
mount) mount_all "${2:?LAYOUT:TAG}" "${3:?NAME}" ;;
demo)
	layout=${2:?LAYOUT:TAG}
	trap down EXIT
	trap 'exit 1' INT TERM
	up
	mount_all "$layout" demo
	read_all demo
	stats
	;;
*)
	sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
