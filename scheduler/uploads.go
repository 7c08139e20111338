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
	// least: a few chunks, as those who receive from many at a time take each of
	// them slowly, and the link must not wait for them.
	uploadTime   = 200 * time.Millisecond
	uploadStep   = 100 * time.Millisecond
	firstUploads = 4 << 20
	minUploads   = 1 << 20
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
	// sending has the chunks that are being sent now; guarded by mu.
	sending map[chunk.ID]*sending
}

// An upload is a chunk that a node is to be sent.
type upload struct {
	ref   chunk.Ref
	to    chunk.PeerID
	class chunk.Class
	flow  int
}

// sending is who is being sent a chunk.
type sending struct {
	count perClass
	to    []upload
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
	fits   int64     // what the link has last carried in uploadTime; 0: not known
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
	u := &uploads{cluster: cfg.Cluster, most: cfg.Uploads, sending: make(map[chunk.ID]*sending)}
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

// enter reports whether up may begin now. If so, leave must be called.
func (u *uploads) enter(up upload, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.flow[up.flow].queued(up.class) && u.enterLocked(up, now)
}

// enterLocked is enter for one who is next in line. Less urgent classes may use
// a part of the limit, which the last chunk may exceed. A link with little to spare
// sends a chunk to few at a time: they pass it on to the others.
func (u *uploads) enterLocked(up upload, now time.Time) bool {
	f, s := &u.flow[up.flow], u.sending[up.ref.ID]
	limit := f.limit * int64(chunk.NumClasses-up.class) / chunk.NumClasses
	active := f.active.upTo(up.class)
	if active >= limit || s != nil && s.count.upTo(up.class) >= maxSending && active > f.limit/4 {
		f.scarce = true
		return false
	}
	if f.active == (perClass{}) {
		f.step, f.sent, f.scarce = now, 0, false
	}
	f.active[up.class] += int64(up.ref.Size)
	if s == nil {
		s = &sending{}
		u.sending[up.ref.ID] = s
	}
	s.count[up.class]++
	s.to = append(s.to, up)
	return true
}

// leave notes that up, which has waited since begin, was sent, or not.
func (u *uploads) leave(up upload, begin, now time.Time, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f, s := &u.flow[up.flow], u.sending[up.ref.ID]
	s.count[up.class]--
	if i := slices.Index(s.to, up); len(s.to) > 1 {
		s.to = slices.Delete(s.to, i, i+1)
	} else {
		delete(u.sending, up.ref.ID)
	}
	f.active[up.class] -= int64(up.ref.Size)
	if ok {
		f.sent += int64(up.ref.Size)
		u.gaveLocked(up.ref.ID, up.to, now)
	}
	f.measure(begin, now, u.most)
	u.callLocked(up.flow, now)
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
		f.fits = int64(float64(f.sent) * float64(uploadTime) / float64(d))
		f.limit = min(max(f.fits, f.limit*3/4, minUploads), most)
	}
	f.step, f.sent, f.scarce = now, 0, f.active.upTo(chunk.NumClasses-1) >= f.limit
}

// gaveLocked notes that a node was given a chunk.
func (u *uploads) gaveLocked(id chunk.ID, to chunk.PeerID, now time.Time) {
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

// repeats reports whether the node of up, which has asked at the given time, was
// given the chunk since. If up is less urgent than a reader's, the node may have been
// given it a moment before, too: it had asked before the reader's request came that
// brought it.
func (u *uploads) repeats(up upload, asked, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.given.get(up.ref.ID)
	return r != nil && slices.ContainsFunc((*r).ring[:], func(have receiver) bool {
		return have.id == up.to && (have.at.After(asked) || up.class != chunk.Demand && now.Sub(have.at) < justNow)
	})
}

// doubles reports whether the node of up is being sent the chunk already. A reader
// does not wait for what is sent when nobody else wants the link.
func (u *uploads) doubles(up upload) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.doublesLocked(up)
}

func (u *uploads) doublesLocked(up upload) bool {
	s := u.sending[up.ref.ID]
	return s != nil && slices.ContainsFunc(s.to, func(other upload) bool {
		return other.to == up.to && other.class <= max(up.class, chunk.Readahead)
	})
}

// holders returns some nodes that were given the chunk of up, in random order: those
// in the rack of the one who asks. Others are named only to nodes of other racks than
// this one, and only if there are hardly any. wait is how long it may take until
// this node has time.
func (u *uploads) holders(up upload) (near []chunk.PeerID, wait time.Duration) {
	u.mu.Lock()
	f := &u.flow[up.flow]
	wait = max(minWait, time.Duration(float64(uploadTime/2)*min(1, float64(f.active.upTo(up.class))/float64(f.limit))))
	near, far := u.othersLocked(up)
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

// othersLocked returns the other nodes that were given the chunk of up and may be
// named to the one who asks: those in its rack, and, unless it is in this node's rack,
// the others.
func (u *uploads) othersLocked(up upload) (near, far []chunk.PeerID) {
	r := u.given.get(up.ref.ID)
	if r == nil {
		return nil, nil
	}
	at, _ := u.cluster.Place(up.to)
	here, _ := u.cluster.Place(u.cluster.Self())
	for _, have := range (*r).ring {
		if have.id == "" || have.id == up.to {
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
