package sim

import (
	"context"
	"sync"
	"time"
)

// piece is how many bytes pass a link at a time.
const piece = 64 << 10

// A link carries bytes at a rate, for all who use it in turns.
type link struct {
	mu   sync.Mutex
	rate int64     // bytes a second; 0: no limit
	free time.Time // when it has carried all that it was given
}

func (l *link) setRate(rate int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = rate
}

// carry returns when the link has carried n more bytes, or ctx is done.
func (l *link) carry(ctx context.Context, n int) error {
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	if l.rate > 0 {
		l.free = l.free.Add(time.Duration(n) * time.Second / time.Duration(l.rate))
	}
	d := l.free.Sub(now)
	l.mu.Unlock()
	return sleep(ctx, d)
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
