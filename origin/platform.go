package origin

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// normalize completes a platform and writes it in the one way that images use,
// as containerd does.
func normalize(p v1.Platform) v1.Platform {
	p.OS = strings.ToLower(p.OS)
	p.Architecture, p.Variant = strings.ToLower(p.Architecture), strings.ToLower(p.Variant)
	if p.OS == "" {
		p.OS = "linux"
	}
	switch p.Architecture {
	case "":
		p.Architecture = runtime.GOARCH
	case "i386":
		p.Architecture, p.Variant = "386", ""
	case "x86_64", "x86-64":
		p.Architecture = "amd64"
	case "aarch64":
		p.Architecture = "arm64"
	case "armhf":
		p.Architecture, p.Variant = "arm", "v7"
	case "armel":
		p.Architecture, p.Variant = "arm", "v6"
	}
	if p.Variant != "" && p.Variant[0] >= '0' && p.Variant[0] <= '9' {
		p.Variant = "v" + p.Variant
	}
	switch {
	case p.Architecture == "amd64" && p.Variant == "v1",
		p.Architecture == "arm64" && p.Variant == "v8":
		p.Variant = ""
	case p.Architecture == "arm" && p.Variant == "":
		p.Variant = "v7"
	}
	return p
}

// rank says how well an image for have runs on a machine that is want: 0 is
// best, -1 not at all. Processors run images of their older variants, and 64-bit
// ones those of their 32-bit predecessor.
func rank(want, have v1.Platform) int {
	have = normalize(have)
	if want.OS != have.OS {
		return -1
	}
	return slices.IndexFunc(runnable(want), func(p v1.Platform) bool {
		return p.Architecture == have.Architecture && p.Variant == have.Variant
	})
}

// runnable lists the processors whose images run on p, the best first.
func runnable(p v1.Platform) []v1.Platform {
	arch, variant := p.Architecture, p.Variant
	list := []v1.Platform{{Architecture: arch, Variant: variant}}
	older := func(arch string, from, to int) {
		for v := from; v >= to; v-- {
			list = append(list, normalize(v1.Platform{Architecture: arch, Variant: "v" + strconv.Itoa(v)}))
		}
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(variant, "v")) // 0 for minor versions and the default
	switch arch {
	case "amd64":
		older(arch, min(n, 9)-1, 1)
		list = append(list, v1.Platform{Architecture: "386"})
	case "arm":
		older(arch, min(n, 9)-1, 5)
	case "arm64":
		if variant != "" {
			list = append(list, v1.Platform{Architecture: arch})
		}
		older("arm", 8, 5)
	}
	return list
}

// choose returns the manifest of an index that is best for a platform. One
// without a platform is taken if there is nothing else to choose from, and so is one
// that is not for everybody.
func choose(index *v1.IndexManifest, want v1.Platform) (v1.Descriptor, error) {
	best, bestRank, bestAside := -1, 0, false
	var bare, listed []string
	bareAt := 0
	for i, d := range index.Manifests {
		switch {
		case d.Annotations["vnd.docker.reference.type"] != "":
			continue // an attestation
		case !d.MediaType.IsImage() && !d.MediaType.IsIndex():
			continue
		case d.Platform == nil || d.Platform.OS == "" && d.Platform.Architecture == "":
			bare, bareAt = append(bare, d.Digest.String()), i
			continue
		}
		listed = append(listed, d.Platform.String())
		r, aside := rank(want, *d.Platform), isAside(&d)
		if r >= 0 && (best < 0 || !aside && bestAside || aside == bestAside && r < bestRank) {
			best, bestRank, bestAside = i, r, aside
		}
	}
	switch {
	case best >= 0:
		return index.Manifests[best], nil
	case len(listed) == 0 && len(bare) == 1:
		return index.Manifests[bareAt], nil
	case len(listed) == 0:
		return v1.Descriptor{}, fmt.Errorf("index has %d manifests, none of them with a platform", len(index.Manifests))
	}
	slices.Sort(listed)
	listed = slices.Compact(listed)
	const most = 20
	if len(listed) > most {
		listed = append(listed[:most], "…")
	}
	return v1.Descriptor{}, fmt.Errorf("image is not there for %s, only for %.1000q", want, strings.Join(listed, ", "))
}
