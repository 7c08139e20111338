#!/bin/bash
# test.sh: every check and all tests, and the parsers of images fuzzed. It makes what
# the tests need that is not there, as the environment says: GRAZE_IMAGES,
# GRAZE_CONTAINERD2 and GRAZE_ZTOC. Each test runs once: with the race detector, if it
# is about what happens at the same time in one process. The formats start no
# goroutine, and cmd/graze has two kinds of tests that need none.
set -euo pipefail
cd "$(dirname "$0")/.."
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

bytes='^Test(Truth|Nydus|OneByte|ManyFiles)'                   # that what is mounted has the right ones
nodes='^Test(Cluster.|Scenarios|Soak|Cycles|ContainerRestart)' # that are built as for use; they mostly wait

# step COMMAND...: runs a part, and says when it begins.
step() {
	echo "test: at $SECONDS s: $*"
	"$@"
}

# The image mostly waits for downloads.
scripts/debian-image.sh "$GRAZE_IMAGES/debian-python" &
image=$!
step scripts/lint.sh
step scripts/containerd2.sh "$GRAZE_CONTAINERD2"
step scripts/ztoc.sh "$GRAZE_ZTOC"
wait $image

# From here on, all parts run even if one fails. What only computes does so while
# nodes wait, and must not keep them from their work. So a fuzz target gets its half
# minute of a processor in a longer time.
failed=0
(
	renice -n 19 "$BASHPID" >/dev/null
	step scripts/fuzz.sh 45s image || failed=1
	step go test ./image/... || failed=1
	step go test -timeout 20m -parallel 2 -run "$bytes" ./cmd/graze || failed=1
	exit $failed
) &
computing=$!
step go test -timeout 20m -parallel 4 -run "$nodes" ./cmd/graze || failed=1
wait $computing || failed=1

# shellcheck disable=SC2046 # one word per package
step go test -race -p 1 $(go list ./... | grep -v -e ^graze/image -e ^graze/cmd) &
others=$!
step go test -race -timeout 20m -skip "$bytes|$nodes" ./cmd/graze || failed=1
wait $others || failed=1
exit $failed
