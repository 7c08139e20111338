package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/dht"
	"graze/peer"
	"graze/wire"
)

// liarEnv makes the test binary a node that is a member of a cluster and gives
// the others bytes that are wrong. It has the node's settings, as runLiar reads
// them.
const liarEnv = "GRAZE_TEST_LIAR"

// A liar answers all requests with bytes of the right number that are not those
// of the chunk.
type liar struct{}

// ServeChunks implements peer.Handler.
func (liar) ServeChunks(_ context.Context, _ chunk.PeerID, req *wire.Request, w *peer.Responder) error {
	for i := range req.Items {
		item := &req.Items[i]
		for part := range item.Span.Parts {
			if !item.Wants(part) {
				continue
			}
			if err := w.Data(i, part, make([]byte, item.Span.Parts[part].Size)); err != nil {
				return err
			}
		}
	}
	return nil
}

// runLiar is a liar's process. The settings are the cluster's key file, a folder,
// the address, the rack and a contact.
func runLiar(settings string) error {
	var keyFile, dir, addr, rack, join string
	if _, err := fmt.Sscan(settings, &keyFile, &dir, &addr, &rack, &join); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	key, err := peer.LoadClusterKey(keyFile)
	if err != nil {
		return err
	}
	identity, err := peer.LoadIdentity(filepath.Join(dir, "liar.key"))
	if err != nil {
		return err
	}
	host, err := peer.New(peer.Config{
		Identity: identity, Key: key, Bulk: addr + ":7945", P2P: []string{"/ip4/" + addr + "/tcp/7947"},
	}, liar{})
	if err != nil {
		return err
	}
	cluster, err := dht.New(
		dht.Member{ID: host.ID(), Name: "liar", Bulk: host.BulkAddr(), P2P: host.Addrs(), Rack: rack, Weight: 200, Ready: true},
		dht.Config{Key: key.Derive("gossip"), Bind: addr + ":7946", Join: []string{join}})
	if err != nil {
		return errors.Join(err, host.Close())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return host.Run(ctx) })
	g.Go(func() error { return cluster.Run(ctx) })
	return g.Wait()
}

// startLiar adds a liar to a rack and waits until all nodes know it. The function
// that it returns ends the liar.
func (c *testCluster) startLiar(t testing.TB, ctx context.Context, rack int) (stop func()) {
	t.Helper()
	m := c.net.add(t, rack, fmt.Sprintf("10.77.%d.250", rack), c.shape.rate)
	cmd := exec.Command(os.Args[0])
	settings := []string{c.key, c.dir, m.addr, fmt.Sprintf("rack-%d", rack), c.nodes[0].addr + ":7946"}
	cmd.Env = append(os.Environ(), liarEnv+"="+strings.Join(settings, " "))
	cmd.Stderr = os.Stderr
	p, err := m.start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	t.Cleanup(stop)
	each(t, c.nodes, func(n *clusterNode) error {
		return poll(ctx, func() error {
			_, err := n.peer(ctx, "liar")
			return err
		})
	})
	return stop
}
