package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	"graze/chunk"
)

const (
	// intakePiece is how many bytes of a body are read in one turn.
	intakePiece = 64 << 10
	// maxTurns is how many bodies that no reader waits for are read at a time
	// while something is under way that one waits for.
	maxTurns = 3
	// turnPatience is how long such a body waits for its turn at most: the ones
	// before it may wait for senders that have no time.
	turnPatience = 100 * time.Millisecond
	// linger is how long after a reader's transfer bodies are still read in turns.
	linger = 200 * time.Millisecond
)

// An intake keeps what comes in for nobody in particular from filling the node's
// link while a reader waits. Bodies that are not read stop coming once the
// buffers of their connections are full, so reading them in turns leaves the link
// to others. Its zero value is ready for use; it is safe for concurrent use.
type intake struct {
	mu      sync.Mutex
	urgent  int             // transfers under way that a reader waits for; guarded by mu
	calm    time.Time       // guarded by mu; when none, from when on there are no turns
	turns   int             // guarded by mu
	waiting []chan struct{} // guarded by mu; closed when their turn comes
}

// begin notes a transfer of a class, which ends with end.
func (in *intake) begin(c chunk.Class) {
	if c != chunk.Demand {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.urgent++
}

func (in *intake) end(c chunk.Class) {
	if c != chunk.Demand {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.urgent--; in.urgent == 0 {
		in.calm = time.Now().Add(linger)
	}
}

// enter waits until a piece of a body may be read, and reports whether leave must
// be called after that.
func (in *intake) enter(ctx context.Context, c chunk.Class) (counted bool) {
	if c == chunk.Demand {
		return false
	}
	in.mu.Lock()
	if in.urgent == 0 && !time.Now().Before(in.calm) {
		in.mu.Unlock()
		return false
	}
	if in.turns < maxTurns {
		in.turns++
		in.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	in.waiting = append(in.waiting, turn)
	in.mu.Unlock()
	timer := time.NewTimer(turnPatience)
	defer timer.Stop()
	select {
	case <-turn:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	i := slices.Index(in.waiting, turn)
	if i < 0 {
		return true // the turn came at the same moment
	}
	in.waiting = slices.Delete(in.waiting, i, i+1)
	return false
}

func (in *intake) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.turns--
	for in.turns < maxTurns && len(in.waiting) > 0 {
		in.turns++
		close(in.waiting[0])
		in.waiting = in.waiting[1:]
	}
}
