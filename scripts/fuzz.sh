#!/bin/bash
# fuzz.sh TIME [FOLDER]: runs every fuzz target below FOLDER for TIME, as many at a
# time as there are processors, and prints a line for each. It fails if one has found
# something: then the report and the input are printed, and the input is among the
# target's seeds.
set -euo pipefail
cd "$(dirname "$0")/.."
time=$1

# one PACKAGE TARGET fuzzes one target.
one() {
	local log
	log=$(mktemp)
	if ! go test -run '^$' -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 100x -parallel 1 "$1" >"$log" 2>&1 && ! late "$log"; then
		echo "fuzz: FAIL $1 $2"
		cat "$log"
		sed -n 's/^ *Failing input written to //p' "$log" | while read -r input; do
			echo "$1/$input:"
			cat "$1/$input"
		done
		rm "$log"
		return 1
	fi
	echo "fuzz: ok $1 $2: $(sed -n 's/^fuzz: elapsed: //p' "$log" | tail -1)"
	rm "$log"
}

# late LOG reports whether a run has failed for nothing but having come to its end,
# which Go can take for an error (go.dev/issue/75804).
late() {
	[ "$(grep -A 1 -e '^ *--- FAIL' "$1" | sed 1d)" = '    context deadline exceeded' ]
}
export -f one late
export time

git grep -oE '^func Fuzz[A-Za-z0-9_]*' -- "${2:-.}/*_test.go" |
	sed -E 's|^(.*)/[^/]*:func (.*)$|./\1 \2|' |
	xargs -P "$(nproc)" -n 2 bash -c 'one "$@"' fuzz
