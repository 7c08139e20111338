package dht

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

const (
	// MaxHomes is the largest number of homes that one lookup gives.
	MaxHomes = 8
	// MinRack is the number of members below which a rack has no homes of its
	// own: the few copies it would save don't pay for a second hop.
	MinRack = 4
	// formerTime is how long a member that was home of a key is worth asking.
	formerTime = 10 * time.Minute
)

// A placement is what a view needs to look up homes. Members stand in it by
// their positions: first the ready ones, then the others; in each of the two by
// falling weight, then rack, then ID. So the members of one weight, and those of
// one weight and rack, are stretches of positions, in which the highest hash wins
// and no logarithm is needed.
type placement struct {
	member  []int32  // by position: index in the view's members
	hash    []uint64 // by position: hash of the member's ID
	cluster tier
	racks   map[string]*rack

	past     []past  // by position
	recent   []int32 // positions whose weight changed not long before the placement was made
	isRecent []bool  // by position
}

// A tier is the stretches of the ready members and of the others.
type tier struct{ ready, rest []stretch }

type rack struct {
	tier
	members int
}

// A stretch is positions lo to hi-1, which have the same weight.
type stretch struct {
	lo, hi int32
	weight float64
}

// A past says between which effective weights a member has been since shortly
// before its weight changed last. Not to be there at all is a weight of 0.
type past struct {
	now, least, most uint16
	changed          time.Time
}

// note records that the effective weight is w from now on. What it recorded
// before still counts if it is recent.
func (p *past) note(w uint16, now time.Time) {
	least, most := p.weights(now)
	*p = past{now: w, least: min(least, w), most: max(most, w), changed: now}
}

// weights returns the least and the largest weight of the last ten minutes; if
// the weight changed several times it may look back further.
func (p *past) weights(now time.Time) (least, most uint16) {
	if now.Sub(p.changed) > formerTime {
		return p.now, p.now
	}
	return p.least, p.most
}

// newPlacement orders members, which are sorted by ID.
func newPlacement(members []Member, pasts []past, now time.Time) *placement {
	p := &placement{
		member: make([]int32, len(members)),
		hash:   make([]uint64, len(members)),
		racks:  make(map[string]*rack),
		past:   make([]past, len(members)),

		isRecent: make([]bool, len(members)),
	}
	for i := range members {
		p.member[i] = int32(i)
	}
	slices.SortFunc(p.member, func(i, j int32) int {
		a, b := &members[i], &members[j]
		if a.Ready != b.Ready {
			if a.Ready {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Rack, b.Rack), cmp.Compare(i, j))
	})
	for pos, i := range p.member {
		m := &members[i]
		p.hash[pos] = xxhash.Sum64String(string(m.ID))
		p.past[pos] = pasts[i]
		if now.Sub(pasts[i].changed) <= formerTime {
			p.recent = append(p.recent, int32(pos))
			p.isRecent[pos] = true
		}
		r := p.racks[m.Rack]
		if r == nil {
			r = new(rack)
			p.racks[m.Rack] = r
		}
		r.members++
		p.cluster.add(m, int32(pos))
		r.add(m, int32(pos))
	}
	return p
}

// add appends the position of m.
func (t *tier) add(m *Member, pos int32) {
	list := &t.ready
	if !m.Ready {
		list = &t.rest
	}
	w := float64(m.Weight)
	if n := len(*list); n > 0 && (*list)[n-1].hi == pos && (*list)[n-1].weight == w {
		(*list)[n-1].hi++
		return
	}
	*list = append(*list, stretch{pos, pos + 1, w})
}

// A ranked is a position with its score for a key.
type ranked struct {
	score float64
	hash  uint64
	pos   int32
}

// before is the order of ranks. Among equal weights it is the order of hashes,
// also where two hashes round to one score.
func (a ranked) before(b ranked) bool {
	if a.score != b.score {
		return a.score > b.score
	}
	if a.hash != b.hash {
		return a.hash > b.hash
	}
	return a.pos < b.pos
}

// A top keeps the first n of what is inserted, in order.
type top struct {
	n, limit int
	list     [MaxHomes]ranked
}

func (t *top) insert(r ranked) {
	i := t.n
	if t.n < t.limit {
		t.n++
	} else if i--; i < 0 || !r.before(t.list[i]) {
		return
	}
	for ; i > 0 && r.before(t.list[i-1]); i-- {
		t.list[i] = t.list[i-1]
	}
	t.list[i] = r
}

// score is the weighted rendezvous score of a hash.
func score(hash uint64, weight float64) float64 {
	// 52 bits, so that u is exact and lies within (0,1).
	u := (float64(hash>>12) + 0.5) / (1 << 52)
	return -weight / math.Log(u)
}

// rank returns the first n positions of the stretches for key.
func (p *placement) rank(key Key, list []stretch, n int) top {
	out := top{limit: n}
	for _, s := range list {
		best := top{limit: n}
		least := uint64(0)
		for i, h := range p.hash[s.lo:s.hi] {
			h = mix(h ^ uint64(key))
			if best.n == n && h <= least {
				continue
			}
			best.insert(ranked{hash: h, pos: s.lo + int32(i)})
			least = best.list[best.n-1].hash
		}
		for _, r := range best.list[:best.n] {
			r.score = score(r.hash, s.weight)
			out.insert(r)
		}
	}
	return out
}

// homes appends the first n positions of t for key: ready members first.
func (p *placement) homes(dst []int32, key Key, t *tier, n int) []int32 {
	n = min(n, MaxHomes)
	for _, list := range [][]stretch{t.ready, t.rest} {
		if n <= 0 {
			break
		}
		found := p.rank(key, list, n)
		for _, r := range found.list[:found.n] {
			dst = append(dst, r.pos)
		}
		n -= found.n
	}
	return dst
}

// former appends up to n positions that may have been first for key within the
// last ten minutes, without that of the member with index self.
//
// Whoever was first at some moment had then at least the score that each member
// has with its least weight since. So those stay whose score with their largest
// weight reaches the highest of these.
func (p *placement) former(dst []int32, key Key, n int, self int32, now time.Time) []int32 {
	bar := p.steady(key)
	found := top{limit: min(n+1, MaxHomes)} // one may be self
	if bar.pos >= 0 {
		found.insert(bar)
	}
	for _, pos := range p.recent {
		least, most := p.past[pos].weights(now)
		r := ranked{hash: mix(p.hash[pos] ^ uint64(key)), pos: pos}
		if r.score = score(r.hash, float64(least)); least > 0 && r.before(bar) {
			bar = r
		}
		if r.score = score(r.hash, float64(most)); most > 0 {
			found.insert(r)
		}
	}
	for _, r := range found.list[:found.n] {
		if (r.before(bar) || r.pos == bar.pos) && p.member[r.pos] != self && n > 0 {
			dst = append(dst, r.pos)
			n--
		}
	}
	return dst
}

// steady returns the ready member with the highest score for key among those
// that are not recent, or a position of -1.
func (p *placement) steady(key Key) ranked {
	best := ranked{pos: -1}
	for _, s := range p.cluster.ready {
		first := ranked{pos: -1}
		for pos := s.lo; pos < s.hi; pos++ {
			h := mix(p.hash[pos] ^ uint64(key))
			if !p.isRecent[pos] && (first.pos < 0 || h > first.hash) {
				first = ranked{hash: h, pos: pos}
			}
		}
		if first.pos < 0 {
			continue
		}
		if first.score = score(first.hash, s.weight); best.pos < 0 || first.before(best) {
			best = first
		}
	}
	return best
}
