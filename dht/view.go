package dht

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"graze/chunk"
)

// A View is the cluster at one moment. It never changes; what its methods
// return points into it and must not be modified.
type View struct {
	members []Member // by rising ID
	self    int32
	epoch   uint64
	place   *placement
	roster  uint64 // the roster's count of changes of homes that place was made for
}

// newView makes a view of members, which it keeps and sorts along with pasts.
// old, if any, is the view before.
func newView(members []Member, pasts []past, self chunk.PeerID, changes uint64, old *View) *View {
	order := make([]int32, len(members))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int { return cmp.Compare(members[i].ID, members[j].ID) })
	v := &View{members: make([]Member, len(members)), self: -1, roster: changes}
	for to, from := range order {
		v.members[to] = members[from]
		if members[from].ID == self {
			v.self = int32(to)
		}
	}
	v.epoch = epochOf(v.members)
	if old != nil && old.epoch == v.epoch && old.roster == changes {
		v.place = old.place
		return v
	}
	sorted := make([]past, len(pasts))
	for to, from := range order {
		sorted[to] = pasts[from]
	}
	v.place = newPlacement(v.members, sorted, time.Now())
	return v
}

// epochOf hashes what decides about homes.
func epochOf(members []Member) uint64 {
	h := xxhash.New()
	var b []byte
	for i := range members {
		m := &members[i]
		b = append(append(b[:0], byte(len(m.ID))), m.ID...)
		b = append(append(b, byte(len(m.Rack))), m.Rack...)
		b = binary.BigEndian.AppendUint16(append(b, byte(m.Role)), m.Weight)
		b = strconv.AppendBool(b, m.Ready)
		h.Write(b)
	}
	return h.Sum64()
}

// Epoch is a hash of the members' IDs, racks, roles, weights and readiness. Two
// nodes whose views have the same epoch agree on all homes.
func (v *View) Epoch() uint64 { return v.epoch }

// Members returns the members by rising ID.
func (v *View) Members() []Member { return v.members }

// Member returns the member with the given ID, or nil.
func (v *View) Member(id chunk.PeerID) *Member {
	i, ok := slices.BinarySearchFunc(v.members, id, func(m Member, id chunk.PeerID) int { return cmp.Compare(m.ID, id) })
	if !ok {
		return nil
	}
	return &v.members[i]
}

// Self returns the node's own member.
func (v *View) Self() *Member { return &v.members[v.self] }

// ClusterHomes returns the first n members for key, at most [MaxHomes], best
// first.
func (v *View) ClusterHomes(key Key, n int) []*Member {
	return v.AppendClusterHomes(nil, key, n)
}

// AppendClusterHomes is [View.ClusterHomes] into dst.
func (v *View) AppendClusterHomes(dst []*Member, key Key, n int) []*Member {
	var buf [MaxHomes]int32
	return v.appendMembers(dst, v.place.homes(buf[:0], key, &v.place.cluster, n))
}

// RackHomes returns the first n members of a rack for key, at most [MaxHomes],
// best first. It returns none if the rack has no homes of its own: it is the
// empty one, or has fewer than [MinRack] members, or none.
func (v *View) RackHomes(key Key, rack string, n int) []*Member {
	return v.AppendRackHomes(nil, key, rack, n)
}

// AppendRackHomes is [View.RackHomes] into dst.
func (v *View) AppendRackHomes(dst []*Member, key Key, rack string, n int) []*Member {
	r := v.place.racks[rack]
	if rack == "" || r == nil || r.members < MinRack {
		return dst
	}
	var buf [MaxHomes]int32
	return v.appendMembers(dst, v.place.homes(buf[:0], key, &r.tier, n))
}

// Former returns up to n members, the node itself left out, that may have been
// cluster home of key at some time in the last ten minutes, the likeliest first.
// It is what a home asks before it asks the registry. It returns none if the node
// itself has been home all the time. A node that has just started knows nobody's
// past, so it gets those next in rank.
func (v *View) Former(key Key, n int) []*Member {
	var buf [MaxHomes]int32
	return v.appendMembers(nil, v.place.former(buf[:0], key, min(n, MaxHomes-1), v.self, time.Now()))
}

func (v *View) appendMembers(dst []*Member, positions []int32) []*Member {
	for _, pos := range positions {
		dst = append(dst, &v.members[v.place.member[pos]])
	}
	return dst
}
