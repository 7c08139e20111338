#!/bin/sh
# demo.sh OCI-LAYOUT: starts a program from an image that is not there yet, and
# prints what it took next to a full pull of the same image by containerd.
# Everything it makes is in a temporary folder and gone at the end.
set -eu

layout=${1:?usage: demo.sh OCI-LAYOUT}
graze=$(dirname "$0")/../bin/graze
work=$(mktemp -d /tmp/graze-demo.XXXXXX)
pids=
cleanup() {
	for dir in "$work/mnt" "$work/plain"; do
		mountpoint -q "$dir" && umount "$dir"
	done
	end_all
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

# shellcheck source=scripts/demo-lib.sh
. "$(dirname "$0")/demo-lib.sh"

echo "demo: starting an embedded registry and pushing the image to it"
start_registry
push_image "$layout"

echo "demo: making the index of the unmodified image and publishing it beside it"
t0=$(now)
"$graze" index --state "$work/builder" --push "$image"
t1=$(now)
index_s=$(seconds "$t0" "$t1")

echo "demo: mounting the image lazily on a node that has none of it"
mkdir "$work/mnt" "$work/plain"
drop_caches
t0=$(now)
"$graze" mount --state "$work/node" --json "$image" "$work/mnt" >"$work/mount.log" 2>"$work/mount.err" &
pids="$pids $!"
wait_for "$work/mount.log" '"digest"' >"$work/ready.json"
t1=$(now)
chroot "$work/mnt" python3 /app/main.py | tee "$work/lazy.out"
t2=$(now)
lazy_mount=$(seconds "$t0" "$t1")
lazy_end=$(seconds "$t0" "$t2")
"$graze" stats --state "$work/node" --json >"$work/stats.json"
fetched=$(jq '[.sources[].bytes] | add' "$work/stats.json")
requests=$(jq '[.sources[].requests] | add' "$work/stats.json")
umount "$work/mnt"

echo "demo: pulling and unpacking all of the image with containerd"
start_containerd
drop_caches
t0=$(now)
ctr image pull --plain-http "$image" >"$work/pull.log"
ctr image mount "$image" "$work/plain" >/dev/null
t1=$(now)
chroot "$work/plain" python3 /app/main.py >"$work/plain.out"
t2=$(now)
plain_mount=$(seconds "$t0" "$t1")
plain_end=$(seconds "$t0" "$t2")
cmp "$work/lazy.out" "$work/plain.out"

total=$(skopeo inspect --raw --tls-verify=false "docker://$image" | jq '[.layers[].size] | add')
layers=$(skopeo inspect --raw --tls-verify=false "docker://$image" | jq '.layers | length')
share=$(awk -v a="$fetched" -v b="$total" 'BEGIN { printf "%.1f %%", 100 * a / b }')

echo
echo "image: Debian 12 with python3 and numpy, $layers layers, $(mib "$total") MiB compressed, $(jq .files "$work/ready.json") files; indexed in $index_s s"
echo
printf '%-28s %14s %14s\n' '' 'graze' 'full pull'
printf '%-28s %14s %14s\n' 'MiB from the registry' "$(mib "$fetched")" "$(mib "$total")"
printf '%-28s %14s %14s\n' 'share of the image' "$share" '100.0 %'
printf '%-28s %14s %14s\n' 'requests' "$requests" "$layers"
printf '%-28s %14s %14s\n' 'seconds until mounted' "$lazy_mount" "$plain_mount"
printf '%-28s %14s %14s\n' "seconds to program's end" "$lazy_end" "$plain_end"
