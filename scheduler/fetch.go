package scheduler

import (
	"context"
	"sync/atomic"
	"time"

	"graze/chunk"
)

// none is the class of a fetch that nobody wants.
const none chunk.Class = chunk.NumClasses

// A want is one chunk that is on its way, by work of one level. There is one for
// each level at most.
type want struct {
	part   chunk.Part
	level  int
	fetch  *fetch  // of level 2: brings the chunk; another one after a detour
	search *search // asks peers for it; of level 2 while former homes are asked
	asks   []ask   // who waits for it
	done   bool    // settled or moved, and in the table no more
	moved  *want   // who waited for it waits for this one now
}

// last returns the want that those who waited for w wait for.
func (w *want) last() *want {
	for w.moved != nil {
		if w.moved.moved != nil {
			w.moved = w.moved.moved
		}
		w = w.moved
	}
	return w
}

// span returns the span that the chunk is looked for in.
func (w *want) span() *chunk.Span {
	if w.fetch != nil {
		return &w.fetch.span
	}
	return w.search.span
}

// An ask is a request's wish for a stretch of a chunk.
type ask struct {
	req  *request
	miss *miss
}

// A fetch is one span that is on its way from the origin, through as many tries
// as it takes.
type fetch struct {
	span  chunk.Span
	wants []*want // by part; nil if the chunk was on its way already
	left  int     // wants that are not done and that this fetch brings
	stage stage
	run   *run // with stage inRun

	route  *Route
	via    []chunk.PeerID // who passed on the request that it was begun for
	probes int            // with stage probing: searches that are not over
	probed bool           // former homes were asked

	// interest counts by class who waits for chunks of the fetch. class is the
	// most urgent one, or none.
	interest [chunk.NumClasses]int
	class    chunk.Class

	prev, next *fetch // neighbours in the queue

	failures failures
	alone    bool // it has spoilt a run: one of its own spares the neighbours
}

type stage int

const (
	queued  stage = iota
	probing       // former homes are asked first
	inRun
	parked // waits for its next try
	over
)

// brings reports whether f has still to bring w.
func (f *fetch) brings(w *want) bool { return w != nil && !w.done && w.fetch == f }

// pending returns the chunks that f has still to bring.
func (f *fetch) pending() []*want {
	var wants []*want
	for _, w := range f.wants {
		if f.brings(w) {
			wants = append(wants, w)
		}
	}
	return wants
}

// A run is one transfer: one or more spans of a blob in one request.
type run struct {
	fetches []*fetch
	lane    int
	memory  int64        // what it counts for in the budget
	class   atomic.Int32 // the most urgent class that wants some of it
	pos     atomic.Int64 // offset in the blob that the transfer has reached
	stop    context.CancelFunc

	asked    int64     // bytes of the request
	begun    time.Time // when it was taken out of the queue
	failed   bool
	stopping bool // stop was called to make room
}

// wanted returns the most urgent class that wants what the run has still to
// bring, or none.
func (r *run) wanted() chunk.Class {
	class := none
	for _, f := range r.fetches {
		if f.stage == inRun && f.run == r {
			class = min(class, f.wanted())
		}
	}
	return class
}

// windowed reports whether the run needs bytes of another chunk.
func (r *run) windowed() bool { return r.fetches[0].span.Window != nil }

// wanted returns the most urgent class that wants f, or none.
func (f *fetch) wanted() chunk.Class {
	for c, n := range f.interest {
		if n > 0 {
			return chunk.Class(c)
		}
	}
	return none
}
