package dht

import (
	"context"
	"fmt"
	"sync"
	"time"

	kad "github.com/libp2p/go-libp2p-kad-dht"

	"graze/chunk"
)

// Provide announces that the node holds the image whose manifest has the given
// digest, now and again until Release, also across times without any peer. In a
// large pool it is enough that a few nodes announce an image, such as its seeds.
func (p *Providers) Provide(digest chunk.Blob) error {
	id, err := imageCID(digest)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.provided[digest] != nil {
		return nil
	}
	if len(p.provided) >= maxProvided {
		return fmt.Errorf("%d images are announced already", len(p.provided))
	}
	p.provided[digest] = &provide{cid: id, next: time.Now()}
	p.wakeUp()
	return nil
}

// Release ends the announcements of an image.
func (p *Providers) Release(digest chunk.Blob) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.provided, digest)
}

// wakeUp lets keepProvided look again.
func (p *Providers) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// keepProvided announces images when their time has come, a few at a time.
func (p *Providers) keepProvided(ctx context.Context, d *kad.IpfsDHT) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, provideOnce)
	for {
		wait := time.Hour
		if d.RoutingTable().Size() > 0 { // without peers an announcement reaches nobody
			due, next := p.due()
			wait = next
			for _, pr := range due {
				select {
				case slots <- struct{}{}:
				case <-ctx.Done():
					return
				}
				wg.Go(func() {
					defer func() { <-slots }()
					p.announce(ctx, d, pr)
				})
			}
		} else {
			wait = firstPause
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-p.wake:
		case <-ctx.Done():
			return
		}
		t.Stop()
	}
}

// due returns the images to announce now, and the time until there are more.
func (p *Providers) due() (due []*provide, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = time.Hour
	now := time.Now()
	for _, pr := range p.provided {
		switch {
		case pr.busy: // wakes us when it is done
		case pr.next.After(now):
			wait = min(wait, pr.next.Sub(now))
		default:
			pr.busy = true
			due = append(due, pr)
		}
	}
	return due, wait
}

// announce announces one image and says when it is to be done again.
func (p *Providers) announce(ctx context.Context, d *kad.IpfsDHT, pr *provide) {
	call, cancel := context.WithTimeout(ctx, provideTime)
	defer cancel()
	err := d.Provide(call, pr.cid, true)
	p.mu.Lock()
	defer p.mu.Unlock()
	pr.busy = false
	p.stats.Announced++
	// Five sixths to seven sixths of the time, so that images that were announced
	// together, after a start, drift apart.
	pr.next = time.Now().Add(p.cfg.Refresh - p.cfg.Refresh/3 + jitter(p.cfg.Refresh/3))
	if err != nil && ctx.Err() == nil {
		p.stats.AnnounceFails++
		p.cfg.Log.Debug("image is not announced", "err", err)
		pr.next = time.Now().Add(jitter(min(provideRetry, p.cfg.Refresh)))
	}
	p.wakeUp()
}
