package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// needNetwork skips a test where no network of its own can be made.
func needNetwork(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	needTools(t, "ip", "tc", "bridge")
	ns, err := newNetns()
	if err != nil {
		t.Skip("network namespaces: ", err)
	}
	defer ns.close()
	script := "link add probe0 type veth peer name probe1\nlink set probe0 up\nlink add bridge0 type bridge\n"
	if err := ns.batch("ip", script); err != nil {
		t.Skip("virtual links: ", err)
	}
	if err := ns.batch("tc", "qdisc add dev probe0 root "+tbf("1mbit")); err != nil {
		t.Skip("limits on links: ", err)
	}
}

// A netns is a network namespace without a name: it is gone once it is closed
// and no process is left in it, however the test has ended.
type netns struct{ file *os.File }

func newNetns() (*netns, error) {
	ns := new(netns)
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if ns.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		return command("ip", "link", "set", "lo", "up").run()
	})
	return ns, err
}

func (ns *netns) close() { ns.file.Close() }

// path names the namespace for ip(8).
func (ns *netns) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd()) }

// do calls f on a thread that is in the namespace. Sockets that f makes and
// processes that it starts are in it; goroutines that it starts are not.
func (ns *netns) do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// onThread calls f on a thread of its own, which ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocks: nobody else gets this thread
		done <- f()
	}()
	return <-done
}

// batch has ip(8), tc(8) or bridge(8) do what the lines of script say.
func (ns *netns) batch(program, script string) error {
	return ns.do(func() error {
		c := command(program, "-batch", "-")
		c.Stdin = strings.NewReader(script)
		return c.run()
	})
}

// A shortCommand is a command whose output matters only if it fails.
type shortCommand struct{ *exec.Cmd }

func command(name string, args ...string) shortCommand {
	return shortCommand{exec.Command(name, args...)}
}

func (c shortCommand) run() error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
	}
	return nil
}

// registryAddr is the registry's address in a testNetwork.
const registryAddr = "10.77.255.1"

// A testNetwork is a bridge for each rack, all of them linked to one more bridge,
// to which the registry is linked too. The bridges are in a namespace of their
// own, and so is each machine.
type testNetwork struct {
	bridges  *netns
	racks    int
	machines []*machine
}

// A machine is a namespace with one link, eth0. The other end of it is a port of
// a bridge.
type machine struct {
	*netns
	addr string
	port string
}

// newNetwork makes a network of racks without machines. It is gone after the
// test, when the processes in it have ended.
func newNetwork(t testing.TB, racks int) *testNetwork {
	t.Helper()
	ns, err := newNetns()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.close)
	var ip strings.Builder
	fmt.Fprint(&ip, "link add core type bridge\nlink set core up\n")
	for r := range racks {
		fmt.Fprintf(&ip, "link add rack%d type bridge\nlink set rack%d up\n", r, r)
		fmt.Fprintf(&ip, "link add down%d type veth peer name up%d\n", r, r)
		fmt.Fprintf(&ip, "link set down%d master core up\nlink set up%d master rack%d up\n", r, r, r)
	}
	if err := ns.batch("ip", ip.String()); err != nil {
		t.Fatal(err)
	}
	return &testNetwork{bridges: ns, racks: racks}
}

// add links one more machine to a rack, or to the bridge between the racks if
// rack is -1. Its link carries rate, as tc(8) writes it, in both directions.
func (n *testNetwork) add(t testing.TB, rack int, addr, rate string) *machine {
	t.Helper()
	ns, err := newNetns()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.close)
	m := &machine{netns: ns, addr: addr, port: fmt.Sprintf("port%d", len(n.machines))}
	bridge := "core"
	if rack >= 0 {
		bridge = fmt.Sprintf("rack%d", rack)
	}
	err = errors.Join(
		n.bridges.batch("ip", fmt.Sprintf("link add %s type veth peer name eth0 netns %s\nlink set %s master %s up\n", m.port, ns.path(), m.port, bridge)),
		ns.batch("ip", fmt.Sprintf("addr add %s/16 dev eth0\nlink set eth0 up\n", addr)),
		n.bridges.batch("tc", fmt.Sprintf("qdisc add dev %s root %s", m.port, tbf(rate))),
		ns.batch("tc", "qdisc add dev eth0 root "+tbf(rate)),
		ns.do(useReno),
	)
	if err != nil {
		t.Fatal(err)
	}
	n.machines = append(n.machines, m)
	return m
}

// useReno has the namespace control congestion in the one way that every system
// lets a namespace choose. Some have BBR by default, which loses almost half of what
// many connections send to a queue as short as these.
func useReno() error {
	return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0)
}

// tbf returns the words by which tc(8) limits a link.
func tbf(rate string) string { return "tbf rate " + rate + " burst 64kb latency 100ms" }

// slow limits what the machine can send.
func (m *machine) slow(t testing.TB, rate string) {
	t.Helper()
	if err := m.batch("tc", "qdisc change dev eth0 root "+tbf(rate)); err != nil {
		t.Fatal(err)
	}
}

// setRate limits what all machines can send and receive.
func (c *testCluster) setRate(t testing.TB, rate string) {
	t.Helper()
	c.shape.rate, c.shape.origin = rate, rate
	var ports strings.Builder
	for _, m := range c.net.machines {
		m.slow(t, rate)
		fmt.Fprintf(&ports, "qdisc change dev %s root %s\n", m.port, tbf(rate))
	}
	if err := c.net.bridges.batch("tc", ports.String()); err != nil {
		t.Fatal(err)
	}
}

// cut takes a rack's link to all that is outside it away, or brings it back.
func (n *testNetwork) cut(t testing.TB, rack int, cut bool) {
	t.Helper()
	state := "up"
	if cut {
		state = "down"
	}
	if err := n.bridges.batch("ip", fmt.Sprintf("link set down%d %s\n", rack, state)); err != nil {
		t.Error(err)
	}
}

// split keeps all racks from each other, but not from the registry, or ends that.
func (n *testNetwork) split(t testing.TB, split bool) {
	t.Helper()
	state := "off"
	if split {
		state = "on"
	}
	var script strings.Builder
	for r := range n.racks {
		fmt.Fprintf(&script, "link set dev down%d isolated %s\n", r, state)
	}
	if err := n.bridges.batch("bridge", script.String()); err != nil {
		t.Error(err)
	}
}

// linkCount is what went through a port, in bytes.
type linkCount struct{ in, out int64 }

// counts returns what the ports of the bridges have carried: in from a machine or
// rack, out to it.
func (n *testNetwork) counts(t testing.TB) map[string]linkCount {
	t.Helper()
	var text []byte
	err := n.bridges.do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]linkCount)
	for sc := bufio.NewScanner(strings.NewReader(string(text))); sc.Scan(); {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 9 {
			continue
		}
		in, err1 := strconv.ParseInt(fields[0], 10, 64)
		out, err2 := strconv.ParseInt(fields[8], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		counts[strings.TrimSpace(name)] = linkCount{in, out}
	}
	return counts
}

// Traffic is what has gone over the links of a network, in bytes, with all
// headers.
type traffic struct {
	received int64 // by the nodes
	registry int64 // by the nodes, from the registry
	crossed  int64 // from nodes of one rack to nodes of another
}

// traffic returns what the links have carried. The registry is the first machine.
func (n *testNetwork) traffic(t testing.TB) traffic {
	t.Helper()
	counts := n.counts(t)
	tr := traffic{registry: counts[n.machines[0].port].in}
	for _, m := range n.machines[1:] {
		tr.received += counts[m.port].out
	}
	for r := range n.racks {
		tr.crossed += counts[fmt.Sprintf("down%d", r)].out
	}
	tr.crossed -= tr.registry
	return tr
}

func (tr traffic) since(before traffic) traffic {
	return traffic{tr.received - before.received, tr.registry - before.registry, tr.crossed - before.crossed}
}

// A process is one that runs on a machine.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
	err    error         // how; to be read after that
}

// start runs a program on the machine. It is told to end when the test's process
// has ended, whatever ended that.
func (m *machine) start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 2)
	go func() {
		started <- m.do(func() error {
			// It is the death of this thread that Pdeathsig is about, so the thread
			// stays until the process has ended.
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
			if err := cmd.Start(); err != nil {
				return err
			}
			started <- nil
			p.err = cmd.Wait()
			close(p.exited)
			return nil
		})
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}
