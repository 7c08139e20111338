package dht

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	joinParallel = 3                // contacts that are asked at one time
	firstPause   = time.Second      // after nobody answered
	longestPause = 30 * time.Second // and after nobody has answered for long
	dialTimeout  = 5 * time.Second

	// A node that comes back after a crash must hear from somebody that it was
	// declared dead, to deny it. Those it asks first may be as new as itself, so it
	// asks again.
	exchanges     = 2
	exchangePause = 3 * time.Second
)

// keepJoined asks contacts until ctx is done.
func (c *Cluster) keepJoined(ctx context.Context, list *memberlist.Memberlist) {
	if c.cfg.Jitter > 0 && !sleep(ctx, rand.N(c.cfg.Jitter)) {
		return
	}
	pause, synced, told := firstPause, 0, false
	for ctx.Err() == nil {
		if c.roster.alone() {
			synced = 0
		}
		if synced >= exchanges {
			c.heal(ctx, list)
			c.waitWhileJoined(ctx, jitter(c.cfg.Heal))
			continue
		}
		// A node can also be drawn in by the gossip of others who remember it. Then
		// it has heard of some members only, and asks them for the rest.
		addrs := append(shuffled(c.roster.others()), shuffled(c.absent(ctx))...)
		answered, failed := c.ask(ctx, list, addrs)
		if c.roster.alone() {
			c.introduced() // nobody answers
		}
		if answered && !c.roster.alone() {
			pause, told = firstPause, false
			if synced++; synced < exchanges {
				sleep(ctx, jitter(exchangePause))
			}
			continue
		}
		synced = 0
		// What answers and leaves the node alone is the node itself by another
		// address, or a member that can't be understood.
		if len(addrs) > 0 && !answered && !told && ctx.Err() == nil {
			told = true
			c.cfg.Log.Warn("no contact answers; working alone", "contacts", len(addrs), "err", failed)
		}
		sleep(ctx, jitter(pause))
		pause = min(2*pause, longestPause)
	}
}

// heal asks one contact that is not a member. If it is alive, the cluster was
// cut in two, and the exchange makes it one again.
func (c *Cluster) heal(ctx context.Context, list *memberlist.Memberlist) {
	if addrs := c.absent(ctx); len(addrs) > 0 {
		i := rand.IntN(len(addrs))
		c.ask(ctx, list, addrs[i:i+1])
	}
}

// absent returns the contacts that are not members now: those of the
// configuration, those of the last view, and members that were lost.
func (c *Cluster) absent(ctx context.Context) []string {
	addrs, err := c.cfg.contacts(ctx)
	if err != nil && ctx.Err() == nil {
		c.joinErrors.Add(1)
		c.cfg.Log.Debug("some contacts are not known", "err", err)
	}
	seen := c.roster.live()
	var absent []string
	for _, list := range [][]string{addrs, c.lastContacts, c.roster.lostAddrs()} {
		for _, a := range list {
			if !seen[a] {
				seen[a] = true
				absent = append(absent, a)
			}
		}
	}
	return absent
}

// ask asks contacts, a few at a time, until one has answered. If none has, it
// returns why one of them has not.
func (c *Cluster) ask(ctx context.Context, list *memberlist.Memberlist, addrs []string) (answered bool, failed error) {
	for len(addrs) > 0 && ctx.Err() == nil {
		batch := addrs[:min(len(addrs), joinParallel)]
		addrs = addrs[len(batch):]
		var wg sync.WaitGroup
		answers := make([]error, len(batch))
		for i, a := range batch {
			wg.Go(func() {
				_, err := list.Join([]string{a})
				if only := errors.Unwrap(err); only != nil {
					err = only // without the list that memberlist makes of it
				}
				answers[i] = err
				c.joins.Add(1)
				if err != nil {
					c.joinErrors.Add(1)
					c.cfg.Log.Debug("contact does not answer", "peer", a, "err", err)
				}
			})
		}
		wg.Wait()
		for _, err := range answers {
			if err == nil {
				return true, nil
			}
			failed = err
		}
	}
	return false, failed
}

// waitWhileJoined waits for d, or until the node is alone or ctx done.
func (c *Cluster) waitWhileJoined(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		changed := c.Changed()
		if c.roster.alone() {
			return
		}
		select {
		case <-changed:
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// shuffled brings addrs into a random order.
func shuffled(addrs []string) []string {
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	return addrs
}

// jitter returns a random time from d/2 to 3d/2.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// sleep waits for d, and reports whether ctx is still not done.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
