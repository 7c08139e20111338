package peer

import (
	"fmt"

	"graze/wire"
)

// A ledger keeps which parts of a request have been answered. Both ends have
// one: the server's so that it answers all parts once, the client's so that it
// need not believe that.
type ledger struct {
	items []wire.Item
	first []int  // of each item: where its parts start in due
	due   []bool // by part of all items: an answer is still to come
	left  int    // number of due parts
}

func newLedger(items []wire.Item) *ledger {
	l := &ledger{items: items, first: make([]int, len(items)+1)}
	for i := range items {
		l.first[i+1] = l.first[i] + len(items[i].Span.Parts)
	}
	l.due = make([]bool, l.first[len(items)])
	for i := range items {
		due := l.due[l.first[i]:l.first[i+1]]
		for p := range due {
			due[p] = items[i].Parts == nil
		}
		for _, p := range items[i].Parts {
			due[p] = true
		}
		l.left += items[i].Wanted()
	}
	return l
}

// settle enters the answer a.
func (l *ledger) settle(a *wire.Answer) error {
	from, to := 0, len(l.due)
	if a.Item != wire.All {
		if a.Item < 0 || a.Item >= len(l.items) {
			return fmt.Errorf("an answer for item %d of %d", a.Item, len(l.items))
		}
		from, to = l.first[a.Item], l.first[a.Item+1]
		if a.Part != wire.All {
			if a.Part < 0 || a.Part >= to-from {
				return fmt.Errorf("an answer for part %d of %d of item %d", a.Part, to-from, a.Item)
			}
			from += a.Part
			to = from + 1
		}
	}
	n := 0
	for i := from; i < to; i++ {
		if l.due[i] {
			l.due[i] = false
			n++
		}
	}
	if n == 0 {
		return fmt.Errorf("an answer for item %d, part %d, which has one or was not asked for", a.Item, a.Part)
	}
	l.left -= n
	if a.Status == wire.Bytes {
		if want := l.items[a.Item].Span.Parts[a.Part].Size; a.Size != want {
			return fmt.Errorf("%d bytes for item %d, part %d, which has %d", a.Size, a.Item, a.Part, want)
		}
	}
	return nil
}
