package copies

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"graze/chunk"
)

// ownerOf is the name under which chunks are pinned. When a share changes, the new
// one is pinned under another name before the old one is let go.
func ownerOf(ref string, pins int) string { return fmt.Sprintf("copies %d %s", pins, ref) }

// work does what is next for an image: it opens it, finds what the node's share is,
// or fetches some of that.
func (k *Keeper) work(ctx context.Context, image *kept) {
	if image.image == nil {
		k.open(ctx, image)
		return
	}
	if image.image.Changed() || image.share == nil || image.next >= len(image.share) {
		k.review(image)
	}
	batch := k.missing(image)
	if len(batch) == 0 {
		image.due = time.Now().Add(k.pause(image))
		return
	}
	k.hold(ctx)
	err := image.image.Fetch(ctx, batch)
	var bytes int64
	for _, n := range batch {
		bytes += image.image.Bytes(n)
	}
	k.note(ctx, image, batch, err)
	k.pace.spent(ctx, bytes, k.cfg.Rate)
}

// pause is how long an image need not be looked at of whose share nothing is to be
// fetched. One that is kept for another reason may be growing.
func (k *Keeper) pause(image *kept) time.Duration {
	if k.cfg.Whole(image.ref) {
		for n := range uint32(image.image.Spans()) {
			if image.image.Missing(n) {
				return busyRound
			}
		}
	}
	return again
}

// open opens an image.
func (k *Keeper) open(ctx context.Context, image *kept) {
	opened, err := k.cfg.Open(ctx, image.ref)
	if err == nil && opened.Spans() > MaxSpans {
		err = errors.Join(fmt.Errorf("image has %d spans, more than the %d that can be kept", opened.Spans(), MaxSpans), opened.Close())
	}
	if err != nil {
		k.fail(ctx, image, err)
		image.due = time.Now().Add(retryOpen)
		return
	}
	image.image = opened
	k.review(image)
}

// review finds what the node's share of an image is now, pins as much of it as there
// is room for, and looks what of it is there.
func (k *Keeper) review(image *kept) {
	all := image.image.Share(k.cfg.Copies)
	whole := k.cfg.Whole(image.ref)
	if whole {
		all = nil // it is there already, or will be
	}
	room := k.cfg.Budget()
	k.mu.Lock()
	for _, other := range k.images {
		if other != image {
			room -= other.bytes
		}
	}
	k.mu.Unlock()
	image.share, image.bytes = []uint32{}, 0
	for _, n := range all {
		size := image.image.Bytes(n)
		if image.bytes+size > room {
			break
		}
		image.share, image.bytes = append(image.share, n), image.bytes+size
	}
	old := image.owner()
	image.pins++
	k.cfg.Store.Pin(image.owner(), image.chunks())
	k.cfg.Store.Unpin(old)
	image.next = 0

	held := NewBits(image.image.Spans())
	if whole {
		for n := range uint32(image.image.Spans()) {
			held.set(n, !image.image.Missing(n))
		}
	}
	for _, n := range image.share {
		held.set(n, !image.image.Missing(n))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	image.report = Report{
		View: image.image.View(), Spans: image.image.Spans(), Held: held,
		Full: len(image.share) < len(all), Error: image.report.Error,
	}
}

// chunks yields the chunks of an image's share.
func (image *kept) chunks() iter.Seq[chunk.ID] {
	return func(yield func(chunk.ID) bool) {
		for _, n := range image.share {
			for id := range image.image.Chunks(n) {
				if !yield(id) {
					return
				}
			}
		}
	}
}

// missing returns the next spans of an image's share that are to be fetched. It
// notes those that have come meanwhile, as somebody has read them.
func (k *Keeper) missing(image *kept) (batch []uint32) {
	var bytes int64
	k.mu.Lock()
	defer k.mu.Unlock()
	for ; image.next < len(image.share) && bytes < batchBytes; image.next++ {
		n := image.share[image.next]
		if !image.image.Missing(n) {
			image.report.Held.set(n, true)
			continue
		}
		batch = append(batch, n)
		bytes += image.image.Bytes(n)
	}
	return batch
}

// note notes what a fetch has brought.
func (k *Keeper) note(ctx context.Context, image *kept, batch []uint32, err error) {
	lost := 0
	k.mu.Lock()
	for _, n := range batch {
		missing := image.image.Missing(n)
		image.report.Held.set(n, !missing)
		if missing {
			lost++
		}
	}
	k.mu.Unlock()
	if err == nil && lost > 0 {
		err = fmt.Errorf("%d spans did not stay in the store", lost)
	}
	k.fail(ctx, image, err)
	image.due = time.Now()
	if err != nil {
		image.due = image.due.Add(retryOpen)
		image.next = len(image.share) // and then from the beginning
	}
}

// fail notes why a share is not complete, or that nothing is wrong.
func (k *Keeper) fail(ctx context.Context, image *kept, err error) {
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	k.mu.Lock()
	old := image.report.Error
	image.report.Error = text
	k.mu.Unlock()
	if text != "" && old == "" {
		k.cfg.Log.Warn("share of an image can't be completed yet", "reference", image.ref, "err", err)
	}
}

// hold waits until no reader has waited for a moment, but not for long.
func (k *Keeper) hold(ctx context.Context) {
	for end := time.Now().Add(maxHold); ctx.Err() == nil && time.Now().Before(end); {
		wait := quiet - k.cfg.Idle()
		if wait <= 0 {
			return
		}
		rest(ctx, nil, wait)
	}
}

// A pace bounds a rate over time. Its zero value is ready for use.
type pace struct{ free time.Time }

// spent waits until what was spent so far is within rate.
func (p *pace) spent(ctx context.Context, bytes, rate int64) {
	if rate <= 0 {
		return
	}
	if now := time.Now(); p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(bytes) / float64(rate) * float64(time.Second)))
	if wait := time.Until(p.free); wait > 0 {
		rest(ctx, nil, wait)
	}
}
