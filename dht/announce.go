package dht

import (
	"context"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// loadStep is how far the load must be from what was told last to be told.
	loadStep = 32
	// readyPause and loadPause are the shortest times between two announcements.
	// A load's is longer in a large cluster, by loadPauseEach for each member, so
	// that all members together change at most ten times a second: each change
	// costs each node a dozen packets.
	readyPause    = 2 * time.Second
	loadPause     = 10 * time.Second
	loadPauseEach = 100 * time.Millisecond
)

// A delegate gives memberlist the node's metadata. graze sends no other messages
// by gossip.
type delegate struct{ c *Cluster }

// NodeMeta returns the node's metadata as it is now.
func (d delegate) NodeMeta(int) []byte {
	p, err := encodeMetadata(d.c.current())
	if err != nil {
		panic("dht: metadata that was checked is bad: " + err.Error())
	}
	return p
}

func (delegate) NotifyMsg([]byte)                {}
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}

// announce tells the others of changes of load and readiness, when they matter
// and not too often.
func (c *Cluster) announce(ctx context.Context, list *memberlist.Memberlist) {
	told, last := *c.View().Self(), time.Now()
	for {
		var due <-chan time.Time
		now := c.current()
		switch {
		case now.Ready != told.Ready:
			due = time.After(time.Until(last.Add(readyPause)))
		case max(now.Load, told.Load)-min(now.Load, told.Load) >= loadStep:
			pause := max(loadPause, time.Duration(len(c.View().Members()))*loadPauseEach)
			due = time.After(time.Until(last.Add(pause)))
		}
		select {
		case <-ctx.Done():
			return
		case <-c.selfChanged:
		case <-due:
			told, last = *c.current(), time.Now()
			c.announced.Add(1)
			// The error says that the others have not all been told within the
			// time; gossip goes on telling them.
			if err := list.UpdateNode(readyPause); err != nil {
				c.cfg.Log.Debug("announcement is slow", "err", err)
			}
		}
	}
}
