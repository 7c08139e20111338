package sim

import (
	"context"
	"sync"
	"time"

	"graze/chunk"
)

// piece is how many bytes pass a link at a time.
const piece = 64 << 10

// noClass is for links that take all in turns.
const noClass = chunk.Demand

// A link carries bytes at a rate, for all who use it: the most urgent first, and
// those of one class in turns.
type link struct {
	mu      sync.Mutex
	rate    int64 // bytes a second; 0: no limit
	busy    bool
	waiting [chunk.NumClasses][]chan struct{}
}

func (l *link) setRate(rate int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = rate
}

// carry returns when the link has carried n more bytes, or ctx is done.
func (l *link) carry(ctx context.Context, c chunk.Class, n int) error {
	l.mu.Lock()
	if l.rate == 0 {
		l.mu.Unlock()
		return context.Cause(ctx)
	}
	if l.busy {
		turn := make(chan struct{})
		l.waiting[c] = append(l.waiting[c], turn)
		l.mu.Unlock()
		<-turn
		l.mu.Lock()
	}
	l.busy = true
	d := time.Duration(n) * time.Second / time.Duration(l.rate)
	l.mu.Unlock()
	err := sleep(ctx, d)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
	for c := range l.waiting {
		if w := &l.waiting[c]; len(*w) > 0 {
			l.busy = true
			close((*w)[0])
			*w = (*w)[1:]
			break
		}
	}
	return err
}

// sleep waits for d, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
