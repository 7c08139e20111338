package scenario

import (
	"context"
	"fmt"
	"time"
)

// A missed error says what has not come in the time that a scenario has for it.
type missed struct{ error }

// wait waits for what a step wants.
func (p *play) wait(ctx context.Context, w *Wait, nodes []*node) error {
	within := time.Duration(w.Within)
	bounded, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("it has not come in %v", within))
	defer cancel()
	err := p.waitBounded(bounded, w, nodes)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && bounded.Err() != nil:
		return missed{err}
	case err != nil:
		return err
	}
	return pause(ctx, time.Duration(w.For))
}

// waitBounded waits until ctx is done at the latest.
func (p *play) waitBounded(ctx context.Context, w *Wait, nodes []*node) error {
	if w.Reads {
		done := make(chan struct{})
		go func() {
			p.once.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("not all is read: %w", context.Cause(ctx))
		}
	}
	if w.Copies {
		if err := p.waitCopies(ctx, nodes); err != nil {
			return err
		}
	}
	if w.Members > 0 {
		return p.waitMembers(ctx, w.Members)
	}
	return nil
}

// pause waits for some time.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitCopies waits until nodes say that the image can be read without the
// registry. Those that are to make no copies are not waited for.
func (p *play) waitCopies(ctx context.Context, nodes []*node) error {
	return each(nodes, func(n *node) error {
		return poll(ctx, func() error {
			s, err := n.stats(ctx)
			if err != nil {
				return err
			}
			for _, m := range s.Mounts {
				if !m.Safety.Safe && m.Safety.Wanted > 0 {
					return fmt.Errorf("%s: not safe without the registry: %s", n.name, m.Safety.Why)
				}
			}
			return nil
		})
	})
}

// waitMembers waits until each node that runs knows so many, itself included.
func (p *play) waitMembers(ctx context.Context, count int) error {
	if p.spec.Cluster.alone() {
		return nil
	}
	return each(p.cluster.nodes, func(n *node) error {
		if !n.running() {
			return nil
		}
		return poll(ctx, func() error {
			list, err := n.peers(ctx)
			if err == nil && len(list) != count {
				err = fmt.Errorf("%s knows %d members, not %d", n.name, len(list), count)
			}
			return err
		})
	})
}

// watch counts, until it is told to stop, the connections to the registry that
// come to nothing: those that were refused, and those that were swallowed.
func (p *play) watch() (stop func() error) {
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(sampleLength / 2)
		defer tick.Stop()
		for {
			n, err := refusals(p.cluster.machine)
			if err == nil {
				p.cluster.ledger.refused(n - p.resets + p.swallowed())
			}
			select {
			case <-tick.C:
			case <-done:
				ended <- err
				return
			}
		}
	}()
	return func() error {
		close(done)
		return <-ended
	}
}

// swallowed returns how many connections were swallowed so far.
func (p *play) swallowed() int64 {
	attempts := p.cluster.gate.Attempts()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.swallows {
		p.lost += attempts - p.attempts
	}
	p.attempts = attempts
	return p.lost
}
