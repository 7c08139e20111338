package node

import (
	"context"
	"sync"
)

// A keyLocks lets one party at a time work on each thing. Its zero value is ready
// for use.
type keyLocks[K comparable] struct {
	mu    sync.Mutex // guards locks
	locks map[K]*keyLock
}

type keyLock struct {
	held  chan struct{} // has a value while the lock is held
	users int           // that hold it or wait
}

// lock waits for the lock of a thing and returns what gives it back.
func (l *keyLocks[K]) lock(ctx context.Context, key K) (unlock func(), err error) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = make(map[K]*keyLock)
	}
	one := l.locks[key]
	if one == nil {
		one = &keyLock{held: make(chan struct{}, 1)}
		l.locks[key] = one
	}
	one.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.locks, key)
		}
	}
	select {
	case one.held <- struct{}{}:
		return func() {
			<-one.held
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
