package lab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A Network is machines in racks. It is not safe for concurrent use while
// machines are added.
type Network struct {
	bridges  *namespace
	racks    int
	machines []*Machine
}

// NewNetwork makes a network of racks without machines. Close it after use.
func NewNetwork(racks int) (*Network, error) {
	ns, err := newNamespace()
	if err != nil {
		return nil, err
	}
	var ip strings.Builder
	fmt.Fprint(&ip, "link add core type bridge\nlink set core up\n")
	for r := range racks {
		fmt.Fprintf(&ip, "link add rack%d type bridge\nlink set rack%d up\n", r, r)
		fmt.Fprintf(&ip, "link add down%d type veth peer name up%d\n", r, r)
		fmt.Fprintf(&ip, "link set down%d master core up\nlink set up%d master rack%d up\n", r, r, r)
	}
	if err := ns.batch("ip", ip.String()); err != nil {
		ns.close()
		return nil, err
	}
	return &Network{bridges: ns, racks: racks}, nil
}

// Close lets go of all machines. They are gone when the processes on them have
// ended.
func (n *Network) Close() {
	for _, m := range n.machines {
		m.ns.close()
	}
	n.bridges.close()
}

// Outside is the rack of a machine that is in none, but linked to all of them.
const Outside = -1

// Add makes a machine in a rack, or Outside. Its address is an IPv4 one, in a
// network of 16 bits that all machines share. Its link carries rate in both
// directions, as tc(8) writes it: "100mbit".
func (n *Network) Add(rack int, addr, rate string) (*Machine, error) {
	if rack < Outside || rack >= n.racks {
		return nil, fmt.Errorf("there is no rack %d", rack)
	}
	ns, err := newNamespace()
	if err != nil {
		return nil, err
	}
	m := &Machine{Addr: addr, Rack: rack, net: n, ns: ns, port: fmt.Sprintf("port%d", len(n.machines))}
	bridge := "core"
	if rack != Outside {
		bridge = fmt.Sprintf("rack%d", rack)
	}
	for _, step := range []struct {
		ns              *namespace
		program, script string
	}{
		{n.bridges, "ip", fmt.Sprintf("link add %s type veth peer name eth0 netns %s\nlink set %s master %s up\n", m.port, ns.path(), m.port, bridge)},
		{ns, "ip", fmt.Sprintf("addr add %s/16 dev eth0\nlink set eth0 up\n", addr)},
		{n.bridges, "tc", fmt.Sprintf("qdisc add dev %s root %s\n", m.port, limit(rate))},
		{ns, "tc", fmt.Sprintf("qdisc add dev eth0 root %s\n", limit(rate))},
	} {
		if err := step.ns.batch(step.program, step.script); err != nil {
			ns.close()
			return nil, err
		}
	}
	if err := ns.do(useReno); err != nil {
		ns.close()
		return nil, err
	}
	n.machines = append(n.machines, m)
	return m, nil
}

// useReno has the namespace control congestion in the one way that every system
// lets a namespace choose. Some have BBR by default, which loses almost half of what
// many connections send to a queue as short as these.
func useReno() error {
	return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0)
}

// limit returns the words by which tc(8) limits a link.
func limit(rate string) string { return "tbf rate " + rate + " burst 64kb latency 100ms" }

// CutRack takes a rack's link to all that is outside of it away, or brings it
// back.
func (n *Network) CutRack(rack int, cut bool) error {
	if rack < 0 || rack >= n.racks {
		return fmt.Errorf("there is no rack %d", rack)
	}
	return n.bridges.batch("ip", fmt.Sprintf("link set down%d %s\n", rack, upOrDown(!cut)))
}

// Split keeps all racks from each other, but not from machines outside, or ends
// that.
func (n *Network) Split(split bool) error {
	state := "off"
	if split {
		state = "on"
	}
	var script strings.Builder
	for r := range n.racks {
		fmt.Fprintf(&script, "link set dev down%d isolated %s\n", r, state)
	}
	return n.bridges.batch("bridge", script.String())
}

func upOrDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

// A Traffic is what a link has carried, in bytes with all headers.
type Traffic struct{ Sent, Received int64 }

// Crossed returns what each rack has exchanged with all that is outside of it.
func (n *Network) Crossed() ([]Traffic, error) {
	ports, err := n.ports()
	if err != nil {
		return nil, err
	}
	list := make([]Traffic, n.racks)
	for r := range list {
		list[r] = ports[fmt.Sprintf("down%d", r)]
	}
	return list, nil
}

// ports returns what each port of the bridges has carried, as seen by what is
// plugged into it.
func (n *Network) ports() (map[string]Traffic, error) {
	var text []byte
	err := n.bridges.do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	if err != nil {
		return nil, err
	}
	ports := make(map[string]Traffic)
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 9 {
			continue
		}
		in, err1 := strconv.ParseInt(fields[0], 10, 64)
		out, err2 := strconv.ParseInt(fields[8], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		ports[strings.TrimSpace(name)] = Traffic{Sent: in, Received: out}
	}
	return ports, nil
}
