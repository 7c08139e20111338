package scheduler

import (
	"container/heap"
	"time"
)

// A timerKind says what is to happen.
type timerKind int

const (
	timerPause timerKind = iota // a paused search goes on
	timerHedge                  // a call has taken long
	timerProbe                  // an avoided peer may be back
	timerWake                   // look for something to start
)

// A timer is something that is to happen to a search. It is void if the search
// was given another one since.
type timer struct {
	at     time.Time
	kind   timerKind
	search *search
	number int
}

// timers holds timers, the first one first. It has one live timer for a search
// at most.
type timers struct {
	heap timerHeap
	woke time.Time // of the last timerWake
}

// set adds a timer.
func (t *timers) set(sr *search, at time.Time, kind timerKind) {
	e := timer{at: at, kind: kind, search: sr}
	if sr != nil {
		sr.timer++
		e.number = sr.timer
	} else {
		if !t.woke.IsZero() && !at.Before(t.woke) {
			return
		}
		t.woke = at
	}
	heap.Push(&t.heap, e)
}

// next returns when the first timer is due; ok is false if there is none.
func (t *timers) next() (at time.Time, ok bool) {
	if len(t.heap) == 0 {
		return time.Time{}, false
	}
	return t.heap[0].at, true
}

// due calls f for each timer that is due and not void.
func (t *timers) due(now time.Time, f func(*search, timerKind)) {
	for len(t.heap) > 0 && !now.Before(t.heap[0].at) {
		e := heap.Pop(&t.heap).(timer)
		if e.search == nil {
			t.woke = time.Time{}
		} else if e.search.timer == e.number {
			f(e.search, e.kind)
		}
	}
}

type timerHeap []timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)        { *h = append(*h, x.(timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = timer{}
	*h = old[:len(old)-1]
	return e
}
