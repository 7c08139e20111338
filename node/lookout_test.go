package node

import (
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// TestLookout has nodes say that a registry is down, and then no more.
func TestLookout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{lookout: newLookout()}
		l := n.lookout
		down := func(from chunk.PeerID) bool {
			reply, err := n.onDownNotice(from, "r.test")
			if err != nil {
				t.Fatal(err)
			}
			return reply.Watched
		}
		if registry, _ := l.due(time.Now()); registry != "" {
			t.Errorf("%s is probed for nobody", registry)
		}
		if !down("a") || !down("b") {
			t.Error("a registry that is down for two nodes is not probed")
		}
		probes := 0
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			registry, pause := l.due(time.Now())
			if registry == "" {
				time.Sleep(pause)
				continue
			}
			probes++
			down("a")
		}
		if probes < 8 || probes > 14 {
			t.Errorf("%d probes in 10 s", probes)
		}
		if nodes := l.up("r.test"); len(nodes) != 2 {
			t.Errorf("of two nodes, %v are told", nodes)
		}
		if down("b") {
			t.Error("a registry that answered just now is probed again")
		}
		time.Sleep(backFor + time.Second)
		if !down("b") {
			t.Error("a registry that is down again is not probed")
		}
		time.Sleep(2*holdLease + backFor)
		if registry, _ := l.due(time.Now()); registry != "" || len(l.probed) != 0 {
			t.Errorf("%q is probed for nobody, of %d", registry, len(l.probed))
		}
	})
}
