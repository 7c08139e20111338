package scenario

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"graze/chaos"
)

// A Config says how scenarios are played.
type Config struct {
	// Binary is the file of graze that the nodes run. Default: this process's own.
	Binary string

	// Seed chooses what is random in the faults.
	Seed uint64

	// Off plays with the mechanism turned off that the scenario is about.
	Off bool

	// Logs is where the nodes' logs are kept; "": nowhere.
	Logs string

	// Log gets what happens. Default: discard.
	Log *slog.Logger
}

// A play is a scenario under way.
type play struct {
	spec    *Scenario
	cluster *cluster
	log     *slog.Logger
	begin   time.Time
	ref     string
	layers  []string
	files   []file
	reads   records
	resets  int64 // of the registry's machine, before the begin

	once   sync.WaitGroup     // reads that are done once
	steady sync.WaitGroup     // those that are repeated
	over   context.Context    // done when the steps are over
	end    context.CancelFunc // of over

	mu     sync.Mutex
	events []Event                  // guarded by mu
	marks  map[string]time.Duration // guarded by mu
}

// Play plays a scenario, and returns what came of it. An error means that it
// could not be played; whether what must hold has held is in the report.
func Play(ctx context.Context, s *Scenario, cfg Config) (_ *Report, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Binary == "" {
		if cfg.Binary, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	if cfg.Off {
		s = s.turnedOff()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(s.Limit), fmt.Errorf("the scenario's limit of %v is over", time.Duration(s.Limit)))
	defer cancel()
	c, err := newCluster(s.Cluster, cfg)
	if err != nil {
		return nil, err
	}
	p := &play{spec: s, cluster: c, log: cfg.Log, files: s.Image.files(s.Name), marks: make(map[string]time.Duration)}
	report, err := p.run(ctx)
	if cfg.Logs != "" {
		err = errors.Join(err, writeLogs(c, cfg.Logs))
	}
	return report, errors.Join(err, c.close())
}

// writeLogs keeps the nodes' logs.
func writeLogs(c *cluster, name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(c.logs(f), f.Close())
}

// turnedOff returns the scenario without the mechanism that it is about.
func (s *Scenario) turnedOff() *Scenario {
	off := *s
	off.Cluster.Settings = make(map[string]any)
	for _, settings := range []map[string]any{s.Cluster.Settings, s.Off.Settings} {
		for name, value := range settings {
			off.Cluster.Settings[name] = value
		}
	}
	if s.Off.Seeds != nil {
		off.Cluster.Seeds = *s.Off.Seeds
	}
	return &off
}

// run plays the steps and judges.
func (p *play) run(ctx context.Context) (_ *Report, err error) {
	c := p.cluster
	if p.ref, p.layers, err = c.publish(ctx, p.spec, p.files); err != nil {
		return nil, err
	}
	var early []*node
	for i, n := range c.nodes {
		if !c.spec.late(i) {
			early = append(early, n)
		}
	}
	if err := each(early, func(n *node) error { return n.start(ctx) }); err != nil {
		return nil, err
	}
	if err := p.waitMembers(ctx, len(early)); err != nil {
		return nil, err
	}
	if p.resets, err = refusals(c.machine); err != nil {
		return nil, err
	}
	p.begin = time.Now()
	p.reads.begin, c.ledger.begin = p.begin, p.begin
	p.over, p.end = context.WithCancel(ctx)
	defer p.end()
	p.mark(beginMark)
	stop := p.watch()
	err = p.steps(ctx)
	p.end()
	p.steady.Wait()
	p.once.Wait()
	p.mark(endMark)
	if e := stop(); err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	return p.judge(ctx)
}

// steps takes the steps, each at its time.
func (p *play) steps(ctx context.Context) error {
	for i := range p.spec.Steps {
		step := &p.spec.Steps[i]
		select {
		case <-time.After(time.Until(p.begin.Add(time.Duration(step.At)))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		which, err := step.Nodes.in(&p.spec.Cluster)
		if err != nil {
			return err
		}
		nodes := make([]*node, len(which))
		for k, number := range which {
			nodes[k] = p.cluster.nodes[number]
		}
		p.note(step.String())
		if err := p.take(ctx, step, nodes); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, step, err)
		}
	}
	return nil
}

// take takes one step.
func (p *play) take(ctx context.Context, s *Step, nodes []*node) error {
	c := p.cluster
	switch {
	case s.Start:
		return each(nodes, func(n *node) error { return n.start(ctx) })
	case s.Kill:
		return each(nodes, func(n *node) error { return n.end(unix.SIGKILL) })
	case s.Restart != nil:
		return p.restart(ctx, s.Restart, nodes)
	case s.Freeze:
		return each(nodes, func(n *node) error { return n.signal(unix.SIGSTOP) })
	case s.Thaw:
		return each(nodes, func(n *node) error { return n.signal(unix.SIGCONT) })
	case s.Mount:
		return p.mount(ctx, nodes)
	case s.Read != nil:
		p.read(ctx, s.Read, nodes)
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
	door := r.Door
	if door == "" {
		door = chaos.Open
	}
	return errors.Join(p.cluster.faults.Set(r.Fault.chaos()), p.cluster.gate.Set(door))
}

// restart ends and starts nodes, one after the other.
func (p *play) restart(ctx context.Context, r *Restart, nodes []*node) error {
	sig := syscall.SIGTERM
	if r.Signal == "kill" {
		sig = syscall.SIGKILL
	}
	for i, n := range nodes {
		if i > 0 {
			select {
			case <-time.After(time.Duration(r.Every)):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := errors.Join(n.end(sig), n.start(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// mount mounts the image. A mount that fails is one of the reads that do.
func (p *play) mount(ctx context.Context, nodes []*node) error {
	return each(nodes, func(n *node) error {
		start := time.Now()
		p.reads.add(read{node: n.name, err: n.mount(ctx, p.ref)}, start)
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
		p.steady.Go(func() {
			tick := time.NewTicker(time.Duration(r.Every))
			defer tick.Stop()
			for {
				p.readFiles(ctx, n, files)
				select {
				case <-tick.C:
				case <-p.over.Done():
					return
				}
			}
		})
	}
}

// mark names this moment.
func (p *play) mark(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marks[name] = time.Since(p.begin)
}

// note takes down an event.
func (p *play) note(what string) {
	at := time.Since(p.begin)
	p.log.Info("step", "at", at.Round(time.Millisecond), "what", what)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, Event{At: at, What: what})
}
