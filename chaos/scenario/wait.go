package scenario

import (
	"context"
	"fmt"
	"time"
)

// wait waits for what a step wants.
func (p *play) wait(ctx context.Context, w *Wait, nodes []*node) error {
	if w.Reads {
		done := make(chan struct{})
		go func() {
			p.once.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if w.Copies {
		if err := p.waitCopies(ctx, nodes); err != nil {
			return err
		}
	}
	if w.Members > 0 {
		if err := p.waitMembers(ctx, w.Members); err != nil {
			return err
		}
	}
	select {
	case <-time.After(time.Duration(w.For)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitCopies waits until nodes say that the image can be read without the
// registry.
func (p *play) waitCopies(ctx context.Context, nodes []*node) error {
	return each(nodes, func(n *node) error {
		return poll(ctx, func() error {
			s, err := n.stats(ctx)
			if err != nil {
				return err
			}
			for _, m := range s.Mounts {
				if !m.Safety.Safe {
					return fmt.Errorf("%s: not safe without the registry: %s", n.name, m.Safety.Why)
				}
			}
			return nil
		})
	})
}

// waitMembers waits until each node that runs knows so many, itself included.
func (p *play) waitMembers(ctx context.Context, count int) error {
	return each(p.cluster.nodes, func(n *node) error {
		if is, _ := n.running(); !is {
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

// watch counts, until it is told to stop, how often connections to the registry
// were refused.
func (p *play) watch() (stop func() error) {
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(sampleLength / 2)
		defer tick.Stop()
		for {
			n, err := refusals(p.cluster.machine)
			if err == nil {
				p.cluster.ledger.refused(n - p.resets)
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
