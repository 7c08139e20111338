#!/bin/sh
# bench.sh [ROUNDS [PATTERN]]: runs the end-to-end benchmarks that match PATTERN
# and prints a table of them: the median seconds of graze and of what it is set
# against, the ratio of the two, and what was counted. A round runs both sides.
# Benchmarks of images that are not there (debian-image.sh, torch-image.sh) are
# left out.
set -eu
cd "$(dirname "$0")/.."

rounds=${1:-3}
pattern=${2:-.}
out=$(mktemp)
trap 'rm -f "$out"' EXIT

echo "load before: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) processors, $(date -u +%Y-%m-%d)"
GRAZE_IMAGES=${GRAZE_IMAGES:-/var/cache/graze/images} \
	go test -run '^$' -bench "$pattern" -benchtime "${rounds}x" -timeout 120m ./cmd/graze | tee "$out" | grep '^Benchmark' |
	awk '
	BEGIN { printf "%-48s %10s %22s %7s  %s\n", "benchmark", "graze", "against", "ratio", "counted" }
	{
		name = $1; sub(/^Benchmark/, "", name); sub(/-[0-9]+$/, "", name)
		ours = other = ratio = ""; counted = ""
		for (i = 3; i < NF; i += 2) {
			v = $i; unit = $(i + 1)
			if (unit == "graze-s" || unit == "cold-s") ours = v " s"
			else if (unit ~ /^(pipeline|ext4|overlayfs|containerd|warm)-s$/) { sub(/-s$/, "", unit); other = unit " " v " s" }
			else if (unit == "ratio") ratio = v
			else if (unit != "ns/op") counted = counted " " v " " unit
		}
		printf "%-48s %10s %22s %7s %s\n", name, ours, other, ratio, counted
		fflush()
	}'
echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)"
grep -q '^ok' "$out" || { cat "$out" >&2; exit 1; }
