package snapshotter

import (
	"context"
	"sync"
	"time"
)

// How long a decision about an image holds. The layers of an image are asked for
// one after the other, and all of them shall get the same answer; but what could
// not be had may be there when the next pull is tried.
const (
	lazyAge = 10 * time.Minute
	pullAge = 30 * time.Second
)

// decisions remembers for a while how images are served. A decision is made by one
// of those who want it, while the others wait.
type decisions struct {
	mu     sync.Mutex // guards images, and users of what is in it
	images map[string]*pending
}

// A pending is a decision that somebody waits for, or that was made.
type pending struct {
	users int

	// busy has a value while somebody reads or makes what is below.
	busy  chan struct{}
	made  *decision
	until time.Time
}

// get returns the decision about an image, which make makes if there is none.
func (d *decisions) get(ctx context.Context, name string, make func() *decision) (*decision, error) {
	p := d.enter(name)
	defer d.leave(name, p)
	select {
	case p.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-p.busy }()
	if p.made != nil && time.Now().Before(p.until) {
		return p.made, nil
	}
	made := make()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // nobody's decision: the asker has gone away
	}
	age := pullAge
	if made.reason == Lazy {
		age = lazyAge
	}
	p.made, p.until = made, time.Now().Add(age)
	return made, nil
}

func (d *decisions) enter(name string) *pending {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.images == nil {
		d.images = map[string]*pending{}
	}
	p := d.images[name]
	if p == nil {
		p = &pending{busy: make(chan struct{}, 1)}
		d.images[name] = p
	}
	p.users++
	return p
}

// leave forgets decisions that have expired, if nobody wants them.
func (d *decisions) leave(name string, p *pending) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.users--
	for name, p := range d.images {
		if p.users == 0 && !time.Now().Before(p.until) {
			delete(d.images, name)
		}
	}
}
