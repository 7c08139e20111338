package main

import (
	"testing"

	"graze/chaos/lab"
)

// needNetwork skips a test where no network of its own can be made.
func needNetwork(t testing.TB) {
	t.Helper()
	if err := lab.Check(); err != nil {
		t.Skip("no network for the test: ", err)
	}
}

// registryAddr is the registry's address in a testNetwork.
const registryAddr = "10.77.255.1"

// A testNetwork is the network of a test. The registry is its first machine.
type testNetwork struct {
	*lab.Network
	racks    int
	machines []*lab.Machine
}

// newNetwork makes a network of racks without machines. It is gone after the
// test, when the processes in it have ended.
func newNetwork(t testing.TB, racks int) *testNetwork {
	t.Helper()
	n, err := lab.NewNetwork(racks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return &testNetwork{Network: n, racks: racks}
}

// add makes one more machine.
func (n *testNetwork) add(t testing.TB, rack int, addr, rate string) *lab.Machine {
	t.Helper()
	m, err := n.Add(rack, addr, rate)
	if err != nil {
		t.Fatal(err)
	}
	n.machines = append(n.machines, m)
	return m
}

// setRate limits what all machines can send and receive.
func (c *testCluster) setRate(t testing.TB, rate string) {
	t.Helper()
	c.shape.rate, c.shape.origin = rate, rate
	for _, m := range c.net.machines {
		if err := m.SetRates(rate, rate); err != nil {
			t.Fatal(err)
		}
	}
}

// slow limits what a node can send.
func (c *testCluster) slow(t testing.TB, n *clusterNode, rate string) {
	t.Helper()
	must(t, n.SetRates(rate, c.shape.rate))
}

// must reports an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Traffic is what has gone over the links of a network, in bytes, with all
// headers.
type traffic struct {
	received int64 // by the nodes
	registry int64 // by the nodes, from the registry
	crossed  int64 // from nodes of one rack to nodes of another
}

// traffic returns what the links have carried.
func (n *testNetwork) traffic(t testing.TB) (tr traffic) {
	t.Helper()
	for i, m := range n.machines {
		link, err := m.Traffic()
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			tr.registry = link.Sent
		} else {
			tr.received += link.Received
		}
	}
	racks, err := n.Crossed()
	if err != nil {
		t.Fatal(err)
	}
	for _, rack := range racks {
		tr.crossed += rack.Received
	}
	tr.crossed -= tr.registry
	return tr
}

func (tr traffic) since(before traffic) traffic {
	return traffic{tr.received - before.received, tr.registry - before.registry, tr.crossed - before.crossed}
}
