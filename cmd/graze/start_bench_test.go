package main

import (
	stdgzip "compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
)

// BenchmarkNames goes through 100,000 small files, for their names only and for
// their attributes, against the same files unpacked by containerd. With
// cache=dropped the kernel knows none of the names at first. The processor time
// is that of find(1) and of the process that serves the mount.
func BenchmarkNames(b *testing.B) {
	needFUSE(b)
	needTools(b, "find")
	reg := startRegistry(b)
	ref := pushFile(b, reg, "many", imagetest.SmallFiles("files", manyFiles), imagetest.Gzip(stdgzip.BestSpeed))
	m := mount(b, ref, "--state", b.TempDir(), "--index", "require")
	plain := startContainerd(b).pull(b, ref)
	for _, what := range []struct {
		name string
		args []string
	}{{"names", nil}, {"attributes", []string{"-printf", `%s %m\n`}}} {
		for _, cache := range []string{"dropped", "full"} {
			b.Run("what="+what.name+"/cache="+cache, func(b *testing.B) {
				counts := make(tally)
				agent := func() time.Duration { return cpuTime(b, m.cmd.Process.Pid) }
				none := func() time.Duration { return 0 }
				of := func(name, dir string, server func() time.Duration) side {
					return side{name, func() {
						if cache == "dropped" {
							dropCaches(b)
						} else {
							find(b, dir, what.args...)
						}
					}, func() time.Duration {
						begin, before := time.Now(), server()
						n, cpu := find(b, dir, what.args...)
						took := time.Since(begin)
						if n < manyFiles {
							b.Errorf("find prints %d lines in %s", n, dir)
						}
						counts.add(name+"-cpu-s", (cpu + server() - before).Seconds())
						return took
					}}
				}
				compare(b, of("graze", m.dir, agent), of("overlayfs", plain, none))
				counts.report(b)
			})
		}
	}
}

// BenchmarkMount mounts an image whose index is in the registry: on a node that
// has nothing, and on one that has mounted it before. The time is that from the
// start of the process until it says that the mount is ready.
func BenchmarkMount(b *testing.B) {
	needFUSE(b)
	reg := startRegistry(b)
	for _, img := range []struct {
		name string
		push func(b *testing.B) string
	}{
		{"many", func(b *testing.B) string {
			return pushFile(b, reg, "many", imagetest.SmallFiles("files", manyFiles), imagetest.Gzip(stdgzip.BestSpeed))
		}},
		{"debian-python", func(b *testing.B) string { return pushLayout(b, reg, "debian-python") }},
		{"torch", func(b *testing.B) string { return pushLayout(b, reg, "torch") }},
	} {
		b.Run("image="+img.name, func(b *testing.B) {
			ref := img.push(b)
			state, empty := emptyDir(b)
			run := func() time.Duration {
				begin := time.Now()
				m := mount(b, ref, "--state", state, "--index", "require")
				took := time.Since(begin)
				m.stop(b)
				return took
			}
			compare(b,
				side{"cold", func() { empty(); dropCaches(b) }, run},
				side{"warm", nil, run})
		})
	}
}

// BenchmarkStart runs a program of a real image that is in the registry only:
// mounted lazily, and pulled and unpacked by containerd before. It is the whole
// of what happens, from an empty disk to the end of the program.
func BenchmarkStart(b *testing.B) {
	benchImages(b, func(root string) *exec.Cmd {
		return exec.Command("chroot", root, "python3", "/app/main.py")
	})
}

// BenchmarkDense does the same with a program that reads all of the image.
func BenchmarkDense(b *testing.B) {
	benchImages(b, func(root string) *exec.Cmd {
		return exec.Command("sh", "-c", `tar -C "$0" --one-file-system -cf - . | wc -c`, root)
	})
}

func benchImages(b *testing.B, program func(root string) *exec.Cmd) {
	needFUSE(b)
	for _, name := range []string{"debian-python", "torch"} {
		b.Run("image="+name, func(b *testing.B) {
			reg := startRegistry(b)
			ref := pushLayout(b, reg, name)
			ctd := startContainerd(b)
			state, empty := emptyDir(b)
			plain := filepath.Join(b.TempDir(), "plain")
			counts := make(tally)
			var lazyOut, plainOut string
			compare(b, side{
				name:    "graze",
				prepare: func() { empty(); dropCaches(b) },
				run: func() time.Duration {
					before, begin := reg.traffic(b), time.Now()
					m := mount(b, ref, "--state", state, "--index", "require")
					lazyOut = output(b, program(m.dir))
					took := time.Since(begin)
					counts.add("graze-mount-s", float64(m.ready.Milliseconds)/1e3)
					counts.process(b, m)
					m.stop(b)
					counts.traffic(b, reg, before)
					return took
				},
			}, side{
				name:    "containerd",
				prepare: func() { dropCaches(b) },
				run: func() time.Duration {
					before, begin := reg.traffic(b), time.Now()
					ctd.ctr(b, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
					if err := os.MkdirAll(plain, 0o755); err != nil {
						b.Fatal(err)
					}
					ctd.ctr(b, "image", "mount", "--snapshotter", "overlayfs", ref, plain)
					plainOut = output(b, program(plain))
					took := time.Since(begin)
					pulled := reg.traffic(b).bytes - before.bytes
					counts.add("pulled-MB", float64(pulled)/1e6)
					if err := unix.Unmount(plain, 0); err != nil {
						b.Fatal("unmount containerd's image: ", err)
					}
					ctd.ctr(b, "snapshot", "rm", plain)
					ctd.ctr(b, "image", "rm", "--sync", ref)
					return took
				},
			})
			counts.report(b)
			// The two file systems may lay a directory out in other orders, and tar
			// pads its end: what a program counts may differ by a little.
			if !sameOutput(lazyOut, plainOut) {
				b.Errorf("the program prints %q, and %q where the image is unpacked", lazyOut, plainOut)
			}
		})
	}
}

func output(b *testing.B, cmd *exec.Cmd) string {
	b.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// sameOutput reports whether two programs said the same, where numbers may
// differ by a thousandth.
func sameOutput(a, b string) bool {
	m, errA := strconv.ParseFloat(strings.TrimSpace(a), 64)
	n, errB := strconv.ParseFloat(strings.TrimSpace(b), 64)
	if errA != nil || errB != nil {
		return a == b
	}
	return m > 0.999*n && m < 1.001*n
}
