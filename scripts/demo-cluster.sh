#!/bin/sh
# demo-cluster.sh OCI-LAYOUT: five nodes that share chunks start a program from an
# image that none of them has, all at the same moment, next to five full pulls.
# Each node is a process with an address, a state folder and a mount of its own;
# two racks, a seed in each. Everything it makes is in a temporary folder and
# gone at the end.
set -eu

layout=${1:?usage: demo-cluster.sh OCI-LAYOUT}
graze=$(dirname "$0")/../bin/graze
work=$(mktemp -d /tmp/graze-demo.XXXXXX)
nodes='seed-1 seed-2 node-1 node-2 node-3'
net=127.77.$(($$ % 254 + 1)) # of loopback addresses, so that two demos can run at once
pids=
cleanup() {
	# The nodes take their mounts away when they end; what is left was not served.
	end_all
	for dir in "$work"/mnt/* "$work/plain"; do
		# A mount whose process has died is one too, though stat fails on it.
		! grep -q " $dir " /proc/self/mountinfo || umount -l "$dir"
	done
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

# shellcheck source=scripts/demo-lib.sh
. "$(dirname "$0")/demo-lib.sh"

# bytes FILE KIND [NAME]: what came from the sources of a kind, by graze stats.
bytes() {
	jq --arg kind "$2" --arg name "${3-}" \
		'[.sources[] | select(.kind == $kind and ($name == "" or .name == $name)) | .bytes] | add // 0' "$1"
}

echo "demo: starting an embedded registry with the image and its index"
start_registry
push_image "$layout"
"$graze" index --state "$work/builder" --push "$image" >"$work/index.log" 2>&1

echo "demo: running the program on one node by itself, to see what it needs"
mkdir -p "$work/mnt/alone" "$work/plain"
"$graze" node --state "$work/alone" --keep-mounts nobody >"$work/alone.log" 2>&1 &
alone=$!
pids="$pids $alone"
wait_for "$work/alone.log" 'node: answering' >/dev/null
drop_caches
t0=$(now)
"$graze" mount --node "$work/alone/graze.sock" --index require "$image" "$work/mnt/alone" >/dev/null
alone_mount=$(seconds "$t0" "$(now)")
chroot "$work/mnt/alone" python3 /app/main.py >"$work/alone.out"
alone_s=$(seconds "$t0" "$(now)")
"$graze" stats --state "$work/alone" --json >"$work/alone.json"
need=$(bytes "$work/alone.json" registry)
kill "$alone"
wait "$alone" || true

echo "demo: starting five nodes with one key: rack a has seed-1, node-1 and node-3, rack b seed-2 and node-2"
"$graze" key new "$work/key"
n=0
for node in $nodes; do
	n=$((n + 1))
	case $node in
	seed-1 | node-1 | node-3) rack=a ;;
	*) rack=b ;;
	esac
	cat >"$work/$node.toml" <<-EOF
		state = "$work/$node"
		keep-mounts = "nobody"
		[cluster]
		key-file = "$work/key"
		name = "$node"
		rack = "$rack"
		seed = $(case $node in seed-*) echo true ;; *) echo false ;; esac)
		listen = "$net.$n:7945"
		gossip = "$net.$n:7946"
		p2p = "$net.$n:7947"
		join = ["$net.1:7946", "$net.2:7946"]
	EOF
	echo "$rack" >"$work/$node.rack"
	mkdir "$work/mnt/$node"
	"$graze" node --config "$work/$node.toml" >"$work/$node.log" 2>&1 &
	pids="$pids $!"
done
for node in $nodes; do
	wait_for "$work/$node.log" 'node: answering' >/dev/null
	for _ in $(seq 300); do
		[ "$("$graze" peers --state "$work/$node" --json | jq length)" = 5 ] && continue 2
		sleep 0.1
	done
	echo "demo: $node has not met the others; it says:" >&2
	cat "$work/$node.log" >&2
	exit 1
done

# start NODE: mounts the image on a node, runs the program, and notes when each
# was done.
start() {
	"$graze" mount --node "$work/$1/graze.sock" --index require "$image" "$work/mnt/$1" >"$work/$1.mounted"
	now >"$work/$1.t1"
	chroot "$work/mnt/$1" python3 /app/main.py >"$work/$1.out"
	now >"$work/$1.t2"
}

echo "demo: starting the program on all five at the same moment"
drop_caches
t0=$(now)
starts=
for node in $nodes; do
	start "$node" &
	starts="$starts $!"
done
for p in $starts; do
	wait "$p"
done
for node in $nodes; do
	"$graze" stats --state "$work/$node" --json >"$work/$node.json"
	cmp "$work/alone.out" "$work/$node.out"
done
cat "$work/alone.out"

echo "demo: waiting until both seeds hold all of the image"
for node in seed-1 seed-2; do
	for _ in $(seq 600); do
		"$graze" seed ls --state "$work/$node" --json |
			jq --exit-status 'length == 1 and all(.[]; .spans > 0 and .have == .spans)' >/dev/null && continue 2
		sleep 0.1
	done
	echo "demo: $node does not complete the image:" >&2
	"$graze" seed ls --state "$work/$node" >&2
	exit 1
done
sum_final=0
for node in $nodes; do
	"$graze" stats --state "$work/$node" --json >"$work/$node.final.json"
	sum_final=$((sum_final + $(bytes "$work/$node.final.json" registry)))
done

echo "demo: pulling and unpacking all of the image with containerd, once"
start_containerd
drop_caches
p0=$(now)
ctr image pull --plain-http "$image" >"$work/pull.log"
ctr image mount "$image" "$work/plain" >/dev/null
p1=$(now)
chroot "$work/plain" python3 /app/main.py >"$work/plain.out"
p2=$(now)
umount "$work/plain"
cmp "$work/alone.out" "$work/plain.out"
total=$(skopeo inspect --raw --tls-verify=false "docker://$image" | jq '[.layers[].size] | add')

row() { printf '%-13s %4s %9s %10s %12s %8s %8s\n' "$@"; }
echo
echo "MiB from each source when the program had ended on all five, and seconds from the start"
echo "(a registry sends compressed layers, nodes send unpacked chunks)"
echo
row node rack registry 'same rack' 'other racks' mounted 'done'
sum_registry=0 sum_rack=0 sum_across=0 last=0
for node in $nodes; do
	f=$work/$node.json
	registry=$(bytes "$f" registry)
	in_rack=$(bytes "$f" peers rack)
	across=$(($(bytes "$f" peers) - in_rack))
	sum_registry=$((sum_registry + registry))
	sum_rack=$((sum_rack + in_rack))
	sum_across=$((sum_across + across))
	t2=$(cat "$work/$node.t2")
	[ "$t2" -le "$last" ] || last=$t2
	row "$node" "$(cat "$work/$node.rack")" "$(mib "$registry")" "$(mib "$in_rack")" "$(mib "$across")" \
		"$(seconds "$t0" "$(cat "$work/$node.t1")")" "$(seconds "$t0" "$t2")"
done
row 'all five' '' "$(mib "$sum_registry")" "$(mib "$sum_rack")" "$(mib "$sum_across")" '' "$(seconds "$t0" "$last")"
row 'one alone' '' "$(mib "$need")" 0.0 0.0 "$alone_mount" "$alone_s"
row '5 full pulls' '' "$(mib $((5 * total)))" 0.0 0.0 "$(seconds "$p0" "$p1")" "$(seconds "$p0" "$p2")"
echo
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }
ratios() { printf '%-64s %6s %13s\n' "$@"; }
ratios 'egress ratio' nodes '5 full pulls'
ratios 'bytes from the registry / bytes that one node needs to start' "$(ratio "$sum_registry" "$need")" "$(ratio $((5 * total)) "$need")"
ratios 'bytes from the registry / the image, once both seeds have it all' "$(ratio "$sum_final" "$total")" 5.00
echo
echo "5 full pulls: the bytes of five, the seconds of one, which had the machine to itself"
