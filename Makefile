# make demo   runs the main job on this machine and prints a table
# make test   runs every check and all tests
# Both install what they need (Debian packages by apt, Go modules) and can be
# run again at any time.

IMAGES ?= /var/cache/graze/images
CONTAINERD2 ?= /var/cache/graze/containerd2
ZTOC ?= /var/cache/graze/ztoc

.PHONY: build demo test lint bench fuzz gen clean

build: ## the binary, bin/graze
	CGO_ENABLED=0 go build -trimpath -o bin/graze ./cmd/graze

demo: build ## a Debian image with python3: mounted lazily, next to a full pull; then by five nodes
	scripts/need.sh skopeo containerd runc jq
	scripts/debian-image.sh $(IMAGES)/debian-python
	scripts/demo.sh $(IMAGES)/debian-python
	scripts/demo-cluster.sh $(IMAGES)/debian-python

lint: ## formatting, vet, static analysis and known vulnerabilities
	scripts/lint.sh

test: ## every check, all tests, and the parsers of images fuzzed
	scripts/need.sh gcc libc6-dev zlib1g-dev skopeo containerd runc umoci debootstrap fuse3 protobuf-compiler pigz zstd attr iproute2
	GRAZE_IMAGES=$(IMAGES) GRAZE_CONTAINERD2=$(CONTAINERD2) GRAZE_ZTOC=$(ZTOC) scripts/test.sh

bench: ## the benchmarks of docs/measurements.md
	scripts/need.sh skopeo containerd runc
	scripts/debian-image.sh $(IMAGES)/debian-python
	GRAZE_IMAGES=$(IMAGES) go test -run '^$$' -bench . -benchtime 1x -timeout 60m ./...

fuzz: ## every fuzz target for FUZZTIME
	scripts/fuzz.sh $(or $(FUZZTIME),30s)

gen: ## generated code
	scripts/need.sh protobuf-compiler
	go generate ./...

clean: ## what the other targets made in this folder
	rm -rf bin
