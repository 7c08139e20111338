# shellcheck shell=sh
# demo-lib.sh: what the scripts of the demo share. They source it.

# wait_for FILE PATTERN: returns once a line of FILE matches, and prints it.
wait_for() {
	for _ in $(seq 600); do
		grep -m 1 "$2" "$1" 2>/dev/null && return
		sleep 0.05
	done
	echo "demo: timed out; $1 says:" >&2
	cat "$1" >&2
	exit 1
}

now() { date +%s%N; }
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", (b - a) / 1e9 }'; }
mib() { awk -v n="$1" 'BEGIN { printf "%.1f", n / 1048576 }'; }
drop_caches() { sync; echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true; }
