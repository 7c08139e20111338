package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"
)

// A side is one of the ways to do a job that compare sets against each other.
type side struct {
	name string
	// prepare makes ready for a round, untimed; nil for nothing.
	prepare func()
	// run does the job once, and returns how long it took by its own measure, or
	// 0 for the time of the call.
	run func() time.Duration
}

// compare runs the sides by turns, a round of all in each iteration, so that
// what else the machine does meets all of them. It reports the median seconds of
// each, and the first one's as a multiple of the last one's.
func compare(b *testing.B, sides ...side) {
	b.Helper()
	times := make([][]float64, len(sides))
	for b.Loop() {
		for i, s := range sides {
			if s.prepare != nil {
				s.prepare()
			}
			begin := time.Now()
			took := s.run()
			if took == 0 {
				took = time.Since(begin)
			}
			times[i] = append(times[i], took.Seconds())
		}
	}
	b.ReportMetric(0, "ns/op") // the sum of the sides says nothing
	for i, s := range sides {
		b.ReportMetric(median(times[i]), s.name+"-s")
	}
	if last := len(sides) - 1; last > 0 {
		b.ReportMetric(median(times[0])/median(times[last]), "ratio")
	}
}

// median returns the median of values, of which there is at least one.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// A tally collects what each round of a benchmark was counted to take, and
// reports the medians.
type tally map[string][]float64

func (c tally) add(unit string, v float64) { c[unit] = append(c[unit], v) }

func (c tally) report(b *testing.B) {
	for unit, values := range c {
		b.ReportMetric(median(values), unit)
	}
}

// process adds what a mount's process has used so far: processor time and the
// most memory that was resident at a time.
func (c tally) process(b *testing.B, m *testMount) {
	b.Helper()
	c.add("agent-cpu-s", cpuTime(b, m.cmd.Process.Pid).Seconds())
	c.add("agent-peak-MB", float64(procStatus(b, m.cmd.Process.Pid, "VmHWM"))/1e6)
}

// traffic adds what the registry has sent since it had counted before.
func (c tally) traffic(b *testing.B, reg *testRegistry, before testTraffic) {
	b.Helper()
	after := reg.traffic(b)
	c.add("fetched-MB", float64(after.bytes-before.bytes)/1e6)
	c.add("requests", float64(after.requests-before.requests))
}

// testTraffic is what a registry has answered, of all kinds.
type testTraffic struct{ requests, bytes int64 }

func (r *testRegistry) traffic(t testing.TB) (sum testTraffic) {
	t.Helper()
	for _, c := range r.stats(t) {
		sum.requests += c.Requests
		sum.bytes += c.Bytes
	}
	return sum
}

// cpuTime returns the processor time that a process has used.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The name, in parentheses, may have spaces. The times are the 12th and 13th
	// field behind it, in ticks of which Linux shows 100 a second.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	ticks := int64(0)
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// pushLayout pushes a real image, which one of the scripts has made as an OCI
// layout that is named like its tag, and publishes its index. It skips the
// benchmark where there is none.
func pushLayout(b *testing.B, reg *testRegistry, name string) string {
	b.Helper()
	needTools(b, "skopeo")
	layout := imagesDir(b) + "/" + name
	if _, err := os.Stat(layout); err != nil {
		b.Skipf("there is no image %s: see scripts/", layout)
	}
	ref := reg.addr + "/" + name + ":1"
	out, err := exec.Command("skopeo", "copy", "--quiet", "--dest-tls-verify=false", "oci:"+layout+":"+name, "docker://"+ref).CombinedOutput()
	if err != nil {
		b.Fatalf("skopeo: %v\n%s", err, out)
	}
	graze(b, "index", "--state", b.TempDir(), "--push", ref)
	return ref
}

// dropCaches makes the kernel write back what it has and forget what it has
// read, of all file systems.
func dropCaches(b *testing.B) {
	b.Helper()
	if err := exec.Command("sync").Run(); err != nil {
		b.Fatal("sync: ", err)
	}
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200); err != nil {
		b.Skip("the page cache can't be dropped: ", err)
	}
}

// emptyDir makes a folder and returns a function that empties it.
func emptyDir(b *testing.B) (dir string, empty func()) {
	b.Helper()
	dir = b.TempDir()
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
	}
}
