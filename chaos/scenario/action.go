package scenario

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"graze/chaos"
	"graze/chaos/disk"
)

// take takes one step.
func (p *play) take(ctx, reading context.Context, s *Step, nodes []*node) error {
	c := p.cluster
	switch {
	case s.Start:
		return p.start(ctx, nodes)
	case s.Kill:
		return each(nodes, (*node).kill)
	case s.Restart != nil:
		return p.restart(ctx, s.Restart, nodes)
	case s.Freeze:
		return each(nodes, func(n *node) error { return n.signal(unix.SIGSTOP) })
	case s.Thaw:
		return each(nodes, func(n *node) error { return n.signal(unix.SIGCONT) })
	case s.Mount:
		return p.mount(ctx, nodes)
	case s.Read != nil:
		p.read(reading, s.Read, nodes)
	case s.Registry != nil:
		return p.setRegistry(s.Registry)
	case s.Rack != nil:
		return c.net.CutRack(s.Rack.Rack, s.Rack.Cut)
	case s.Split != nil:
		return c.net.Split(*s.Split)
	case s.Link != "":
		return each(nodes, func(n *node) error { return n.machine.SetRates(s.Link, c.spec.Link) })
	case s.Disk == DiskFull:
		return each(nodes, (*node).fillDisk)
	case s.Disk == DiskFreed:
		return each(nodes, (*node).freeDisk)
	case s.Disk == DiskCorrupt:
		return each(nodes, (*node).corruptDisk)
	case s.Disk.fails():
		return each(nodes, func(n *node) error { return n.disk.set(disk.Fault(s.Disk)) })
	case s.Clock != nil:
		return each(nodes, func(n *node) error { return n.setClock(time.Duration(*s.Clock)) })
	case s.Lie:
		return c.startLiar(ctx)
	case s.Wait != nil:
		return p.wait(ctx, s.Wait, nodes)
	case s.Mark != "":
		p.mark(s.Mark)
	}
	return nil
}

// each calls f for all nodes at once.
func each(nodes []*node, f func(*node) error) error {
	var g errgroup.Group
	for _, n := range nodes {
		g.Go(func() error { return f(n) })
	}
	return g.Wait()
}

// setRegistry sets what is wrong with the registry.
func (p *play) setRegistry(r *Registry) error {
	door := r.door()
	p.swallowed()
	p.mu.Lock()
	p.swallows = door == chaos.Swallow
	p.mu.Unlock()
	return errors.Join(p.cluster.faults.Set(r.Fault.chaos()), p.cluster.gate.Set(door))
}

// start runs nodes. What they had mounted before they were killed is mounted again.
func (p *play) start(ctx context.Context, nodes []*node) error {
	return each(nodes, func(n *node) error {
		if n.running() {
			return nil
		}
		if err := n.start(ctx); err != nil {
			return err
		}
		if n.image() != "" {
			p.mountOne(ctx, n)
		}
		return nil
	})
}

// signalMemory is the "signal" of a restart for want of memory.
const signalMemory = "oom"

// restart ends and starts nodes, one after the other.
func (p *play) restart(ctx context.Context, r *Restart, nodes []*node) error {
	end := func(n *node) error { return n.end(unix.SIGTERM) }
	switch r.Signal {
	case "kill":
		end = func(n *node) error { return n.end(unix.SIGKILL) }
	case signalMemory:
		end = (*node).outOfMemory
	}
	for i, n := range nodes {
		if i > 0 {
			if err := pause(ctx, time.Duration(r.Every)); err != nil {
				return err
			}
		}
		if err := errors.Join(end(n), n.start(ctx)); err != nil {
			return err
		}
		if n.image() != "" && !n.keepsMounts() {
			p.mountOne(ctx, n)
		}
	}
	return nil
}

// mountOne mounts the image on a node. A mount that fails is one of the reads that
// do.
func (p *play) mountOne(ctx context.Context, n *node) {
	start := time.Now()
	err := n.mount(ctx, p.ref)
	p.reads.add(read{node: n.name, took: time.Since(start), err: err}, start)
}

// remount mounts the image anew.
func (p *play) remount(ctx context.Context, n *node) {
	start := time.Now()
	if err := n.unmount(); err != nil {
		p.reads.add(read{node: n.name, err: err}, start)
		return
	}
	p.mountOne(ctx, n)
}

// mount mounts the image on nodes.
func (p *play) mount(ctx context.Context, nodes []*node) error {
	return each(nodes, func(n *node) error {
		p.mountOne(ctx, n)
		return nil
	})
}

// read begins to read files.
func (p *play) read(ctx context.Context, r *Read, nodes []*node) {
	for i, n := range nodes {
		files := r.part(p.files, i, len(nodes))
		if r.Every == 0 {
			p.once.Go(func() { p.readFiles(ctx, n, files) })
			continue
		}
		p.steady.Go(func() { p.readAgain(ctx, n, r, files) })
	}
}
