package scheduler

import (
	"slices"
	"time"

	"graze/chunk"
)

const (
	// A chunk waits for its turn to be sent for as long as the link takes to send
	// turnBytes, from minTurn to maxTurn: on a link with more to spare it is sooner
	// asked for elsewhere.
	turnBytes = 4 << 20
	minTurn   = 100 * time.Millisecond
	maxTurn   = 4 * time.Second
	// maxLine bounds the bytes that wait.
	maxLine = 16 << 20
)

// A turn is a chunk that waits to be sent to a node.
type turn struct {
	outgoing
	up    upload
	until time.Time
	// called gets the turn when it has come, or when others have the chunk. It
	// has room for it.
	called  chan<- *turn
	granted bool // the chunk may be sent; leave must be called. Set before it is called
}

// queued reports whether somebody who is as urgent as c, or more so, stands in line.
func (f *uploadFlow) queued(c chunk.Class) bool {
	return slices.ContainsFunc(f.line[:c+1], func(line []*turn) bool { return len(line) > 0 })
}

// patience is how long a chunk waits for its turn.
func (f *uploadFlow) patience() time.Duration {
	fits := f.limit
	if f.fits > 0 {
		fits = min(fits, f.fits)
	}
	takes := time.Duration(float64(uploadTime) * turnBytes / float64(fits))
	return min(max(takes, minTurn), maxTurn)
}

// patience is how long this node has others wait for a chunk.
func (u *uploads) patience(flow int) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.flow[flow].patience()
}

// wait puts t into the line, unless too much waits there.
func (u *uploads) wait(t *turn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	f := &u.flow[t.up.flow]
	bytes := int64(t.ref.Size)
	for _, line := range f.line {
		for _, other := range line {
			bytes += int64(other.ref.Size)
		}
	}
	if bytes > maxLine {
		return false
	}
	t.until = t.since.Add(f.patience())
	f.line[t.up.class] = append(f.line[t.up.class], t)
	return true
}

// quit takes t out of the line, and reports whether it was there: if not, it has
// been called.
func (u *uploads) quit(t *turn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	line := &u.flow[t.up.flow].line[t.up.class]
	i := slices.Index(*line, t)
	if i < 0 {
		return false
	}
	*line = slices.Delete(*line, i, i+1)
	return true
}

// callLocked calls those whose turn has come, and those whose chunk others have by
// now.
func (u *uploads) callLocked(flow int, now time.Time) {
	f := &u.flow[flow]
	for class := range f.line {
		f.line[class] = slices.DeleteFunc(f.line[class], func(t *turn) bool {
			if u.doublesLocked(t.up) {
				return false
			}
			if t.granted = u.enterLocked(t.up, now); !t.granted {
				if near, far := u.othersLocked(t.up); len(near)+len(far) == 0 {
					return false
				}
			}
			t.called <- t
			return true
		})
	}
}
