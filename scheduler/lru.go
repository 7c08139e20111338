package scheduler

import "container/list"

// An lru is a map that forgets the entry used longest ago when it is full.
type lru[K comparable, V any] struct {
	limit int
	items map[K]*list.Element
	order list.List // of *lruItem[K, V], the last used first
}

type lruItem[K comparable, V any] struct {
	key   K
	value V
}

// get returns the value of k, nil if there is none. It stays valid until the
// entry is removed or forgotten.
func (l *lru[K, V]) get(k K) *V {
	e := l.items[k]
	if e == nil {
		return nil
	}
	l.order.MoveToFront(e)
	return &e.Value.(*lruItem[K, V]).value
}

// put sets the value of k.
func (l *lru[K, V]) put(k K, v V) {
	if e := l.items[k]; e != nil {
		e.Value.(*lruItem[K, V]).value = v
		l.order.MoveToFront(e)
		return
	}
	if len(l.items) < l.limit {
		if l.items == nil {
			l.items = make(map[K]*list.Element)
		}
		l.items[k] = l.order.PushFront(&lruItem[K, V]{k, v})
		return
	}
	// The oldest entry's memory is used again: random reads would otherwise
	// allocate for each.
	e := l.order.Back()
	item := e.Value.(*lruItem[K, V])
	delete(l.items, item.key)
	item.key, item.value = k, v
	l.items[k] = e
	l.order.MoveToFront(e)
}

// rename moves the value of key from to key to, and replaces what is there.
func (l *lru[K, V]) rename(from, to K) {
	e := l.items[from]
	if e == nil || from == to {
		return
	}
	if old := l.items[to]; old != nil {
		l.order.Remove(old)
	}
	delete(l.items, from)
	e.Value.(*lruItem[K, V]).key = to
	l.items[to] = e
}
