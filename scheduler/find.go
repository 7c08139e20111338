package scheduler

import (
	"fmt"
	"slices"
	"time"

	"graze/chunk"
)

const (
	// maxFoundTries bounds the holders that are asked for a chunk before the
	// origin, maxKeepers those who may know any.
	maxFoundTries = 8
	maxKeepers    = 3
	// settleTime is how long after a change of the members, or the node's start,
	// a keeper that knows nothing is not believed, and the next one is asked: it
	// may be new.
	settleTime = 10 * time.Second
	// A node that was wrongly said to hold chunks, or said so of others, maxWrong
	// times more often than rightly is not believed for doubtTime.
	maxWrong  = 16
	doubtTime = time.Minute
)

// A Directory knows who is said to hold which chunks, wherever in an image or in
// another one they are. Its methods answer at once, with locks held, and don't
// call the scheduler.
type Directory interface {
	// Keepers appends the nodes that know who holds a chunk, the first in line
	// first. This node may be among them.
	Keepers(dst []chunk.PeerID, id chunk.ID) []chunk.PeerID
	// Holders appends the nodes that this node has heard to hold a chunk.
	Holders(dst []chunk.PeerID, id chunk.ID) []chunk.PeerID
	// Got tells that the node keeps a chunk that it got from the origin, or as a
	// home.
	Got(id chunk.ID)
}

// settling notices that the members have changed.
type settling struct {
	epoch uint64
	until time.Time // when the change is old; zero before the first
}

func (s *settling) observe(epoch uint64, now time.Time) {
	if s.until.IsZero() || s.epoch != epoch {
		s.epoch, s.until = epoch, now.Add(settleTime)
	}
}

// pickKeeper returns whom to ask who holds sr's chunk, and as what, or nil. What
// this node has heard itself comes first.
func (st *state) pickKeeper(sr *search) (*peer, Mode) {
	if st.directory == nil || sr.found {
		return nil, 0
	}
	id := sr.want.part.ID
	if !sr.looked {
		sr.looked = true
		st.hint(sr, st.directory.Holders(nil, id))
		if p := st.pickHolder(sr); p != nil {
			return p, ModeHeld
		}
	}
	settled := !st.now.Before(st.settling.until)
	for i, keeper := range st.directory.Keepers(nil, id) {
		switch {
		case i >= maxKeepers:
			return nil, 0
		case keeper == st.self && settled:
			return nil, 0 // all keepers are told the same
		case keeper == st.self, slices.Contains(sr.tried, keeper):
			continue
		}
		p := st.peer(keeper)
		if p == nil || !p.usable(st.now, true) || st.now.Before(p.doubtUntil) {
			continue
		}
		sr.tried = append(sr.tried, keeper)
		sr.found = settled
		return p, ModeFind
	}
	return nil, 0
}

// doubts reports whether a node is not to be believed to hold sr's chunk.
func (st *state) doubts(sr *search, p *peer) bool {
	return sr.level == originLevel && st.now.Before(p.doubtUntil)
}

// judgeHint notes whether a node did hold what it was said to hold.
func (st *state) judgeHint(sr *search, right bool) {
	if sr.level != originLevel || sr.mode != ModeHeld || sr.peer.tier == TierOutside || !slices.Contains(sr.asked, sr.peer.id) {
		return
	}
	for _, p := range []*peer{sr.peer, sr.namer} {
		switch {
		case p == nil:
		case right:
			p.wrong = max(0, p.wrong-1)
		default:
			if p.wrong++; p.wrong >= maxWrong {
				p.wrong, p.doubtUntil = maxWrong/2, st.now.Add(doubtTime)
			}
		}
	}
}

// seekAnywhere has sr ask whoever may hold its chunk, before the origin is asked:
// those that the directory names, those that were home until lately, and those
// outside the cluster.
func (st *state) seekAnywhere(sr *search) {
	if p, mode := st.pickKeeper(sr); p != nil {
		st.send(sr, p, mode)
		return
	}
	if p := st.pickHome(sr, sr.target.route.Former); p != nil {
		sr.tried = append(sr.tried, p.id)
		st.send(sr, p, ModeHeld)
		return
	}
	if st.askOutside(sr) || st.askLater(sr) {
		return
	}
	f := sr.want.fetch
	st.endSearch(sr)
	st.probedAll(f)
}

// askLater has sr ask those holders again, after a pause, that had no time: to ask
// the origin costs more. It reports false if there are none, or sr has waited often
// enough.
func (st *state) askLater(sr *search) bool {
	if len(sr.later) == 0 || sr.waits >= maxWaits {
		return false
	}
	sr.asked = slices.DeleteFunc(sr.asked, func(id chunk.PeerID) bool { return slices.Contains(sr.later, id) })
	st.hint(sr, sr.later)
	sr.later = nil
	st.pause(sr, sr.peerWait)
	return true
}

// answerAnywhere has sr go on after an answer without bytes.
func (st *state) answerAnywhere(sr *search, a *PeerAnswer) {
	switch a.Status {
	case StatusRedirect, StatusBusy:
		if sr.mode == ModeFind && a.Status == StatusRedirect {
			sr.namer = sr.peer
		} else {
			sr.later, sr.peerWait = append(sr.later, sr.peer.id), a.Wait
		}
		if sr.redirects++; sr.redirects <= maxRedirects {
			st.hint(sr, a.Holders)
		}
		if len(sr.hints) > 0 {
			st.followed++
		}
	case StatusFailed:
		sr.last = fmt.Errorf("%w: %s says %.100q", chunk.ErrDenied, sr.peer.id, a.Reason)
	default:
		st.judgeHint(sr, false)
	}
	st.seek(sr)
}
