# shellcheck shell=sh
# demo-lib.sh: what scripts share that start graze and others. They source it, with
# $graze, the program; $work, their folder; and $pids, the processes that they end.

# wait_for FILE PATTERN: returns once a line of FILE matches, and prints it.
wait_for() {
	for _ in $(seq 600); do
		grep -m 1 "$2" "$1" 2>/dev/null && return
		sleep 0.05
	done
	echo "timed out; $1 says:" >&2
	cat "$1" >&2
	exit 1
}

now() { date +%s%N; }
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", (b - a) / 1e9 }'; }
mib() { awk -v n="$1" 'BEGIN { printf "%.1f", n / 1048576 }'; }
drop_caches() { sync; echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true; }

# start_registry: starts a registry, whose address is then in $addr.
start_registry() {
	"$graze" registry --listen 127.0.0.1:0 --root "$work/registry" >"$work/registry.log" 2>&1 &
	pids="$pids $!"
	addr=$(wait_for "$work/registry.log" 'listening on' | sed 's/.*listening on \([^ ,]*\).*/\1/')
}

# push_image LAYOUT: pushes the Debian image to the registry; $image is its name.
push_image() {
	# shellcheck disable=SC2034 # for those who source this
	image=$addr/debian-python:12
	skopeo copy --quiet --dest-tls-verify=false "oci:$1:debian-python" "docker://$image"
}

# start_containerd: starts a containerd of its own, which ctr then speaks to.
start_containerd() {
	cat >"$work/containerd.toml" <<-EOF
		version = 2
		root = "$work/containerd"
		state = "$work/containerd-run"
		disabled_plugins = ["io.containerd.grpc.v1.cri"]
		[grpc]
		address = "$work/containerd.sock"
	EOF
	containerd --config "$work/containerd.toml" >"$work/containerd.log" 2>&1 &
	pids="$pids $!"
	wait_for "$work/containerd.log" 'containerd successfully booted' >/dev/null
}
ctr() { command ctr --address "$work/containerd.sock" "$@"; }

# end_all: ends the processes.
end_all() {
	# shellcheck disable=SC2086 # one word per process
	[ -z "$pids" ] || { kill $pids 2>/dev/null || true; wait $pids 2>/dev/null || true; }
}
