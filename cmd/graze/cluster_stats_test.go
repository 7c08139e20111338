package main

import (
	"context"
	"testing"
	"time"

	"graze/node"
)

// A saying is what all nodes of a cluster say together, in bytes.
type saying struct {
	registry  int64 // from the registry
	rack      int64 // from nodes of the rack
	far       int64 // from other nodes
	unended   int64 // of rack and far: in requests that did not come to their end
	served    int64 // to nodes
	abandoned int64 // of served: in requests that the other end ended
	in, out   int64 // what graze peers shows
	cpu       time.Duration
}

// said sums up what the nodes say.
func (c *testCluster) said(t testing.TB, ctx context.Context) (sum saying) {
	t.Helper()
	for _, n := range c.nodes {
		s, err := n.stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, src := range s.Sources {
			switch {
			case src.Kind == node.RegistrySource:
				sum.registry += src.Bytes
			case src.Name == "rack":
				sum.rack += src.Bytes
			default:
				sum.far += src.Bytes
			}
			sum.unended += src.Abandoned
		}
		sum.served += s.Served.Bytes
		sum.abandoned += s.Served.Abandoned
		sum.cpu += cpuTime(t, s.PID)
		peers, err := n.peers(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range peers {
			sum.in += p.In
			sum.out += p.Out
		}
	}
	return sum
}

// checkStats compares what the nodes say of themselves with what was counted at
// the registry and on the links, all since the nodes were started.
func (c *testCluster) checkStats(t testing.TB, ctx context.Context, tr traffic) {
	t.Helper()
	s, sent := c.said(t, ctx), c.reg.total(t)
	got := s.rack + s.far
	t.Logf("the nodes say: %d bytes from the registry, which says %d; %d from nodes of the rack, %d of others, %d of them in requests that ended early; %d served, %d of them likewise; they took %.1f s of processor time",
		s.registry, sent, s.rack, s.far, s.unended, s.served, s.abandoned, s.cpu.Seconds())
	links := tr.received - tr.registry
	for _, row := range []struct {
		what        string
		said        int64
		least, most int64 // by what was counted elsewhere
	}{
		{"from the registry, by its count", s.registry, sent, sent},
		// A link carries headers, acknowledgements, and what keeps the cluster
		// together. A tenth is more than all of that.
		{"from the registry, by its link", s.registry, tr.registry * 9 / 10, tr.registry},
		{"from nodes, by the links", got, links * 9 / 10, links},
		{"from nodes of other racks, by the links", s.far, tr.crossed * 8 / 10, tr.crossed},
		// What both ends have brought to its end is the same at both, but for
		// requests that one end takes for ended and the other does not.
		{"from nodes in whole requests, by what was served in such", got - s.unended, (s.served - s.abandoned) * 99 / 100, (s.served - s.abandoned) * 101 / 100},
		{"from nodes, by what was served", got, s.served - s.abandoned, s.served},
		{"from each node, in sum", s.in, got, got},
		{"to each node, in sum", s.out, s.served, s.served},
	} {
		if row.said < row.least || row.said > row.most {
			t.Errorf("%s: the nodes say %d, which is not from %d to %d", row.what, row.said, row.least, row.most)
		}
	}
}
