#!/bin/sh
# fuzz.sh TIME: runs every fuzz target of the repository for TIME, one by one.
set -eu
cd "$(dirname "$0")/.."

git grep -lE '^func Fuzz' -- '*_test.go' | while read -r file; do
	grep -oE '^func Fuzz[A-Za-z0-9_]*' "$file" | while read -r _ name; do
		echo "fuzz: $(dirname "$file") $name"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "$1" -fuzzminimizetime 100x "./$(dirname "$file")"
	done
done
