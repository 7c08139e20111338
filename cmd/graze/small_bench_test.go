package main

import (
	"fmt"
	"testing"
	"time"

	"graze/image/imagetest"
)

// BenchmarkSmallImage starts a program that reads all of its small image: lazily,
// with an index in the registry, next to a pull by the same containerd.
func BenchmarkSmallImage(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("size=%dKiB", size>>10), func(b *testing.B) {
			needFUSE(b)
			needTools(b, "runc")
			only := &rig{reg: startRegistry(b)}
			lazy := only.join(b, containerdConfig{}, "", "", nil)
			plain := only.join(b, containerdConfig{}, "policies = [\"** pull\"]\n", "", nil)
			program, err := probe()
			if err != nil {
				b.Fatal(err)
			}
			round, ref := 0, ""
			next := func() {
				round++
				file := imagetest.File("probe", program)
				file.Header.Mode = 0o755
				layers := []imagetest.Layer{
					{Name: "program", Members: imagetest.Members(file)},
					{Name: "data", Members: imagetest.Members(imagetest.File("data", imagetest.Random(uint64(size+round), size)))},
				}
				img, err := imagetest.Build(layers, imagetest.Gzip(6))
				if err != nil {
					b.Fatal(err)
				}
				ref = only.reg.push(b, img, fmt.Sprintf("small-%d:1", round))
				graze(b, "index", "--state", b.TempDir(), "--push", ref)
			}
			start := func(r *rig) func() time.Duration {
				return func() time.Duration {
					r.pullLazily(b, ref)
					if out, code := r.ctd.run(b, "graze", ref, fmt.Sprint("run-", round), "/probe", "read"); code != 0 {
						b.Fatalf("the program ends with %d: %s", code, out)
					}
					return 0
				}
			}
			compare(b, side{"lazy", next, start(lazy)}, side{"plain", nil, start(plain)})
		})
	}
}
