package scheduler

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"graze/chunk"
)

const (
	// maxGiven bounds the chunks whose receivers are remembered, and
	// maxReceivers those of each.
	maxGiven     = 8192
	maxReceivers = 16
	// uploadTime is how long a chunk should take to be sent at most. What is
	// being sent is kept to what the link carries in that time, as measured
	// in steps of uploadStep; it is firstUploads until then and minUploads at
	// least.
	uploadTime   = 200 * time.Millisecond
	uploadStep   = 100 * time.Millisecond
	firstUploads = 4 << 20
	minUploads   = 512 << 10
	// maxSending is how many a chunk is sent to at a time where the link is short.
	maxSending = 2
	// justNow is for how long who got a chunk does not get it again for a less
	// urgent request: it was made before the reader's that got it.
	justNow = 2 * time.Second
)

// uploads decides which requests of peers are answered with bytes, and
// remembers who got what. It is safe for concurrent use.
type uploads struct {
	cluster Cluster
	most    int64

	mu    sync.Mutex
	flow  [2]uploadFlow             // to members of the rack and others, and to rack homes; guarded by mu
	given lru[chunk.ID, *receivers] // guarded by mu
	// sending counts who is being sent a chunk now; guarded by mu.
	sending map[chunk.ID]perClass
}

// A perClass is a sum for each class.
type perClass [chunk.NumClasses]int64

// upTo returns the sum of all that is as urgent as c, or more so. What is less
// urgent does not count: it is sent later.
func (p *perClass) upTo(c chunk.Class) (sum int64) {
	for _, n := range p[:c+1] {
		sum += n
	}
	return sum
}

// An uploadFlow measures what is sent to one kind of requester.
type uploadFlow struct {
	active perClass // bytes that are being sent
	limit  int64
	step   time.Time // when the current step began
	sent   int64     // in this step
	scarce bool      // the limit was reached in this step
	line   [chunk.NumClasses][]*turn
}

// receivers is a ring of the nodes that were given a chunk.
type receivers struct {
	ring [maxReceivers]receiver
	n    int // how many there have been
}

type receiver struct {
	id chunk.PeerID
	at time.Time
}

func newUploads(cfg *Config) *uploads {
	u := &uploads{cluster: cfg.Cluster, most: cfg.Uploads, sending: make(map[chunk.ID]perClass)}
	u.given.limit = maxGiven
	for i := range u.flow {
		u.flow[i].limit = min(firstUploads, cfg.Uploads)
	}
	return u
}

// flowOf returns which flow a request belongs to. Homes, which serve others,
// don't compete with those who read.
func flowOf(req *PeerRequest) int {
	if req.Mode == ModeHome && req.Level == clusterLevel {
		return 1
	}
	return 0
}

// enter reports whether a chunk may be sent now. If so, leave must be called.
func (u *uploads) enter(flow int, ref chunk.Ref, class chunk.Class, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.flow[flow].queued(class) && u.enterLocked(flow, ref, class, now)
}

// enterLocked is enter for one who is next in line. Less urgent classes may use
// a part of the limit, which the last chunk may exceed. A link with little to spare
// sends a chunk to few at a time: they pass it on to the others.
func (u *uploads) enterLocked(flow int, ref chunk.Ref, class chunk.Class, now time.Time) bool {
	n := int64(ref.Size)
	f := &u.flow[flow]
	limit := f.limit * int64(chunk.NumClasses-class) / chunk.NumClasses
	active, sending := f.active.upTo(class), u.sending[ref.ID]
	if active >= limit || sending.upTo(class) >= maxSending && active > f.limit/4 {
		f.scarce = true
		return false
	}
	if f.active == (perClass{}) {
		f.step, f.sent, f.scarce = now, 0, false
	}
	f.active[class] += n
	sending[class]++
	u.sending[ref.ID] = sending
	return true
}

// leave notes that a chunk that has waited since begin was sent, or not.
func (u *uploads) leave(flow int, ref chunk.Ref, class chunk.Class, begin, now time.Time, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := int64(ref.Size)
	f := &u.flow[flow]
	sending := u.sending[ref.ID]
	if sending[class]--; sending == (perClass{}) {
		delete(u.sending, ref.ID)
	} else {
		u.sending[ref.ID] = sending
	}
	f.active[class] -= n
	if ok {
		f.sent += n
	}
	f.measure(begin, now, u.most)
	u.callLocked(flow, now)
}

// measure sets the limit at the end of a step.
func (f *uploadFlow) measure(begin, now time.Time, most int64) {
	if now.Sub(begin) > uploadTime {
		f.scarce = true
	}
	d := now.Sub(f.step)
	if d < uploadStep {
		return
	}
	if f.scarce {
		// The link was the limit, or this one was: then there is room to grow.
		fits := int64(float64(f.sent) * float64(uploadTime) / float64(d))
		f.limit = min(max(fits, f.limit*3/4, minUploads), most)
	}
	f.step, f.sent, f.scarce = now, 0, f.active.upTo(chunk.NumClasses-1) >= f.limit
}

// gave notes that a node was given a chunk.
func (u *uploads) gave(id chunk.ID, to chunk.PeerID, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.given.get(id)
	if r == nil {
		u.given.put(id, &receivers{})
		r = u.given.get(id)
	}
	for i := range (*r).ring {
		if have := &(*r).ring[i]; have.id == to {
			have.at = now
			return
		}
	}
	(*r).ring[(*r).n%maxReceivers] = receiver{to, now}
	(*r).n++
}

// lately reports whether a node was given a chunk a moment ago.
func (u *uploads) lately(id chunk.ID, to chunk.PeerID, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.given.get(id)
	return r != nil && slices.ContainsFunc((*r).ring[:], func(have receiver) bool {
		return have.id == to && now.Sub(have.at) < justNow
	})
}

// holders returns some nodes that were given a chunk, in random order: those in
// the rack of the one who asks. Others are named only to nodes of other racks than
// this one, and only if there are hardly any. wait is how long it may take until
// this node has time.
func (u *uploads) holders(flow int, id chunk.ID, class chunk.Class, asks chunk.PeerID) (near []chunk.PeerID, wait time.Duration) {
	u.mu.Lock()
	f := &u.flow[flow]
	wait = max(minWait, time.Duration(float64(uploadTime/2)*min(1, float64(f.active.upTo(class))/float64(f.limit))))
	near, far := u.othersLocked(id, asks)
	u.mu.Unlock()
	shuffle(near)
	if len(near) < 2 {
		shuffle(far)
		near = append(near, far...)
	}
	return near[:min(len(near), MaxHolders)], wait
}

func shuffle(ids []chunk.PeerID) {
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
}

// othersLocked returns the other nodes that were given a chunk and may be named to
// the one who asks: those in its rack, and, unless it is in this node's rack, the
// others.
func (u *uploads) othersLocked(id chunk.ID, asks chunk.PeerID) (near, far []chunk.PeerID) {
	r := u.given.get(id)
	if r == nil {
		return nil, nil
	}
	at, _ := u.cluster.Place(asks)
	here, _ := u.cluster.Place(u.cluster.Self())
	for _, have := range (*r).ring {
		if have.id == "" || have.id == asks {
			continue
		}
		switch p, ok := u.cluster.Place(have.id); {
		case !ok:
		case tierOf(at, p) == TierRack:
			near = append(near, have.id)
		case tierOf(at, here) != TierRack:
			far = append(far, have.id)
		}
	}
	return near, far
}
