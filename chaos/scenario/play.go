package scenario

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// A Config says how scenarios are played.
type Config struct {
	// Binary is the file of graze that the nodes run. Default: this process's own.
	Binary string

	// Seed chooses what is random in the faults.
	Seed uint64

	// Off plays with the mechanism turned off that the scenario is about, until the
	// first read fails that must not.
	Off bool

	// Running is a cluster to play on. Default: one that is made, and ends after it.
	Running Running

	// Stretch is by how much all times of the steps are longer than they stand
	// there. Default: 1.
	Stretch float64

	// Logs is where the nodes' logs are kept; "": nowhere.
	Logs string

	// Log gets what happens. Default: discard.
	Log *slog.Logger
}

// A play is a scenario under way.
type play struct {
	spec    *Scenario
	off     bool // what it is about is turned off
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

	uses map[string][]use // by node, in order of time; watchUse writes them

	mu     sync.Mutex
	events []Event                  // guarded by mu
	marks  map[string]time.Duration // guarded by mu

	swallows bool  // guarded by mu; the registry swallows connections
	attempts int64 // guarded by mu; connections to the registry
	lost     int64 // guarded by mu; those of them that were swallowed
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
	switch running := len(cfg.Running.Sockets) > 0; {
	case running && cfg.Off:
		return nil, errors.New("nodes that run keep their settings; nothing can be turned off")
	case running:
		if s, err = s.on(cfg.Running); err != nil {
			return nil, err
		}
	case cfg.Off:
		s = s.turnedOff()
	}
	if cfg.Stretch > 0 {
		s = s.stretched(cfg.Stretch)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(s.Limit), fmt.Errorf("the scenario's limit of %v is over", time.Duration(s.Limit)))
	defer cancel()
	c, err := newCluster(s, cfg)
	if err != nil {
		return nil, err
	}
	p := &play{spec: s, off: cfg.Off, cluster: c, log: cfg.Log, files: s.Image.files(s.Name), marks: make(map[string]time.Duration), uses: make(map[string][]use)}
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
	off.Cluster.Settings = maps.Clone(s.Cluster.Settings)
	if off.Cluster.Settings == nil {
		off.Cluster.Settings = make(map[string]any)
	}
	maps.Copy(off.Cluster.Settings, s.Off.Settings)
	if s.Off.Seeds != nil {
		off.Cluster.Seeds = *s.Off.Seeds
	}
	return &off
}

// stretched returns the scenario with longer times.
func (s *Scenario) stretched(factor float64) *Scenario {
	longer := func(d Duration) Duration { return Duration(float64(d) * factor) }
	long := *s
	long.Limit += longer(s.Limit)
	long.Steps = slices.Clone(s.Steps)
	for i := range long.Steps {
		step := &long.Steps[i]
		step.At = longer(step.At)
		if step.Wait != nil {
			w := *step.Wait
			w.For = longer(w.For)
			step.Wait = &w
		}
	}
	return &long
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
	if c.machine != nil {
		if err := each(early, func(n *node) error { return n.start(ctx) }); err != nil {
			return nil, err
		}
		if err := p.waitMembers(ctx, len(early)); err != nil {
			return nil, err
		}
	}
	if p.resets, err = refusals(c.machine); err != nil {
		return nil, err
	}
	p.begin = time.Now()
	p.reads.begin, c.ledger.begin = p.begin, p.begin
	p.over, p.end = context.WithCancel(ctx)
	defer p.end()
	reading, giveUp := context.WithCancel(ctx)
	defer giveUp()
	p.mark(beginMark)
	stop := p.watch()
	if p.spec.Expect.Bounded {
		p.steady.Go(func() { p.watchUse(p.over) })
	}
	err = p.steps(p.untilFailure(ctx), reading)
	p.end()
	if err != nil {
		// Nobody waits for reads that are under way. A reader can't end while the node
		// that it has asked stands still.
		giveUp()
		for _, n := range c.nodes {
			n.abort()
		}
	}
	p.steady.Wait()
	p.once.Wait()
	p.mark(endMark)
	if e := stop(); err == nil {
		err = e
	}
	if errors.Is(err, errFailed) {
		err = missed{errFailed}
	}
	late := missed{}
	if err != nil && !errors.As(err, &late) {
		return nil, err
	}
	return p.judge(ctx, late.error)
}

// errFailed ends a scenario whose mechanism is turned off.
var errFailed = errors.New("a read has failed, and the rest is not played with the mechanism turned off")

// untilFailure returns a context that ends with the first read that fails, if that
// settles what becomes of the scenario.
func (p *play) untilFailure(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	p.reads.failed = func() {
		if p.off && p.spec.Expect.Errors == 0 {
			cancel(errFailed)
		}
	}
	return ctx
}

// steps takes the steps, each at its time. What reads goes on until reading is done.
func (p *play) steps(ctx, reading context.Context) error {
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
		if err := p.take(ctx, reading, step, nodes); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, step, err)
		}
	}
	return nil
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
