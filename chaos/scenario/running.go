package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"

	"graze/chaos"
	"graze/registry"
)

// A Running is a cluster that runs already, on this machine.
type Running struct {
	Sockets  []string // the nodes' admin sockets; none: a cluster is made
	Registry string   // URL of a registry, to which the scenario's image is pushed
	Listen   string   // host:port at which nodes find that registry, with its faults
}

// on returns the scenario as it is played on a cluster that runs: with as many
// nodes as there are, and with the share of reads that they can do.
func (s *Scenario) on(r Running) (*Scenario, error) {
	target, err := url.Parse(r.Registry)
	if err != nil || target.Host == "" || r.Listen == "" {
		return nil, errors.New("nodes that run need the URL of a registry, and where they find it with its faults")
	}
	there := *s
	there.Cluster = Cluster{Nodes: len(r.Sockets), Racks: 1}
	there.Expect.Reads = s.Expect.Reads * len(r.Sockets) / s.Cluster.Nodes
	for i := range s.Steps {
		step := &s.Steps[i]
		if !step.Mount && step.Read == nil && step.Registry == nil && step.Wait == nil && step.Mark == "" {
			return nil, fmt.Errorf("step %d, %s: nodes that run can't be treated so; leave the nodes out, and the scenario makes its own", i+1, step)
		}
	}
	if s.Expect.Bounded || s.Expect.Quarantine || s.Expect.Verified {
		return nil, errors.New("what it expects can only be seen in a cluster that it makes")
	}
	return &there, there.check()
}

// joinRunning takes the nodes that run, and puts faults before their registry.
func (c *cluster) joinRunning(cfg Config) error {
	target, err := url.Parse(cfg.Running.Registry)
	if err != nil {
		return err
	}
	c.behind = &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	c.registry = cfg.Running.Listen
	err = c.serveRegistry(cfg.Seed, func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) })
	if err != nil {
		return err
	}
	for i, socket := range cfg.Running.Sockets {
		n := &node{name: nodeName(i), cluster: c, socket: socket, runs: true, dir: filepath.Join(c.dir, nodeName(i)+".mnt")}
		if err := os.Mkdir(n.dir, 0o755); err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
	}
	return nil
}

// serveRegistry starts what is before the registry: its ledger, faults and gate.
func (c *cluster) serveRegistry(seed uint64, listen func(addr string) (net.Listener, error)) (err error) {
	c.faults = chaos.NewRegistry(c.behind, seed)
	c.ledger = newLedger(c.faults)
	if c.gate, err = chaos.NewGate(c.registry, listen); err != nil {
		return err
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	c.served.Go(func() error {
		return registry.Serve(ctx, c.gate, http.Handler(c.ledger), registry.Config{})
	})
	return nil
}
