package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"graze/chunk"
	"graze/dht"
	"graze/peer"
	"graze/wire"
)

// strangerEnv makes the test binary a node that lacks the cluster's key: it has
// another one.
const strangerEnv = "GRAZE_TEST_STRANGER"

// runStranger is a stranger's process. The settings are its key file, its address,
// and the name and the address of a node, which it asks for a chunk, by the bulk
// listener and by libp2p, and to be let into the gossip. It fails if it gets
// anything.
func runStranger(settings string) error {
	var keyFile, addr, id, node string
	if _, err := fmt.Sscan(settings, &keyFile, &addr, &id, &node); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	key, err := peer.LoadClusterKey(keyFile)
	if err != nil {
		return err
	}
	identity, err := peer.NewIdentity()
	if err != nil {
		return err
	}
	host, err := peer.New(peer.Config{
		Identity: identity, Key: key, Bulk: addr + ":7945", P2P: []string{"/ip4/" + addr + "/tcp/7947"},
	}, silentHandler{})
	if err != nil {
		return err
	}
	defer host.Close()
	if err := host.Learn(chunk.PeerID(id), []string{"/ip4/" + node + "/tcp/7947"}); err != nil {
		return err
	}
	wanted := chunk.SHA256.Name([]byte("anything")).Ref()
	q := &wire.Request{Mode: wire.Held, Items: []wire.Item{{Span: chunk.Span{Parts: []chunk.Part{{Ref: wanted}}}}}}
	for _, to := range []peer.Target{{ID: chunk.PeerID(id), Addr: node + ":7945"}, {ID: chunk.PeerID(id)}} {
		err := host.Fetch(ctx, to, q, func(a *wire.Answer, _ io.Reader) error { return fmt.Errorf("%v says %s", to, a.Status) })
		var fe *peer.FetchError
		if !errors.As(err, &fe) {
			return fmt.Errorf("ask %v: %w", to, errors.Join(err, errors.New("it is not turned away")))
		}
	}
	cluster, err := dht.New(dht.Member{ID: host.ID(), Name: "stranger", Bulk: addr + ":7945", Ready: true},
		dht.Config{Key: key.Derive("gossip"), Bind: addr + ":7946", Join: []string{node + ":7946"}, Jitter: -1})
	if err != nil {
		return err
	}
	ctx, stop = context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	if err := cluster.Run(ctx); err != nil {
		return err
	}
	if s := cluster.Stats(); s.Members > 1 || s.Joins == 0 || s.JoinErrors != s.Joins {
		return fmt.Errorf("gossip has let it in: %+v", s)
	}
	return nil
}

// silentHandler serves nobody.
type silentHandler struct{}

// ServeChunks implements peer.Handler.
func (silentHandler) ServeChunks(context.Context, chunk.PeerID, *wire.Request, *peer.Responder) error {
	return errors.New("nobody asks a stranger")
}

// TestClusterStranger has a process that lacks the key ask a node by all its
// listeners. It gets nothing, and is counted.
func TestClusterStranger(t *testing.T) {
	c := newCluster(t, clusterShape{nodes: 1, racks: 1, rate: "400mbit", origin: "400mbit", encrypt: true})
	ctx := waiting(t)
	c.startAll(t, ctx)
	n := c.nodes[0]
	self, err := n.peer(ctx, n.name)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(c.dir, "other")
	graze(t, "key", "new", other)
	m := c.net.add(t, 0, "10.77.0.200", c.shape.rate)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), strangerEnv+"="+strings.Join([]string{other, m.Addr, self.ID, n.Addr}, " "))
	cmd.Stderr = os.Stderr
	p, err := m.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-ctx.Done():
		_ = p.Signal(syscall.SIGKILL)
		<-p.Exited()
	}
	if p.Err() != nil {
		t.Fatal("the stranger: ", p.Err())
	}
	err = poll(ctx, func() error {
		s, err := n.stats(ctx)
		if err != nil {
			return err
		}
		// Twice at the node's listeners for chunks and for libp2p.
		if s.Cluster.Rejected["key"] < 2 || s.Cluster.GossipRefused == 0 {
			return fmt.Errorf("turned away: %v, gossip refused %d times", s.Cluster.Rejected, s.Cluster.GossipRefused)
		}
		if s.Served.Requests > 0 || s.Served.Bytes > 0 || s.Cluster.Members != 1 {
			return errStop{fmt.Errorf("served %+v to one that lacks the key; %d members", s.Served, s.Cluster.Members)}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if out := graze(t, "stats", "--state", n.state); !strings.Contains(out, "strangers turned away: ") || !strings.Contains(out, " key") {
		t.Errorf("graze stats does not tell of strangers:\n%s", out)
	}
}
