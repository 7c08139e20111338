package main

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"graze/image/soci/socitest"
)

// BenchmarkSOCI runs a program from a real image, and reads all of the image, by its
// SOCI index and by graze's own: by turns, on a node that has nothing. It reports
// what the registry sends, and how large the chunk store is then: of what comes out of
// a sealed chunk, the store has a copy.
func BenchmarkSOCI(b *testing.B) {
	needFUSE(b)
	for _, job := range []struct{ name, script string }{
		{"start", `chroot "$0" python3 /app/main.py`},
		{"dense", `tar -C "$0" --one-file-system -cf - . | wc -c`},
	} {
		b.Run(job.name, func(b *testing.B) {
			counts := make(tally)
			var sides []side
			for _, kind := range []string{"soci", "own"} {
				reg := startRegistry(b)
				ref := pushDebian(b, reg)
				if kind == "soci" {
					img := layoutImage(b, "debian-python")
					index, err := socitest.Index(socitest.First, img, debianZTOCs(b, img))
					if err != nil {
						b.Fatal(err)
					}
					reg.push(b, index, "debian-python:soci")
				} else {
					graze(b, "index", "--state", b.TempDir(), "--push", ref)
				}
				state, empty := emptyDir(b)
				sides = append(sides, side{kind, func() { empty(); dropCaches(b) }, func() time.Duration {
					before, begin := reg.traffic(b), time.Now()
					m := mount(b, ref, "--state", state, "--index", "require")
					output(b, exec.Command("sh", "-c", job.script, m.dir))
					took := time.Since(begin)
					counts.add(kind+"-cpu-s", cpuTime(b, m.cmd.Process.Pid).Seconds())
					counts.add(kind+"-peak-MB", float64(procStatus(b, m.cmd.Process.Pid, "VmHWM"))/1e6)
					counts.add(kind+"-fetched-MB", float64(reg.traffic(b).bytes-before.bytes)/1e6)
					m.stop(b)
					counts.add(kind+"-store-MB", storeSize(b, state+"/chunks"))
					return took
				}})
			}
			compare(b, sides...)
			counts.report(b)
		})
	}
}

// storeSize returns the bytes that a folder's files take, in MB.
func storeSize(b *testing.B, dir string) (mb float64) {
	b.Helper()
	names, err := os.ReadDir(dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range names {
		var st syscall.Stat_t
		if err := syscall.Stat(dir+"/"+n.Name(), &st); err != nil {
			b.Fatal(err)
		}
		mb += float64(st.Blocks) * 512 / 1e6
	}
	return mb
}
