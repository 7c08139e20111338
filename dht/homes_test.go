package dht

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"graze/chunk"
)

// crowd returns n ready members in racks of 20.
func crowd(n int) []Member {
	members := make([]Member, n)
	for i := range members {
		members[i] = Member{ID: chunk.PeerID(fmt.Sprintf("12D3KooW%06d", i)), Rack: fmt.Sprintf("rack%d", i/20), Weight: DefaultWeight, Ready: true}
	}
	return members
}

// viewOf returns a view of members whose past has nothing of interest, seen by
// the first.
func viewOf(members []Member) *View {
	pasts := make([]past, len(members))
	for i := range pasts {
		pasts[i].now = members[i].effective()
	}
	return newView(members, pasts, members[0].ID, 0, nil)
}

func testKeys(n int) []Key {
	keys := make([]Key, n)
	for i := range keys {
		keys[i] = HomeKey(&chunk.Span{Blob: chunk.Blob(fmt.Sprintf("sha256:%064x", i/500)), Off: int64(i%500) << 20, Len: 1 << 20})
	}
	return keys
}

func ids(members []*Member) []chunk.PeerID {
	var out []chunk.PeerID
	for _, m := range members {
		out = append(out, m.ID)
	}
	return out
}

const goldenKey = 0xb34fd03e52354594

func TestHomeKey(t *testing.T) {
	at := func(blob string, off, n int64) Key {
		return HomeKey(&chunk.Span{Blob: chunk.Blob(blob), Off: off, Len: n})
	}
	const big = smallSpan
	for _, tt := range []struct {
		name string
		a, b Key
		same bool
	}{
		{"other blob", at("sha256:a", 0, big), at("sha256:b", 0, big), false},
		{"other offset", at("sha256:a", 0, big), at("sha256:a", 1, big), false},
		{"large spans of one window", at("sha256:a", 0, big), at("sha256:a", 1<<20, big), false},
		{"length of large spans", at("sha256:a", 1<<20, big), at("sha256:a", 1<<20, 2*big), true},
		{"small spans of one window", at("sha256:a", 5<<20, big-1), at("sha256:a", 7<<20, 10), true},
		{"small spans of two windows", at("sha256:a", 4<<20-1, 10), at("sha256:a", 4<<20, 10), false},
	} {
		if (tt.a == tt.b) != tt.same {
			t.Errorf("%s: keys %x and %x", tt.name, tt.a, tt.b)
		}
	}
	// The key is part of the protocol: nodes of different versions must agree.
	if got := at("sha256:e3b0c442", 3<<20, 1<<20); got != goldenKey {
		t.Errorf("the key of a span has become %#x", uint64(got))
	}
}

// TestBalance compares the share of each member with its weight.
func TestBalance(t *testing.T) {
	keys := testKeys(60000)
	weighted := crowd(100)
	for i := range weighted {
		switch {
		case i%20 == 0:
			weighted[i].Weight, weighted[i].Role = SeedWeight, Seed
		case i%20 == 1:
			weighted[i].Weight = DefaultWeight / 2
		}
	}
	for _, tt := range []struct {
		name    string
		members []Member
	}{
		{"20 alike", crowd(20)}, {"200 alike", crowd(200)}, {"100 of three weights", weighted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := viewOf(tt.members)
			count := make(map[chunk.PeerID]int)
			for _, k := range keys {
				count[v.ClusterHomes(k, 1)[0].ID]++
			}
			var sum, worst, chi float64
			for i := range tt.members {
				sum += float64(tt.members[i].Weight)
			}
			for i := range tt.members {
				expect := float64(len(keys)) * float64(tt.members[i].Weight) / sum
				got := float64(count[tt.members[i].ID])
				worst = max(worst, got/expect)
				chi += (got - expect) * (got - expect) / expect
			}
			// The sum of squares has mean n-1 and variance 2(n-1) if homes are
			// independent of all but the weights.
			n := float64(len(tt.members) - 1)
			t.Logf("largest share is %.3f of what its weight says; chi² %.0f for %.0f", worst, chi, n)
			if math.Abs(chi-n) > 5*math.Sqrt(2*n) {
				t.Errorf("shares are not what the weights say: chi² %.0f for %.0f degrees of freedom", chi, n)
			}
		})
	}
}

// TestSecondHomes has one member fail; its keys must go to all others alike.
func TestSecondHomes(t *testing.T) {
	v := viewOf(crowd(20))
	count := make(map[chunk.PeerID]int)
	total := 0
	for _, k := range testKeys(60000) {
		if h := v.ClusterHomes(k, 2); h[0].ID == v.Members()[7].ID {
			count[h[1].ID]++
			total++
		}
	}
	for _, m := range v.Members() {
		if got, expect := count[m.ID], total/19; m.ID != v.Members()[7].ID && (got < expect*7/10 || got > expect*13/10) {
			t.Errorf("%s is second for %d of %d keys", m.ID, got, total)
		}
	}
}

// TestChurn adds and removes a member: only its own keys move.
func TestChurn(t *testing.T) {
	all := crowd(100)
	all[42].Weight = 300
	with, without := viewOf(slices.Clone(all)), viewOf(slices.Delete(slices.Clone(all), 42, 43))
	moved, keys := 0, testKeys(30000)
	for _, k := range keys {
		a, b := with.ClusterHomes(k, 3), without.ClusterHomes(k, 2)
		if a[0].ID != all[42].ID {
			if a[0].ID != b[0].ID {
				t.Fatalf("key %x moves from %s to %s, which both stay", k, a[0].ID, b[0].ID)
			}
			continue
		}
		moved++
		if a[1].ID != b[0].ID || a[2].ID != b[1].ID {
			t.Fatalf("key %x goes to %v, not to the next of %v", k, ids(b), ids(a))
		}
	}
	got, want := float64(moved)/float64(len(keys)), 300.0/(99*100+300)
	t.Logf("%.4f of the keys move, for a weight of %.4f", got, want)
	if got < want*0.9 || got > want*1.1 {
		t.Errorf("%.4f of the keys move, not %.4f", got, want)
	}
}

// TestTiers checks on random clusters that the rack home in the cluster home's
// rack is the cluster home, that orders don't depend on the input's, and that the
// quick search finds what sorting by score finds.
func TestTiers(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range 200 {
		members := crowd(1 + rng.IntN(60))
		for i := range members {
			members[i].Rack = []string{"", "a", "b", "c", "d"}[rng.IntN(5)]
			members[i].Weight = []uint16{1, 50, 100, 100, 100, 400, 65535}[rng.IntN(7)]
			members[i].Ready = rng.IntN(6) > 0
		}
		v := viewOf(slices.Clone(members))
		rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		if other := viewOf(members); other.Epoch() != v.Epoch() {
			t.Fatalf("seed %d round %d: epoch depends on order", seed, round)
		}
		for range 20 {
			k := Key(rng.Uint64())
			homes := v.ClusterHomes(k, MaxHomes)
			if got, want := ids(homes), ids(byScore(v, k, func(*Member) bool { return true })); !slices.Equal(got, want) {
				t.Fatalf("seed %d round %d key %x: homes %v, by score %v", seed, round, k, got, want)
			}
			r := homes[0].Rack
			rackHomes := v.RackHomes(k, r, MaxHomes)
			if len(rackHomes) == 0 {
				continue
			}
			if rackHomes[0] != homes[0] {
				t.Fatalf("seed %d round %d key %x: rack home %s, cluster home %s", seed, round, k, rackHomes[0].ID, homes[0].ID)
			}
			if got, want := ids(rackHomes), ids(byScore(v, k, func(m *Member) bool { return m.Rack == r })); !slices.Equal(got, want) {
				t.Fatalf("seed %d round %d key %x: rack homes %v, by score %v", seed, round, k, got, want)
			}
		}
	}
}

// byScore sorts the members that in takes by readiness and score.
func byScore(v *View, k Key, in func(*Member) bool) []*Member {
	type scored struct {
		m *Member
		ranked
	}
	var all []scored
	for pos, i := range v.place.member {
		if m := &v.members[i]; in(m) {
			h := mix(v.place.hash[pos] ^ uint64(k))
			all = append(all, scored{m, ranked{score(h, float64(m.Weight)), h, int32(pos)}})
		}
	}
	slices.SortFunc(all, func(a, b scored) int {
		if a.m.Ready != b.m.Ready {
			if a.m.Ready {
				return -1
			}
			return 1
		}
		if a.before(b.ranked) {
			return -1
		}
		return 1
	})
	var out []*Member
	for _, s := range all[:min(len(all), MaxHomes)] {
		out = append(out, s.m)
	}
	return out
}

func TestSmallRacks(t *testing.T) {
	members := crowd(9)
	for i := range members {
		members[i].Rack = []string{"big", "small", ""}[min(i/MinRack, 2)]
	}
	members[MinRack*2-1].Rack = "" // small has MinRack-1 members
	v := viewOf(members)
	for _, tt := range []struct {
		rack    string
		n, want int
	}{
		{"big", 2, 2}, {"big", 0, 0}, {"big", -1, 0}, {"big", 99, MinRack}, {"small", 2, 0}, {"", 2, 0}, {"none", 2, 0},
	} {
		if got := v.RackHomes(1, tt.rack, tt.n); len(got) != tt.want {
			t.Errorf("rack %q gives %d homes of %d, not %d", tt.rack, len(got), tt.n, tt.want)
		}
	}
	if got := len(v.ClusterHomes(1, 99)); got != MaxHomes {
		t.Errorf("%d cluster homes of 99", got)
	}
}

func TestScoreIsFinite(t *testing.T) {
	for _, h := range []uint64{0, 1, 1 << 12, math.MaxUint64 - 1<<12, math.MaxUint64} {
		if s := score(h, 1); !(s > 0) || math.IsInf(s, 0) {
			t.Errorf("score of %#x is %v", h, s)
		}
	}
}

// TestFormer has a roster go through changes and asks who may have been home.
func TestFormer(t *testing.T) {
	const n = 12
	members := crowd(n)
	all := viewOf(slices.Clone(members))
	keys := testKeys(300)
	for _, tt := range []struct {
		name   string
		change func(r *roster, set func(i int, f func(*Member)))
		// check is given the home of a key after the change, the members in rank
		// before it, and what Former gives to the home.
		check func(t *testing.T, home chunk.PeerID, rank, got []chunk.PeerID)
	}{
		{"nothing", func(*roster, func(int, func(*Member))) {}, func(t *testing.T, _ chunk.PeerID, _, got []chunk.PeerID) {
			if len(got) != 0 {
				t.Errorf("former homes %v, though nothing changed", got)
			}
		}},
		{"a member comes", func(r *roster, set func(int, func(*Member))) {
			r.mu.Lock()
			delete(r.members, members[3].ID)
			r.mu.Unlock()
			set(3, func(*Member) {})
		}, func(t *testing.T, home chunk.PeerID, rank, got []chunk.PeerID) {
			var want []chunk.PeerID
			if rank[0] == members[3].ID {
				want = rank[1:2]
			}
			if !slices.Equal(got, want) {
				t.Errorf("former homes %v, want %v", got, want)
			}
		}},
		{"a seed becomes a node", func(_ *roster, set func(int, func(*Member))) {
			set(5, func(m *Member) { m.Weight = 1 })
		}, func(t *testing.T, home chunk.PeerID, rank, got []chunk.PeerID) {
			// rank is by the old weights: its first was home before.
			var want []chunk.PeerID
			if rank[0] == members[5].ID && home != members[5].ID {
				want = rank[:1]
			}
			if !slices.Equal(got, want) {
				t.Errorf("former homes %v, want %v", got, want)
			}
		}},
		{"all are new", func(r *roster, set func(int, func(*Member))) {
			r.mu.Lock()
			clear(r.members)
			r.mu.Unlock()
			for i := range n {
				set(i, func(*Member) {})
			}
		}, func(t *testing.T, home chunk.PeerID, rank, got []chunk.PeerID) {
			if !slices.Equal(got, rank[1:4]) {
				t.Errorf("former homes %v, want those next in rank, %v", got, rank[1:4])
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRoster(members[0], discard)
				set := func(i int, f func(*Member)) {
					m := members[i]
					f(&m)
					r.mu.Lock()
					defer r.mu.Unlock()
					r.setLocked(m)
				}
				for i := range n {
					set(i, func(*Member) {})
				}
				time.Sleep(formerTime + time.Second)
				tt.change(r, set)
				v := r.view(nil)
				for _, k := range keys {
					v.self = int32(slices.IndexFunc(v.members, func(m Member) bool { return m.ID == v.ClusterHomes(k, 1)[0].ID }))
					tt.check(t, v.Self().ID, ids(all.ClusterHomes(k, 5)), ids(v.Former(k, 3)))
				}
				time.Sleep(formerTime + time.Second)
				for _, view := range []*View{v, r.view(v)} {
					for _, k := range keys {
						view.self = int32(slices.IndexFunc(v.members, func(m Member) bool { return m.ID == v.ClusterHomes(k, 1)[0].ID }))
						if got := view.Former(k, 3); len(got) != 0 {
							t.Fatalf("former homes %v after the time has gone", ids(got))
						}
					}
				}
			})
		})
	}
}

func TestLookupsDontAllocate(t *testing.T) {
	v := viewOf(crowd(200))
	buf := make([]*Member, 0, MaxHomes)
	k := Key(0)
	if n := testing.AllocsPerRun(100, func() {
		k += 0x123456789
		buf = v.AppendClusterHomes(buf[:0], k, 4)
		buf = v.AppendRackHomes(buf[:0], k, "rack3", 4)
	}); n != 0 {
		t.Errorf("a lookup allocates %v times", n)
	}
}

func TestViewReusesPlacement(t *testing.T) {
	members := crowd(50)
	r := newRoster(members[0], discard)
	for _, m := range members {
		r.setLocked(m)
	}
	a := r.view(nil)
	loaded := members[7]
	loaded.Load = 200
	r.setLocked(loaded)
	b := r.view(a)
	if b.place != a.place || b.Member(loaded.ID).Load != 200 || a.Member(loaded.ID).Load != 0 {
		t.Error("a change of load makes a new placement, or changes an old view")
	}
	loaded.Ready = false
	r.setLocked(loaded)
	if c := r.view(b); c.place == b.place || c.Epoch() == b.Epoch() {
		t.Error("a change of readiness makes no new placement")
	}
	if b.Member("nobody") != nil || b.Self().ID != members[0].ID {
		t.Error("wrong member")
	}
}
