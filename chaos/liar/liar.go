// Package liar is a node that lies: a member of a cluster that has its key, is
// home of a large share of the chunks, and answers every request for one with
// wrong bytes. It shows what honest nodes do about that.
package liar

import (
	"context"
	"errors"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"

	"graze/chunk"
	"graze/dht"
	"graze/peer"
	"graze/wire"
)

// weight is a liar's share of the chunks relative to others; an honest node has
// 100.
const weight = 200

// A Config says where a liar is.
type Config struct {
	Name    string
	KeyFile string // of the cluster's key
	Addr    string // IP address of its own
	Rack    string
	Join    string // host:port of a member
}

// The ports are those of any node.
const (
	bulkPort   = ":7945"
	gossipPort = ":7946"
	p2pPort    = "/tcp/7947"
)

// Run lies until ctx is done.
func Run(ctx context.Context, cfg Config) error {
	key, err := peer.LoadClusterKey(cfg.KeyFile)
	if err != nil {
		return err
	}
	identity, err := peer.NewIdentity()
	if err != nil {
		return err
	}
	host, err := peer.New(peer.Config{
		Identity: identity, Key: key, Bulk: cfg.Addr + bulkPort, P2P: []string{"/ip4/" + cfg.Addr + p2pPort},
	}, handler{})
	if err != nil {
		return err
	}
	self := dht.Member{
		ID: host.ID(), Name: cfg.Name, Bulk: host.BulkAddr(), P2P: host.Addrs(), Rack: cfg.Rack, Weight: weight, Ready: true,
	}
	cluster, err := dht.New(self, dht.Config{
		Key: key.Derive("gossip"), Bind: cfg.Addr + gossipPort, Join: []string{cfg.Join}, Jitter: -1,
	})
	if err != nil {
		return errors.Join(err, host.Close())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return host.Run(ctx) })
	g.Go(func() error { return cluster.Run(ctx) })
	return errors.Join(g.Wait(), host.Close())
}

// A handler answers requests with bytes of the right length.
type handler struct{}

// ServeChunks implements peer.Handler.
func (handler) ServeChunks(_ context.Context, _ chunk.PeerID, req *wire.Request, w *peer.Responder) error {
	for i := range req.Items {
		for part, p := range req.Items[i].Span.Parts {
			if !req.Items[i].Wants(part) {
				continue
			}
			lie := make([]byte, p.Size)
			for k := range lie {
				lie[k] = byte(rand.Uint32())
			}
			if err := w.Data(i, part, lie); err != nil {
				return err
			}
		}
	}
	return nil
}
