package scheduler

import (
	"slices"
	"sync"

	"graze/chunk"
)

// A gate lets a number of goroutines compute at a time, the most urgent first.
type gate struct {
	mu      sync.Mutex
	free    int                               // guarded by mu
	waiting [chunk.NumClasses][]chan struct{} // guarded by mu
}

// enter waits for a place. Who holds one never waits for anything but the
// store, so the wait is short.
func (g *gate) enter(c chunk.Class) {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	g.waiting[c] = append(g.waiting[c], turn)
	g.mu.Unlock()
	<-turn
}

// leave gives the place up, to who waits for it with the most urgent class.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c, turns := range g.waiting {
		if len(turns) > 0 {
			close(turns[0])
			g.waiting[c] = slices.Delete(turns, 0, 1)
			return
		}
	}
	g.free++
}
