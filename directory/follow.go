package directory

import (
	"context"
	"maps"
	"slices"
	"time"

	"graze/chunk"
)

// maxRetry is the longest pause before nodes that could not be told are tried
// again.
const maxRetry = 5 * time.Minute

// follow tells new keepers of all that the node has, whenever the members have
// changed and then not for a while, until ctx is done.
func (d *Directory) follow(ctx context.Context) {
	var told View // the members that know what they have to
	var seen View // the members when they were last looked at
	var retry time.Duration
	var after time.Time // behind nodes are not tried before
	tick := time.NewTicker(d.cfg.Settle)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		view := d.cluster.View()
		settled := seen != nil && seen.Epoch() == view.Epoch()
		seen = view
		changed := told == nil || told.Epoch() != view.Epoch()
		late := d.late(view)
		switch {
		case !settled:
		case changed:
			d.catchUp(ctx, told, view, late)
			told = view
		case len(late) > 0 && !time.Now().Before(after):
			d.catchUp(ctx, told, view, late)
			retry = min(max(2*retry, d.cfg.Settle), maxRetry)
			after = time.Now().Add(retry)
		case len(late) == 0:
			retry = 0
		}
	}
}

// late returns the members that are behind, and forgets those that are no members
// any more.
func (d *Directory) late(view View) map[chunk.PeerID]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.behind) == 0 {
		return nil
	}
	members := view.Members(nil)
	maps.DeleteFunc(d.behind, func(id chunk.PeerID, _ bool) bool { return !slices.Contains(members, id) })
	return maps.Clone(d.behind)
}

// catchUp tells of all that the node has: those who are keepers now and were not
// before, and those who are late. A node that starts tells all members that it
// does, even if it has nothing.
func (d *Directory) catchUp(ctx context.Context, before, now View, late map[chunk.PeerID]bool) {
	out := make(outbox)
	if before == nil {
		for _, id := range now.Members(nil) {
			out[id] = nil
		}
	}
	d.mu.Lock()
	for id := range late {
		delete(d.behind, id)
	}
	d.mu.Unlock()
	var old, keepers []chunk.PeerID
	for id := range d.cfg.Stored {
		key := KeyOf(id)
		keepers = now.Keepers(keepers[:0], key)
		old = old[:0]
		if before != nil {
			old = before.Keepers(old, key)
		}
		for _, to := range keepers {
			if late[to] || !slices.Contains(old, to) {
				out[to] = append(out[to], key)
			}
		}
	}
	d.send(ctx, out)
}
