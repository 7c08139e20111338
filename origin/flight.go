package origin

import (
	"context"
	"errors"
	"sync"
)

var errClosed = errors.New("registry client is closed")

// A flight shares the work for one key among all who ask for it at the same
// time. Who stops waiting does not fail the others; the last to leave stops the
// work.
type flight[K comparable, V any] struct {
	mu     sync.Mutex
	calls  map[K]*flightCall[V] // guarded by mu
	closed bool                 // guarded by mu
	wg     sync.WaitGroup
}

type flightCall[V any] struct {
	done    chan struct{} // closed after v and err are set
	cancel  context.CancelFunc
	waiters int // guarded by flight.mu
	v       V
	err     error
}

// do returns what work returns. The context of work has the values of the first
// caller's.
func (f *flight[K, V]) do(ctx context.Context, key K, work func(context.Context) (V, error)) (v V, err error) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return v, errClosed
	}
	c := f.calls[key]
	if c == nil {
		c = f.startLocked(ctx, key, work)
	}
	c.waiters++
	f.mu.Unlock()

	select {
	case <-c.done:
		return c.v, c.err
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.waiters--; c.waiters == 0 {
		f.forgetLocked(key, c)
		c.cancel()
	}
	return v, context.Cause(ctx)
}

func (f *flight[K, V]) startLocked(ctx context.Context, key K, work func(context.Context) (V, error)) *flightCall[V] {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &flightCall[V]{done: make(chan struct{}), cancel: cancel}
	if f.calls == nil {
		f.calls = make(map[K]*flightCall[V])
	}
	f.calls[key] = c
	f.wg.Go(func() {
		defer cancel()
		c.v, c.err = work(ctx)
		f.mu.Lock()
		f.forgetLocked(key, c)
		f.mu.Unlock()
		close(c.done)
	})
	return c
}

// forgetLocked makes the next caller start anew, unless one already has.
func (f *flight[K, V]) forgetLocked(key K, c *flightCall[V]) {
	if f.calls[key] == c {
		delete(f.calls, key)
	}
}

// close stops all work and waits for it to end.
func (f *flight[K, V]) close() {
	f.mu.Lock()
	f.closed = true
	for _, c := range f.calls {
		c.cancel()
	}
	f.mu.Unlock()
	f.wg.Wait()
}
