package origin

import (
	"container/list"
	"sync"
)

// An lru is a map that keeps the most recently used entries, at most limit. It
// is safe for concurrent use.
type lru[K comparable, V any] struct {
	limit int
	onCut func(V) // called, without the lock, for a value that made room; may be nil

	mu    sync.Mutex
	order list.List           // of *lruEntry, most recently used first; guarded by mu
	byKey map[K]*list.Element // guarded by mu
}

type lruEntry[K comparable, V any] struct {
	key   K
	value V
}

func newLRU[K comparable, V any](limit int) *lru[K, V] {
	return &lru[K, V]{limit: limit, byKey: make(map[K]*list.Element)}
}

func (l *lru[K, V]) get(key K) (v V, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.byKey[key]
	if !ok {
		return v, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*lruEntry[K, V]).value, true
}

// getOrAdd returns the value of key, which it makes if there is none. make is
// called with the lock held and must be quick.
func (l *lru[K, V]) getOrAdd(key K, make func() V) V {
	l.mu.Lock()
	if e, ok := l.byKey[key]; ok {
		l.order.MoveToFront(e)
		l.mu.Unlock()
		return e.Value.(*lruEntry[K, V]).value
	}
	v := make()
	cut, isCut := l.addLocked(key, v)
	l.mu.Unlock()
	if isCut && l.onCut != nil {
		l.onCut(cut)
	}
	return v
}

func (l *lru[K, V]) put(key K, v V) {
	l.mu.Lock()
	if e, ok := l.byKey[key]; ok {
		e.Value.(*lruEntry[K, V]).value = v
		l.order.MoveToFront(e)
		l.mu.Unlock()
		return
	}
	cut, isCut := l.addLocked(key, v)
	l.mu.Unlock()
	if isCut && l.onCut != nil {
		l.onCut(cut)
	}
}

// addLocked adds a new key and returns the value that had to go for it.
func (l *lru[K, V]) addLocked(key K, v V) (cut V, isCut bool) {
	l.byKey[key] = l.order.PushFront(&lruEntry[K, V]{key, v})
	if l.order.Len() <= l.limit {
		return cut, false
	}
	last := l.order.Remove(l.order.Back()).(*lruEntry[K, V])
	delete(l.byKey, last.key)
	return last.value, true
}

// removeIf removes key if its value satisfies f.
func (l *lru[K, V]) removeIf(key K, f func(V) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.byKey[key]; ok && f(e.Value.(*lruEntry[K, V]).value) {
		l.order.Remove(e)
		delete(l.byKey, key)
	}
}

// values returns all values, most recently used first.
func (l *lru[K, V]) values() []V {
	l.mu.Lock()
	defer l.mu.Unlock()
	vs := make([]V, 0, l.order.Len())
	for e := l.order.Front(); e != nil; e = e.Next() {
		vs = append(vs, e.Value.(*lruEntry[K, V]).value)
	}
	return vs
}
