package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"graze/node"
)

// BenchmarkContainer runs a program of a real image in a container, by ctr, from
// the pull to the program's end: lazily from the registry, lazily from another
// node that has the image, and pulled and unpacked with overlayfs. Each round
// begins with nothing, but for what the other node has; then the program runs
// again, and once more when the kernel has forgotten what it has read.
func BenchmarkContainer(b *testing.B) {
	for _, p := range []struct {
		name string
		args []string
	}{
		{"start", []string{"python3", "/app/main.py"}},
		{"dense", []string{"sh", "-c", "tar --one-file-system -cf - / | wc -c"}},
	} {
		for _, image := range []string{"debian-python", "torch"} {
			b.Run("program="+p.name+"/image="+image, func(b *testing.B) { benchContainer(b, image, p.args) })
		}
	}
}

func benchContainer(b *testing.B, image string, program []string) {
	needFUSE(b)
	needTools(b, "runc")
	reg := startRegistry(b)
	bench := &containerBench{reg: reg, ref: pushLayout(b, reg, image), program: program, counts: make(tally)}
	bench.socket = filepath.Join(b.TempDir(), "graze.sock")
	bench.ctd = startContainerdWith(b, containerdConfig{graze: bench.socket})
	key := filepath.Join(b.TempDir(), "key")
	graze(b, "key", "new", key)
	peer := startNode(b, key, "peer", "", nil)
	graze(b, "preheat", "--state", peer.state, bench.ref)
	compare(b,
		bench.lazily(b, "registry", "", nil),
		bench.lazily(b, "peer", key, peer),
		bench.plainly(b))
	bench.counts.report(b)
	for _, out := range bench.said[1:] {
		// The two file systems may lay a directory out in other orders, and tar pads
		// its end: what a program counts may differ by a little.
		if !sameOutput(out, bench.said[0]) {
			b.Errorf("the program prints %q", slices.Compact(bench.said))
			break
		}
	}
}

// A containerBench runs one program of one image in all ways.
type containerBench struct {
	reg     *testRegistry
	ctd     *containerd
	socket  string // of the node that is containerd's snapshotter in a round
	ref     string
	program []string
	counts  tally
	said    []string // by the program
	rounds  int
}

// lazily is the way by a node that has nothing at first. It is a member of a cluster
// with the peer, if there is one.
func (c *containerBench) lazily(b *testing.B, name, key string, peer *testNode) side {
	var n *testNode
	return side{
		name: name,
		prepare: func() {
			var contacts []string
			if peer != nil {
				contacts = []string{peer.addr}
			}
			n = startNodeWith(b, fmt.Sprintf("[containerd]\nsocket = %q\n", c.socket), key, "empty", "", contacts)
			if peer != nil {
				n.members(b, 2)
			}
			// What containerd itself knows of it says without the node.
			eventually(b, "containerd has found the node", func() bool {
				_, err := c.ctd.try("snapshots", "--snapshotter", "graze", "prepare", "none")
				return err == nil
			})
			c.ctd.ctr(b, "snapshots", "--snapshotter", "graze", "rm", "none")
			dropCaches(b)
		},
		run: func() time.Duration {
			before := c.reg.traffic(b)
			took := c.round(b, name, "graze", func() { graze(b, "pull", "--address", c.ctd.socket(), c.ref) }, func() {
				c.traffic(b, name, before)
				pid := n.cmd.Process.Pid
				c.counts.add(name+"-agent-cpu-s", cpuTime(b, pid).Seconds())
				c.counts.add(name+"-agent-peak-MB", float64(procStatus(b, pid, "VmHWM"))/1e6)
				peers := int64(0)
				for _, src := range n.stats(b).Sources {
					if src.Kind == node.PeersSource {
						peers += src.Bytes
					}
				}
				c.counts.add(name+"-peers-MB", float64(peers)/1e6)
			})
			c.counts.add(name+"-agent-cpu-after-3-s", cpuTime(b, n.cmd.Process.Pid).Seconds())
			n.end(b)
			return took
		},
	}
}

// plainly is the way that containerd goes by itself.
func (c *containerBench) plainly(b *testing.B) side {
	const name = "plain"
	return side{
		name:    name,
		prepare: func() { dropCaches(b) },
		run: func() time.Duration {
			before := c.reg.traffic(b)
			return c.round(b, name, "overlayfs", func() {
				c.ctd.ctr(b, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", c.ref)
			}, func() { c.traffic(b, name, before) })
		},
	}
}

// round pulls the image and runs the program, which is what it returns the time of.
// It calls count afterwards. Then it runs the program twice more, and takes all away.
func (c *containerBench) round(b *testing.B, name, snapshotter string, pull, count func()) time.Duration {
	c.rounds++
	run := func(which string) time.Duration {
		begin := time.Now()
		out, code := c.ctd.run(b, snapshotter, c.ref, fmt.Sprintf("%s-%d-%s", name, c.rounds, which), c.program...)
		if code != 0 {
			b.Fatalf("the program ends with %d: %s", code, out)
		}
		c.said = append(c.said, strings.TrimSpace(out))
		return time.Since(begin)
	}
	cpu, begin := cpuTime(b, c.ctd.pid), time.Now()
	pull()
	pulled := time.Since(begin)
	run("cold")
	took := time.Since(begin)
	c.counts.add(name+"-pull-s", pulled.Seconds())
	c.counts.add(name+"-containerd-cpu-s", (cpuTime(b, c.ctd.pid) - cpu).Seconds())
	count()
	c.counts.add(name+"-warm-s", run("warm").Seconds())
	dropCaches(b)
	c.counts.add(name+"-dropped-s", run("dropped").Seconds())
	c.ctd.ctr(b, "image", "rm", "--sync", c.ref)
	return took
}

// traffic counts what the registry has sent since before.
func (c *containerBench) traffic(b *testing.B, name string, before testTraffic) {
	b.Helper()
	after := c.reg.traffic(b)
	c.counts.add(name+"-fetched-MB", float64(after.bytes-before.bytes)/1e6)
	c.counts.add(name+"-requests", float64(after.requests-before.requests))
}

// end ends the node before the test does, and removes what it has kept.
func (n *testNode) end(t testing.TB) {
	t.Helper()
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	if err := <-n.exited; err != nil {
		t.Errorf("graze node: %v\n%s", err, n.stderr)
	}
	if err := os.RemoveAll(n.state); err != nil {
		t.Error(err)
	}
}
